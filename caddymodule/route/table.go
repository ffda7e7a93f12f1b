// Package route is what the gateway knows while it serves one request: which models there are, which paths they serve,
// where their engines listen, and which keys open them.
//
// A Table never changes. A request loads one and sees the same models and keys from its first byte to its last; whoever
// learns of a change makes the next Table with an Edit, which shares everything that stayed the same, so that one key's
// change costs microseconds in a table of a million. The package decides and does no I/O: the control plane's watch and
// the copy on disk are in caddymodule/link, the requests in caddymodule/gateway.
package route

import (
	"maps"
	"slices"
	"strings"

	"github.com/levelrail/levelrail/client/wire"
)

// Table is one immutable state of models and keys. The zero Table has neither, and is not known to be all there is.
type Table struct {
	known  bool
	models map[string]*Model // by name
	hosts  map[string]*Model // by domain, lower-case
	keys   keySet
}

// Known tells whether anybody has said what there is. Before that, a key that is not here may be a good one.
func (t *Table) Known() bool { return t.known }

// Model looks a model up by its name.
func (t *Table) Model(name string) (*Model, bool) {
	m, ok := t.models[name]
	return m, ok
}

// Models lists the models by name.
func (t *Table) Models() []*Model {
	out := make([]*Model, 0, len(t.models))
	for _, name := range slices.Sorted(maps.Keys(t.models)) {
		out = append(out, t.models[name])
	}
	return out
}

// Host returns the model whose own domain a Host header names, or nil: then the request came to the shared address.
func (t *Table) Host(host string) *Model {
	if len(t.hosts) == 0 {
		return nil
	}
	return t.hosts[hostName(host)]
}

// hostName is the name in a Host header: without port and trailing dot, lower-case.
func hostName(host string) string {
	if i := strings.LastIndexByte(host, ':'); i >= 0 && !strings.HasSuffix(host, "]") {
		host = host[:i]
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// Key looks a key up by the SHA-256 of its text. It does not judge whether the key has expired.
func (t *Table) Key(hash Hash) (*Key, bool) {
	k := new(Key)
	if !t.keys.get(&hash, k) {
		return nil, false
	}
	return k, true
}

// FindKey is Key for who has a place to put the key in. It tells whether there is one; else k may hold anything.
func (t *Table) FindKey(hash *Hash, k *Key) bool { return t.keys.get(hash, k) }

// KeyByID looks a key up by its id.
func (t *Table) KeyByID(id string) (*Key, bool) {
	k := new(Key)
	if !t.keys.byID(id, k) {
		return nil, false
	}
	return k, true
}

// Keys calls yield with every key, in no order that means anything, until it returns false.
func (t *Table) Keys(yield func(*Key) bool) { t.keys.all(yield) }

// Len is how many models and keys there are.
func (t *Table) Len() (models, keys int) { return len(t.models), t.keys.n }

// Edit is a Table in the making. It is used by one goroutine and is spent after Table.
type Edit struct {
	from   *Table
	models map[string]*Model // a copy once a model changes; nil before
	keys   keySet
}

// Edit begins the next Table from this one, which stays as it is.
func (t *Table) Edit() *Edit { return &Edit{from: t, keys: t.keys.begin()} }

// PutModel adds a model or replaces the one of that name. It fails, and changes nothing, when the route cannot be
// served: an engine that this gateway does not know.
func (e *Edit) PutModel(r wire.Route) error {
	m, err := newModel(r)
	if err != nil {
		return err
	}
	e.own()[m.Name] = m
	return nil
}

// DropModel removes the model of that name, if there is one.
func (e *Edit) DropModel(name string) { delete(e.own(), name) }

func (e *Edit) own() map[string]*Model {
	if e.models == nil {
		e.models = make(map[string]*Model, len(e.from.models)+1)
		maps.Copy(e.models, e.from.models)
	}
	return e.models
}

// PutKey adds a key or replaces the one with that hash, and the one with that id. It fails, and changes nothing, when the
// hash is not one.
func (e *Edit) PutKey(k wire.RouteKey) (Hash, error) {
	key, err := newKey(k)
	if err != nil {
		return Hash{}, err
	}
	e.keys.put(key)
	return key.Hash, nil
}

// DropKey removes the key with that hash, if there is one.
func (e *Edit) DropKey(hash Hash) { e.keys.drop(hash) }

// DropKeyByID removes the key with that id, if there is one.
func (e *Edit) DropKeyByID(id string) {
	var k Key
	if e.keys.byID(id, &k) {
		e.keys.drop(k.Hash)
	}
}

// Table is the finished Table.
func (e *Edit) Table() *Table {
	t := &Table{known: true, models: e.from.models, hosts: e.from.hosts, keys: e.keys.end()}
	if e.models != nil {
		t.models, t.hosts = e.models, map[string]*Model{}
		for _, m := range t.Models() { // in order, so that two models of one domain are settled the same way every time
			if _, taken := t.hosts[hostName(m.Domain)]; m.Domain != "" && !taken {
				t.hosts[hostName(m.Domain)] = m
			}
		}
	}
	return t
}
