package agenttest

import (
	"context"
	"slices"
	"sync"

	"github.com/levelrail/levelrail/agent/journal"
)

// Journal keeps lines in memory.
type Journal struct {
	mu      sync.Mutex
	entries []journal.Entry
	wake    chan struct{}
}

// NewJournal returns an empty journal.
func NewJournal() *Journal { return &Journal{wake: make(chan struct{})} }

// Say adds a line of a unit and run.
func (j *Journal) Say(unit, run, message string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.entries = append(j.entries, journal.Entry{Unit: unit, Invocation: run, Message: message, Priority: 6})
	close(j.wake)
	j.wake = make(chan struct{})
}

// Each passes lines on.
func (j *Journal) Each(ctx context.Context, q journal.Query, each func(journal.Entry) error) error {
	for i := 0; ; {
		j.mu.Lock()
		wake, all := j.wake, j.entries
		j.mu.Unlock()
		for ; i < len(all); i++ {
			if !slices.Contains(q.Units, all[i].Unit) {
				continue
			}
			if err := each(all[i]); err != nil {
				return err
			}
		}
		if !q.Follow {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-wake:
		}
	}
}

// LastRun returns the lines of one run, or of the last one before it.
func (j *Journal) LastRun(_ context.Context, unit, invocation string, ended bool) (run string, lines []string, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	run = invocation
	if ended || run == "" {
		run = ""
		for _, e := range j.entries {
			if e.Unit == unit && e.Invocation != invocation {
				run = e.Invocation
			}
		}
	}
	for _, e := range j.entries {
		if e.Unit == unit && e.Invocation == run {
			lines = append(lines, e.Message)
		}
	}
	return run, lines, nil
}
