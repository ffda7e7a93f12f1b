package meter

import (
	"hash/maphash"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/levelrail/levelrail"
)

// shardCount is how many ledgers and locks the sums are spread over: requests of different keys rarely meet.
const shardCount = 1 << 6

// sums are the counts since the last take.
type sums struct {
	rows   atomic.Int64 // held here and in what is not sent yet
	most   atomic.Int64 // bound of rows; 0 or less: none
	lost   atomic.Int64 // rows that did not fit since the last take
	shards [shardCount]shard
}

type shard struct {
	mu sync.Mutex
	*ledger
	full map[rowKey]struct{} // rows that had no room, so that each counts once
	_    [64]byte            // shards share no cache line
}

var seed = maphash.MakeSeed()

// shardOf is the shard that a key's sums are in.
func shardOf(key string) int { return int(maphash.String(seed, key) >> (64 - 6)) }

func newSums() *sums {
	s := new(sums)
	for i := range s.shards {
		s.shards[i].ledger = new(ledger)
	}
	return s
}

// counted tells whether a record is usage: a request for inference whose key and model are known. Listing models costs
// nothing, and a request without a valid key is nobody's.
func counted(r *Record) bool { return r.Method == http.MethodPost && r.KeyID != "" && r.Model != "" }

func (s *sums) add(r *Record) {
	if !counted(r) {
		return
	}
	sh := &s.shards[shardOf(r.KeyID)]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	at := sh.place(r.KeyID, r.Model, r.Start.Unix()/3600)
	sum := sh.find(&at)
	if sum == nil {
		if most := s.most.Load(); s.rows.Add(1) > most && most > 0 {
			s.rows.Add(-1)
			if _, known := sh.full[at]; !known && len(sh.full) < 1024 { // a bound on what only counts losses, too
				if sh.full == nil {
					sh.full = map[rowKey]struct{}{}
				}
				sh.full[at] = struct{}{}
				s.lost.Add(1)
			}
			return
		}
		sum = sh.make(&at)
	}
	if r.End != Refused {
		sum.used = r.Start.UnixNano()
	}
	sh.belongs(sum, owner{r.Owner, r.Tags})
	count(&sum.Counts, r)
}

// count adds one request. A class counts how the request ended for whom: an answer that broke off is the engine's failure
// although its status was 200, and a client that left before one began has none.
func count(c *levelrail.Counts, r *Record) {
	c.Requests++
	switch {
	case r.End == EngineGone || r.End == EngineError || r.End == GapTimeout || r.End == Panic:
		c.ServerErrors++
	case r.End == ClientGone && r.Status == statusGone:
	case r.Status >= 500:
		c.ServerErrors++
	case r.Status >= 400:
		c.ClientErrors++
	case r.Status >= 200 && r.Status < 300:
		c.OK++
	}
	if r.Status == http.StatusTooManyRequests && r.End == Refused {
		c.Limited++
	}
	if r.End == ClientGone {
		c.Aborted++
	}
	if r.HasUsage {
		c.WithUsage++
	}
	c.InputTokens += r.Input
	c.OutputTokens += r.Output
	c.ResponseBytes += r.Bytes
	c.DurationMS += r.Duration.Milliseconds()
	c.FirstByteMS += r.FirstByte.Milliseconds()
}

// statusGone is recorded for a client that left before an answer began.
const statusGone = 499

// taken is what a take returns: the sums of each shard.
type taken struct {
	ledgers [shardCount]*ledger
	rows    int64
	lost    int64
}

// take returns what was counted and begins anew. Its rows go on counting against the bound.
func (s *sums) take() (t taken) {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		t.ledgers[i], sh.ledger, sh.full = sh.ledger, sh.ledger.next(), nil
		sh.mu.Unlock()
		t.rows += int64(t.ledgers[i].len())
	}
	t.lost = s.lost.Swap(0)
	return t
}
