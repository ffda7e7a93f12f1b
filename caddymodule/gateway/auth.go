package gateway

import (
	"crypto/sha256"
	"errors"
	"net"
	"net/http"
	"slices"
	"strings"

	"github.com/levelrail/levelrail/caddymodule/openai"
	"github.com/levelrail/levelrail/caddymodule/route"
)

// findRoute looks the path up in the table of the host that was asked: a model's own domain, else the shared address. It
// comes before the key, so that the answer to a path never depends on one.
func (x *exchange) findRoute() *openai.Error {
	paths := route.Shared()
	if x.site = x.table.Host(x.r.Host); x.site != nil {
		paths = x.site.Paths
	}
	return x.lookUp(paths)
}

func (x *exchange) lookUp(paths *route.Paths) *openai.Error {
	m, err := paths.Match(x.r.Method, x.r.URL)
	if err != nil {
		return noRoute(err)
	}
	x.match, x.record.Route = m, m.Path
	return nil
}

func noRoute(err error) *openai.Error {
	if method := new(route.MethodError); errors.As(err, &method) {
		e := openai.Refuse(http.StatusMethodNotAllowed, openai.CodeMethod, "", "This path is served by another method: "+method.Allow+".")
		e.Allow = method.Allow
		return e
	}
	return openai.Refuse(http.StatusNotFound, openai.CodeUnknownRoute, "", "There is no such path here. Paths are exact, as in /v1/chat/completions.")
}

// authorize finds the key. Every key that opens nothing here gets the same answer, so that a guess teaches nothing.
func (x *exchange) authorize() *openai.Error {
	text, ok := bearer(x.r.Header)
	if !ok {
		if len(x.r.Header["Authorization"]) > 0 {
			x.wrongKey("malformed", "")
		}
		return openai.Refuse(http.StatusUnauthorized, openai.CodeInvalidKey, "", "An API key is needed: send one header Authorization: Bearer lr-….")
	}
	if !x.table.Known() {
		return openai.Failed(http.StatusServiceUnavailable, openai.CodeStarting, 1, "The gateway is starting and does not know its keys yet. Try again in a moment.")
	}
	if x.Stale != nil && x.Stale() {
		return openai.Failed(http.StatusServiceUnavailable, openai.CodeStale, 0, "This gateway has heard nothing of its control plane for so long that it takes no keys any more: some may have been revoked. "+
			"Whoever runs this service sees why with: systemctl status levelrail-server").Senseless()
	}
	// A key of the usual length is copied to the stack: as a slice of its own it would be memory to collect.
	var few [128]byte
	hash := route.Hash(sha256.Sum256(append(few[:0], text...)))
	k := &x.found
	switch {
	case !x.table.FindKey(&hash, k):
		x.wrongKey("unknown", "")
		return badKey()
	case !k.Live(x.Now()):
		x.wrongKey("expired", k.Prefix)
		return badKey()
	case x.site != nil && !slices.Contains(k.Models, x.site.Name):
		x.wrongKey("other_model", k.Prefix)
		return badKey()
	}
	x.key = k
	return nil
}

// wrongKey reports a key that opens nothing here, with the client's address, and holds the refusal when that address has
// failed often. A flood has a line a second and address, in place of one for each request. Who sends no key at all guesses
// nothing: load balancers and browsers do.
func (x *exchange) wrongKey(why, prefix string) {
	x.record.Client = x.client()
	f := x.Failures.Failed(x.record.Client)
	if f.Report {
		// fail2ban reads the line: the address comes first, and nothing is in it that a client writes but a plain id.
		x.Log.Warn("authentication failed", "client", x.record.Client, "failures", f.Count, "elsewhere", f.Missed, "why", why, "key", prefix,
			"route", x.record.Route, "request_id", x.record.RequestID)
	}
	x.record.Quiet = !f.Report
	if f.Close {
		x.w.Header().Set("Connection", "close")
	}
	f.Wait(x.r.Context())
}

// client is the client's address.
func (x *exchange) client() string {
	if x.ClientIP != nil {
		return x.ClientIP(x.r)
	}
	host, _, _ := net.SplitHostPort(x.r.RemoteAddr)
	return host
}

func badKey() *openai.Error {
	return openai.Refuse(http.StatusUnauthorized, openai.CodeInvalidKey, "", "The API key is not valid here.")
}

// bearer is the key's text in the one Authorization header: the scheme in any letter case, then blanks, then the key. It is
// taken from nowhere else, since headers such as X-Api-Key and queries end up in logs.
func bearer(h http.Header) (string, bool) {
	values := h["Authorization"]
	if len(values) != 1 {
		return "", false
	}
	v := strings.Trim(values[0], " \t")
	if len(v) < 7 || !strings.EqualFold(v[:6], "bearer") || v[6] != ' ' && v[6] != '\t' {
		return "", false
	}
	text := strings.TrimLeft(v[6:], " \t")
	return text, text != ""
}

// ownRoute settles the model where the host or the key does, and looks the path up again in the model's own table.
func (x *exchange) ownRoute() *openai.Error {
	switch one, n := x.oneModel(); {
	case x.site != nil:
		x.model = x.site
	case n == 1:
		x.model = one
	case n == 0: // the model is gone and its key not yet, or not here yet
		if x.match.Kind == route.KindModels || x.match.Kind == route.KindModel {
			return nil
		}
		return openai.Refuse(http.StatusNotFound, openai.CodeModelNotFound, "model", "The key's model does not exist, or not any more.")
	}
	if x.model != nil {
		if refusal := x.lookUp(x.model.Paths); refusal != nil {
			refusal.Message = "The model's engine does not serve this path."
			return refusal
		}
	}
	return x.keyOpensPath()
}

func (x *exchange) keyOpensPath() *openai.Error {
	if !allowedPath(x.key.AllowPaths, x.match.Path) {
		return openai.Refuse(http.StatusForbidden, openai.CodePathNotAllowed, "", "The API key does not open this path.")
	}
	return nil
}

// keyOpensName tells it of the name by which the body asks for the model.
func (x *exchange) keyOpensName(name string) *openai.Error {
	if len(x.key.AllowNames) > 0 && !slices.Contains(x.key.AllowNames, name) {
		return openai.Refuse(http.StatusForbidden, openai.CodeModelNotAllowed, "model", "The API key does not open this model.")
	}
	return nil
}

// oneModel is the first of the key's models that exist, and how many do.
func (x *exchange) oneModel() (first *route.Model, n int) {
	for _, name := range x.key.Models {
		if m, ok := x.table.Model(name); ok {
			if n++; n == 1 {
				first = m
			}
		}
	}
	return first, n
}

// models are the key's models that exist.
func (x *exchange) models() []*route.Model {
	var out []*route.Model
	for _, name := range x.key.Models {
		if m, ok := x.table.Model(name); ok {
			out = append(out, m)
		}
	}
	return out
}

// allowedPath tells whether a key's list opens a path: exact, or below an entry that ends with a slash.
func allowedPath(list []string, path string) bool {
	return len(list) == 0 || slices.ContainsFunc(list, func(p string) bool {
		return p == path || strings.HasSuffix(p, "/") && strings.HasPrefix(path, p)
	})
}
