package httpapi

import (
	"encoding/json"
	"sync"

	"github.com/levelrail/levelrail/controlplane/view"
)

// hub brings together who asks for something and the node's agent or the gateway that has it. What is asked appears in the
// watch of the one that is asked, and is deleted there when it is taken back. T is where the answer goes.
type hub[T any] struct {
	mu    sync.Mutex
	asked map[string]*asked[T] // by id
	bells bells                // by who is asked
}

type asked[T any] struct {
	of     string // a node or a gateway
	text   json.RawMessage
	answer T
}

func newHub[T any]() *hub[T] { return &hub[T]{asked: map[string]*asked[T]{}, bells: bells{}} }

// changed is closed when what one is asked changes next. Nobody is asked nothing, for ever.
func (h *hub[T]) changed(of string) <-chan struct{} {
	if of == "" {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.bells.of(of)
}

// lines are what one is asked, by id.
func (h *hub[T]) lines(of string) view.Lines {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := view.Lines{}
	for id, a := range h.asked {
		if a.of == of {
			out[id] = a.text
		}
	}
	return out
}

// put asks, and returns what takes it back.
func (h *hub[T]) put(of, id string, request any, answer T) (takeBack func(), err error) {
	text, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked[id] = &asked[T]{of, text, answer}
	h.bells.ring(of)
	return func() { h.take(id) }, nil
}

// find is what is asked under an id, or nil.
func (h *hub[T]) find(id string) *asked[T] {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.asked[id]
}

// take takes it back, and tells whether it was still asked.
func (h *hub[T]) take(id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	a := h.asked[id]
	if a != nil {
		delete(h.asked, id)
		h.bells.ring(a.of)
	}
	return a != nil
}

// bells tell those who wait under a name that something for them has changed. The holder's lock guards them.
type bells map[string]chan struct{}

// of is closed at the next ring under a name.
func (b bells) of(name string) <-chan struct{} {
	if b[name] == nil {
		b[name] = make(chan struct{})
	}
	return b[name]
}

func (b bells) ring(name string) {
	if c := b[name]; c != nil {
		close(c)
		delete(b, name)
	}
}
