package meter

import (
	"hash/maphash"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/levelrail/levelrail"
)

// shardCount is how many locks the sums are spread over: requests of different keys rarely meet.
const shardCount = 64

// rowKey is what sums are kept by.
type rowKey struct {
	hour  int64 // Unix hours
	key   string
	model string
}

// sums are the counts since the last take.
type sums struct {
	seed   maphash.Seed
	rows   atomic.Int64 // held here and in what is not sent yet
	most   atomic.Int64 // bound of rows; 0 or less: none
	lost   atomic.Int64 // rows that did not fit since the last take
	shards [shardCount]shard
}

type shard struct {
	mu   sync.Mutex
	rows map[rowKey]*row
	full map[rowKey]struct{} // rows that had no room, so that each counts once
	lots []row               // memory for rows to come: one by one they would cost more to collect than to count
	_    [64]byte            // shards share no cache line
}

// row is one sum, and when its key was last used for it; zero: only refused.
type row struct {
	levelrail.Usage
	Used time.Time `json:"used,omitzero"`
}

// lot is how many rows' memory is taken at a time, once a shard has more than a few.
const lot = 32

func newSums() *sums {
	s := &sums{seed: maphash.MakeSeed()}
	for i := range s.shards {
		s.shards[i].clear()
	}
	return s
}

func (s *shard) clear() {
	s.rows, s.full, s.lots = map[rowKey]*row{}, nil, nil
}

// place is memory for one more row.
func (s *shard) place() *row {
	if len(s.rows) < lot/4 {
		return new(row)
	}
	if len(s.lots) == 0 {
		s.lots = make([]row, lot)
	}
	r := &s.lots[0]
	s.lots = s.lots[1:]
	return r
}

// counted tells whether a record is usage: a request for inference whose key and model are known. Listing models costs
// nothing, and a request without a valid key is nobody's.
func counted(r Record) bool { return r.Method == http.MethodPost && r.KeyID != "" && r.Model != "" }

func (s *sums) add(r Record) {
	if !counted(r) {
		return
	}
	k := rowKey{r.Start.Unix() / 3600, r.KeyID, r.Model}
	sh := &s.shards[maphash.String(s.seed, r.KeyID)%shardCount]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	row := sh.rows[k]
	if row == nil {
		if most := s.most.Load(); s.rows.Add(1) > most && most > 0 {
			s.rows.Add(-1)
			if _, known := sh.full[k]; !known && len(sh.full) < 1024 { // a bound on what only counts losses, too
				if sh.full == nil {
					sh.full = map[rowKey]struct{}{}
				}
				sh.full[k] = struct{}{}
				s.lost.Add(1)
			}
			return
		}
		row = sh.place()
		row.Hour, row.KeyID, row.Model = time.Unix(k.hour*3600, 0).UTC(), r.KeyID, r.Model
		sh.rows[k] = row
	}
	if r.End != Refused {
		row.Used = r.Start.UTC()
	}
	row.Owner, row.Tags = r.Owner, r.Tags
	count(&row.Usage, r)
}

// count adds one request. A class counts how the request ended for whom: an answer that broke off is the engine's failure
// although its status was 200, and a client that left before one began has none.
func count(row *levelrail.Usage, r Record) {
	row.Requests++
	switch {
	case r.End == EngineGone || r.End == EngineError || r.End == GapTimeout || r.End == Panic:
		row.ServerErrors++
	case r.End == ClientGone && r.Status == statusGone:
	case r.Status >= 500:
		row.ServerErrors++
	case r.Status >= 400:
		row.ClientErrors++
	case r.Status >= 200 && r.Status < 300:
		row.OK++
	}
	if r.Status == http.StatusTooManyRequests && r.End == Refused {
		row.Limited++
	}
	if r.End == ClientGone {
		row.Aborted++
	}
	if r.HasUsage {
		row.WithUsage++
	}
	row.InputTokens += r.Input
	row.OutputTokens += r.Output
	row.ResponseBytes += r.Bytes
	row.DurationMS += r.Duration.Milliseconds()
	row.FirstByteMS += r.FirstByte.Milliseconds()
}

// statusGone is recorded for a client that left before an answer began.
const statusGone = 499

// taken is what a take returns.
type taken struct {
	rows []*row
	lost int64
}

// take returns what was counted and begins anew. Its rows go on counting against the bound.
func (s *sums) take() (t taken) {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		rows := sh.rows
		if len(rows) == 0 { // a shard's map is handed over, or stays the shard's
			rows, sh.full = nil, nil
		} else {
			sh.clear()
		}
		sh.mu.Unlock()
		t.rows = slices.Grow(t.rows, len(rows))
		for _, row := range rows {
			t.rows = append(t.rows, row)
		}
	}
	t.lost = s.lost.Swap(0)
	return t
}

// merge adds an other row of the same hour, key and model. Owner and tags stay those of the row added to.
func merge(to *levelrail.Usage, r levelrail.Usage) {
	to.Requests += r.Requests
	to.OK += r.OK
	to.ClientErrors += r.ClientErrors
	to.ServerErrors += r.ServerErrors
	to.Limited += r.Limited
	to.Aborted += r.Aborted
	to.WithUsage += r.WithUsage
	to.InputTokens += r.InputTokens
	to.OutputTokens += r.OutputTokens
	to.ResponseBytes += r.ResponseBytes
	to.DurationMS += r.DurationMS
	to.FirstByteMS += r.FirstByteMS
}
