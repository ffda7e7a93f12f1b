package route

import (
	"errors"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/levelrail/levelrail/engine"
)

// The kinds of route that the gateway answers itself, beside the engines' own kinds.
const (
	KindModels = "models" // GET /v1/models
	KindModel  = "model"  // GET /v1/models/{id}
)

const modelsPath = "/v1/models"

// Match is the route that a request is for.
type Match struct {
	engine.Route
	ModelID string // of /v1/models/{id}, decoded
}

// ErrNoRoute says that nothing is served at a path.
var ErrNoRoute = errors.New("no such route")

// MethodError says that a path is served, by another method.
type MethodError struct{ Allow string }

func (e *MethodError) Error() string { return "method not allowed" }

// Paths is a table of exact paths. It is made once and shared by all Tables.
type Paths struct {
	byPath map[string][]engine.Route // usually one, more when methods differ
}

var madePaths sync.Map // engine name → *Paths

func pathsOf(e engine.Engine) *Paths {
	if p, ok := madePaths.Load(e.Name()); ok {
		return p.(*Paths)
	}
	p, _ := madePaths.LoadOrStore(e.Name(), newPaths(e.Routes()))
	return p.(*Paths)
}

// Shared is what the shared address serves: the union of all engines, whichever are deployed, so that the answer to a
// path does not tell what runs here.
var Shared = sync.OnceValue(func() *Paths {
	var all []engine.Route
	for _, name := range engine.Names() {
		if e, err := engine.Get(name); err == nil {
			all = append(all, e.Routes()...)
		}
	}
	return newPaths(all)
})

func newPaths(routes []engine.Route) *Paths {
	p := &Paths{byPath: map[string][]engine.Route{modelsPath: {{Path: modelsPath, Method: "GET", Kind: KindModels}}}}
	for _, r := range routes {
		// The gateway's own routes stand whatever an engine lists: what it says of models would name other people's.
		if r.Path == modelsPath || strings.HasPrefix(r.Path, modelsPath+"/") {
			continue
		}
		same := func(o engine.Route) bool { return o.Method == r.Method }
		if !slices.ContainsFunc(p.byPath[r.Path], same) {
			p.byPath[r.Path] = append(p.byPath[r.Path], r)
		}
	}
	return p
}

// Match finds the route of a request, or fails with ErrNoRoute or a *MethodError.
//
// A path matches when it equals a path of the table byte for byte and was sent without any percent-encoding that says the
// same in other words: nothing is cleaned, decoded or folded, and what goes to the engine is the table's own constant. The
// one exception is the id of /v1/models/{id}, which the gateway answers from its own table: libraries encode the "/", ":"
// and "@" in it.
func (p *Paths) Match(method string, u *url.URL) (Match, error) {
	if u.RawPath == "" {
		if routes, ok := p.byPath[u.Path]; ok {
			for _, r := range routes {
				if r.Method == method {
					return Match{Route: r}, nil
				}
			}
			return Match{}, &MethodError{Allow: allow(routes)}
		}
	}
	if id, ok := modelID(u); ok {
		if method != "GET" {
			return Match{}, &MethodError{Allow: "GET"}
		}
		return Match{Route: engine.Route{Path: modelsPath + "/{id}", Method: "GET", Kind: KindModel}, ModelID: id}, nil
	}
	return Match{}, ErrNoRoute
}

func allow(routes []engine.Route) string {
	methods := make([]string, len(routes))
	for i, r := range routes {
		methods[i] = r.Method
	}
	slices.Sort(methods)
	return strings.Join(methods, ", ")
}

// modelID reads the id of /v1/models/{id}: letters, digits and . _ : @ / -, without empty, "." or ".." segments.
func modelID(u *url.URL) (string, bool) {
	id, ok := strings.CutPrefix(u.Path, modelsPath+"/")
	if !ok || id == "" || len(id) > 512 {
		return "", false
	}
	for i := range len(id) {
		if !idByte(id[i]) {
			return "", false
		}
	}
	for seg := range strings.SplitSeq(id, "/") {
		if seg == "" || seg == "." || seg == ".." {
			return "", false
		}
	}
	if u.RawPath == "" {
		return id, true
	}
	raw, ok := strings.CutPrefix(u.RawPath, modelsPath+"/")
	for ok && raw != "" {
		if raw[0] != '%' {
			raw = raw[1:]
			continue
		}
		if len(raw) < 3 {
			return "", false
		}
		switch strings.ToUpper(raw[:3]) {
		case "%2F", "%3A", "%40":
			raw = raw[3:]
		default:
			return "", false
		}
	}
	return id, ok
}

func idByte(c byte) bool {
	switch {
	case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		return true
	}
	return strings.IndexByte("._:@/-", c) >= 0
}
