package gateway

import (
	"net/http"
	"strconv"

	"github.com/levelrail/levelrail/caddymodule/openai"
)

// healthPaths are where load balancers and benchmarkers ask whether anybody serves, before they send anything else.
func healthPath(path string) bool { return path == "/health" || path == "/healthz" || path == "/ping" }

// health answers them: without a key, under every host name, and with nothing but whether this gateway serves requests. It
// names no model, wakes none, and is neither counted nor logged, since such questions come every few seconds for ever. A
// gateway that has never had its routes and keys, one whose are too old, and one that is about to end, do not serve.
func (g *Gateway) health(w http.ResponseWriter, r *http.Request) (answered bool) {
	if !healthPath(r.URL.Path) || r.URL.RawPath != "" {
		return false
	}
	h := w.Header()
	delete(h, "Server")
	if r.ProtoMajor == 1 && r.ContentLength != 0 {
		h.Set("Connection", "close") // a body is not read
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		e := openai.Refuse(http.StatusMethodNotAllowed, openai.CodeMethod, "", "This path is served by another method: GET, HEAD.")
		e.Allow = "GET, HEAD"
		e.Write(w)
		return true
	}
	status, body := http.StatusOK, `{"status":"ok"}`
	switch {
	case g.Stopping != nil && g.Stopping():
		status, body = http.StatusServiceUnavailable, `{"status":"stopping"}`
	case !g.Table().Known():
		status, body = http.StatusServiceUnavailable, `{"status":"starting"}`
		h.Set("Retry-After", "1")
	case g.Stale != nil && g.Stale():
		status, body = http.StatusServiceUnavailable, `{"status":"stale"}`
	}
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	if r.Method == http.MethodGet {
		w.Write([]byte(body)) // a client that left misses nothing
	}
	return true
}
