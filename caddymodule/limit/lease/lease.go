// Package lease speaks with the control plane about what a gateway may use of the limits of keys that other gateways serve
// too.
//
// It tells limit.Keys by what they are bounded, says what keys use, and takes the answers: once a second while limits are
// shared, when half of what a key has left is used, when something is called back, and at once when a request finds that
// its key's part is used up. Such a request waits for the answer, and no longer than Patience. A gateway that is alone says
// nothing, but once for a key with a limit of the day, beside the request, to learn what others have counted of it. When
// the control plane is away nobody waits for it. What a part means for a request is caddymodule/limit, who gets which is
// the control plane's.
package lease

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/caddymodule/limit"
	"github.com/levelrail/levelrail/client/wire"
)

// Patience is how long a request waits for more of its key's limits.
const Patience = 300 * time.Millisecond

const (
	renewEvery = time.Second
	// notAgain is how long nobody asks for a key after it was refused.
	notAgain = 100 * time.Millisecond
	sayTime  = time.Second
	// awayAfter is how long the control plane is waited for before parts are made without it.
	awayAfter = 2 * time.Second
	// wordKeys are how many keys are told in one word.
	wordKeys = 500
)

// ControlPlane is what is asked of it. *client.Client meets it.
type ControlPlane interface {
	Leases(ctx context.Context, r wire.LeaseReport) (wire.Leases, error)
}

// Options say what a Sharer stands on.
type Options struct {
	ControlPlane ControlPlane
	Keys         *limit.Keys
	GatewayID    func() string
	Log          *slog.Logger
	Now          func() time.Time
}

// Sharer keeps the terms and the parts of one limit.Keys.
type Sharer struct {
	o    Options
	boot string

	mu      sync.Mutex
	share   wire.Share    // the last that was told, or kept
	told    bool          // in the present watch
	contact bool          // the control plane has told something since it was away
	away    bool          // it cannot be reached
	lost    *time.Timer   // it could not be reached just now, and soon it is away
	done    wire.Share    // under which everything was said
	news    chan struct{} // closed when one of the above changes
	asking  map[string]*asking
	refused map[string]time.Time // by key, for a while
	recalls []string

	kick chan struct{}
}

// asking is one question for more, for all requests that wait for it.
type asking struct {
	done  chan struct{}
	again bool // it is worth while to try again
}

// New returns a Sharer that waits for the control plane's word. It starts nothing.
func New(o Options) *Sharer {
	s := &Sharer{o: o, boot: levelrail.NewID("boot"), share: wire.Share{Gateways: 1, Alone: true}, news: make(chan struct{}),
		asking: map[string]*asking{}, refused: map[string]time.Time{}, kick: make(chan struct{}, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.terms()
	return s
}

// Kept gives what an earlier process was told last. It holds while the control plane cannot be reached.
func (s *Sharer) Kept(gateways int, alone bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.share = wire.Share{Gateways: max(gateways, 1), Alone: alone}
	s.terms()
}

// Last is what to keep for the next process.
func (s *Sharer) Last() (gateways int, alone bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.share.Gateways, s.share.Alone
}

// terms tells the keys by what they are bounded. Before the first word of the control plane, or that it cannot be reached,
// nothing is anybody's: an earlier process's terms may have changed since.
func (s *Sharer) terms() {
	t := limit.Terms{Alone: s.share.Alone, Gateways: int64(s.share.Gateways), Away: s.away}
	if !s.contact && !s.away {
		t.Alone = false
	}
	s.o.Keys.SetTerms(t)
	close(s.news)
	s.news = make(chan struct{})
}

// Boot names this process, and tells of how many gateways it heard last.
func (s *Sharer) Boot() (boot string, gateways int) {
	gateways, _ = s.Last()
	return s.boot, gateways
}

// Begin is called when a watch begins.
func (s *Sharer) Begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = false
}

// Share takes the control plane's word of who serves.
func (s *Sharer) Share(share wire.Share) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if was := s.share; was.Alone != share.Alone || was.Gateways != share.Gateways {
		s.o.Log.Info("who serves", "gateways", share.Gateways, "alone", share.Alone)
	}
	s.share, s.told, s.contact, s.away = share, true, true, false
	s.found()
	s.terms()
	s.wake()
}

// Synced is called when a watch has told everything. A control plane that says nothing of others knows of none.
func (s *Sharer) Synced() {
	s.mu.Lock()
	told := s.told
	s.mu.Unlock()
	if !told {
		s.Share(wire.Share{Gateways: 1, Alone: true})
	}
}

// Recall gives back what a key does not use.
func (s *Sharer) Recall(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recalls = append(s.recalls, key)
	s.wake()
}

// Away is called when the control plane cannot be reached any more. One that was there a moment ago may be starting anew:
// for so long nobody gets anything that he has not.
func (s *Sharer) Away() {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.away || s.lost != nil:
	case !s.contact:
		s.away = true
		s.terms()
	default:
		var timer *time.Timer
		timer = time.AfterFunc(awayAfter, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.lost == timer {
				s.lost, s.away = nil, true
				s.terms()
			}
		})
		s.lost = timer
	}
}

