package raftstore

import (
	"context"
	"sync"
)

// progress is how far the state has come, for those who wait for it.
type progress struct {
	mu      sync.Mutex
	applied uint64
	moved   chan struct{} // closed at the next move
	closed  bool
}

func newProgress() *progress { return &progress{moved: make(chan struct{})} }

func (p *progress) set(applied uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.applied = applied
	p.wake()
}

func (p *progress) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.wake()
}

func (p *progress) wake() {
	close(p.moved)
	p.moved = make(chan struct{})
}

func (p *progress) now() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.applied
}

// wait returns when the state holds the entry at index.
func (p *progress) wait(ctx context.Context, index uint64) error {
	for {
		p.mu.Lock()
		applied, moved, closed := p.applied, p.moved, p.closed
		p.mu.Unlock()
		switch {
		case applied >= index:
			return nil
		case closed:
			return ErrClosed
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
