package gateway

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/levelrail/levelrail/caddymodule/meter"
)

// Origins are the web pages' origins whose scripts may use the gateway; "*" stands for every one. Without any, a preflight
// is a method like others that no path serves.
type Origins []string

// CheckOrigin tells what is wrong with an origin as written in a configuration.
func CheckOrigin(text string) error {
	if text == "*" {
		return nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || text != u.Scheme+"://"+u.Host || text != strings.ToLower(text) {
		return fmt.Errorf("%q is not an origin; write it as browsers send it, like https://app.example.com, or * for all", text)
	}
	return nil
}

// maxAge is how long, in seconds, a browser may keep a preflight's answer.
const maxAge = "600"

// Allow puts the headers on the answer by which a page of an allowed origin can read it, refusals included, and answers a
// preflight, which cannot carry a key: it needs none, spends nothing and wakes nothing. It returns whether the request is
// answered.
func (o Origins) Allow(g *Gateway, w http.ResponseWriter, r *http.Request) bool {
	if len(o) == 0 {
		return false
	}
	h := w.Header()
	h.Add("Vary", "Origin")
	origin := r.Header["Origin"]
	every := slices.Contains(o, "*")
	if len(origin) != 1 || !every && !slices.Contains(o, origin[0]) {
		return false
	}
	h["Access-Control-Allow-Origin"] = origin // keys are no cookies: naming every origin lets nobody in who has none
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		h["Access-Control-Expose-Headers"] = []string{"X-Request-Id, Retry-After"}
		return false
	}
	id := requestID(r.Header)
	delete(h, "Server")
	h["X-Request-Id"] = []string{id}
	h["Access-Control-Allow-Methods"] = []string{"GET, POST"}
	h["Access-Control-Allow-Headers"] = []string{allowedHeaders(r.Header.Values("Access-Control-Request-Headers"))}
	h["Access-Control-Max-Age"] = []string{maxAge}
	h.Add("Vary", "Access-Control-Request-Headers")
	start := g.Now()
	w.WriteHeader(http.StatusNoContent)
	g.Sink.Record(meter.Record{RequestID: id, Method: http.MethodOptions, Status: http.StatusNoContent, End: meter.Complete, Start: start, Duration: g.Now().Sub(start)})
	return true
}

// allowedHeaders are those that every client needs and those that this one asks for: client libraries send many of their
// own, and what the gateway does not know it does not pass on.
func allowedHeaders(asked []string) string {
	out := []string{"authorization", "content-type", "x-request-id"}
	for _, list := range asked {
		for name := range strings.SplitSeq(list, ",") {
			name = strings.ToLower(strings.TrimSpace(name))
			if plainID(name) && !slices.Contains(out, name) && len(out) < 64 {
				out = append(out, name)
			}
		}
	}
	return strings.Join(out, ", ")
}