// found ends the time in which the control plane is lost.
func (s *Sharer) found() {
	if s.lost != nil {
		s.lost.Stop()
		s.lost = nil
	}
}

func (s *Sharer) wake() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// Run says what there is to say until ctx ends.
func (s *Sharer) Run(ctx context.Context) {
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.found()
	}()
	tick := time.NewTicker(renewEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.forget()
			s.renew(ctx, true)
		case <-s.kick:
			s.mu.Lock()
			recalls := s.recalls
			s.recalls = nil
			s.mu.Unlock()
			s.renew(ctx, false)
			s.some(ctx, recalls, true)
		case <-s.o.Keys.Rings():
			s.some(ctx, s.o.Keys.Rung(), false)
		}
	}
}

// forget drops refusals of a while ago.
func (s *Sharer) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, at := range s.refused {
		if s.o.Now().Sub(at) > notAgain {
			delete(s.refused, id)
		}
	}
}

// present is the share under which words are said; false: none are, or cannot be.
func (s *Sharer) present() (share wire.Share, all, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.share, s.done != s.share, s.contact && !s.away && s.lost == nil && s.share.Book != ""
}

// renew says what is new, and everything where that is called for.
func (s *Sharer) renew(ctx context.Context, tick bool) {
	share, all, ok := s.present()
	if !ok || share.Alone || !tick && !all {
		return
	}
	if s.tell(ctx, share, wire.LeaseReport{}, all) && all {
		s.mu.Lock()
		s.done = share
		s.mu.Unlock()
	}
}

// tell says a word about each key of which there is something new, or about all of them and everything, in as many reports
// as it takes. After one that does not arrive, no more are sent.
func (s *Sharer) tell(ctx context.Context, share wire.Share, r wire.LeaseReport, all bool) (arrived bool) {
	if all {
		s.o.Keys.Anew()
	}
	var words []limit.Word
	arrived = true
	say := func(complete bool) bool {
		r.Complete = complete
		arrived = s.say(ctx, share, r, words)
		words = words[:0]
		return arrived
	}
	s.o.Keys.TellAll(all, s.o.Now(), func(w limit.Word) bool {
		if len(words) == wordKeys && !say(false) {
			s.o.Keys.Untold(w.ID)
			return false
		}
		words = append(words, w)
		return true
	})
	return arrived && say(all)
}

// some says a word about some keys.
func (s *Sharer) some(ctx context.Context, ids []string, giveBack bool) {
	share, _, ok := s.present()
	var words []limit.Word
	for i, id := range ids {
		if !ok {
			s.o.Keys.Untold(id)
			continue
		}
		words = append(words, s.o.Keys.Tell(id, giveBack && !share.Alone, s.o.Now()))
		if len(words) == wordKeys || i == len(ids)-1 {
			s.say(ctx, share, wire.LeaseReport{}, words)
			words = words[:0]
		}
	}
}

// say sends one report and takes its answer.
func (s *Sharer) say(ctx context.Context, share wire.Share, r wire.LeaseReport, words []limit.Word) bool {
	r.GatewayID, r.Boot, r.Book, r.Epoch = s.o.GatewayID(), s.boot, share.Book, share.Epoch
	r.Keys = make([]wire.LeaseUse, 0, len(words))
	for _, w := range words {
		r.Keys = append(r.Keys, use(w))
	}
	one, cancel := context.WithTimeout(ctx, sayTime)
	defer cancel()
	out, err := s.o.ControlPlane.Leases(one, r)
	if err != nil || out.Book != share.Book {
		if err != nil && ctx.Err() == nil {
			s.o.Log.Debug("the control plane cannot be told what keys use", "error", err)
		}
		for _, w := range words {
			s.o.Keys.Untold(w.ID)
		}
		return false
	}
	s.take(share, out)
	return true
}

// take puts an answer into force. Terms may have changed meanwhile; what is granted then counts for nothing.
func (s *Sharer) take(share wire.Share, out wire.Leases) {
	for _, l := range out.Keys {
		if share.Alone {
			s.o.Keys.Learn(l.KeyID, l.Days, s.o.Now())
			continue
		}
		may := limit.Amounts{l.May.RPM, l.May.TPM, l.May.TPD, l.May.MaxParallel}
		s.o.Keys.Grant(l.KeyID, l.Seq, may, time.Duration(l.RetryMS)*time.Millisecond, s.o.Now())
	}
}

func use(w limit.Word) wire.LeaseUse {
	return wire.LeaseUse{KeyID: w.ID, Seq: w.Seq, Used: amounts(w.Used), Held: amounts(w.Held), Frees: amounts(w.Frees), Days: w.Days, Want: w.Want}
}

func amounts(a limit.Amounts) wire.Amounts {
	return wire.Amounts{RPM: a[0], TPM: a[1], TPD: a[2], MaxParallel: a[3]}
}

// Leave says the last word: all that keys have used, of which nothing is used any more here. Call it after Run, when the
// counts are on the disk.
func (s *Sharer) Leave(ctx context.Context) {
	share, _, ok := s.present()
	if !ok {
		return
	}
	s.tell(ctx, share, wire.LeaseReport{Leaving: true}, true)
}
