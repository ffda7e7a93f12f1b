package route

import (
	"runtime"
	"slices"
	"sync"
	"weak"

	"github.com/levelrail/levelrail"
)

// scope is what many keys have in common: which models they open, how far, and whose they are.
type scope struct {
	models, paths, names []string
	owner                levelrail.Owner
}

// scopes are those of a leaf's keys. Nearly always it is one.
type scopes struct {
	first *scope
	more  []*scope
}

func (s *scopes) at(i int) *scope {
	if i == 0 {
		return s.first
	}
	return s.more[i-1]
}

func (s scopes) clone() scopes { return scopes{s.first, slices.Clone(s.more)} }

// place is the number of a key's scope in the leaf, which has it from then on. A leaf keeps a scope that no key of it has any
// more until it is made anew without it; that is a pointer.
func (s *scopes) place(k *Key) int {
	want := shared(k)
	switch {
	case s.first == nil || s.first == want:
		s.first = want
		return 0
	case slices.Contains(s.more, want):
		return slices.Index(s.more, want) + 1
	}
	s.more = append(s.more, want)
	return len(s.more)
}

// interned holds each scope once, as long as a table has it. Edits meet here; requests do not.
var interned struct {
	sync.Mutex
	by map[string]weak.Pointer[scope]
}

// shared is the one scope with a key's words.
func shared(k *Key) *scope {
	text := make([]byte, 0, 128)
	for _, list := range [...][]string{k.Models, k.AllowPaths, k.AllowNames, {k.Owner.Organisation, k.Owner.Project}} {
		text = append(text, byte(len(list)), byte(len(list)>>8), byte(len(list)>>16))
		for _, s := range list {
			text = appendString(text, s)
		}
	}
	interned.Lock()
	defer interned.Unlock()
	if s := interned.by[string(text)].Value(); s != nil {
		return s
	}
	s := &scope{slices.Clone(k.Models), slices.Clone(k.AllowPaths), slices.Clone(k.AllowNames), k.Owner}
	name := string(text)
	if interned.by == nil {
		interned.by = map[string]weak.Pointer[scope]{}
	}
	interned.by[name] = weak.Make(s)
	runtime.AddCleanup(s, forget, name)
	return s
}

// forget takes a scope's name out, unless there is a new one by now.
func forget(name string) {
	interned.Lock()
	defer interned.Unlock()
	if interned.by[name].Value() == nil {
		delete(interned.by, name)
	}
}
