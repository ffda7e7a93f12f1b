package gateway

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/levelrail/levelrail/caddymodule/meter"
)

// Origins are the origins whose scripts may use the gateway: web pages, desktop and mobile apps, extensions of browsers.
// "*" stands for every one, SCHEME://* for every one of a scheme that is not the web's, and null for what has none. Without
// any, a preflight is a method like others that no path serves.
type Origins []string

// CheckOrigin tells what is wrong with an origin as written in a configuration.
func CheckOrigin(text string) error {
	if text == "*" || text == "null" || text == "file://" {
		return nil
	}
	scheme, host, ok := strings.Cut(text, "://")
	web := scheme == "https" || scheme == "http"
	switch {
	case !ok || !plainScheme(scheme) || host == "":
		return fmt.Errorf("%q is not an origin; write it as browsers and apps send it, like https://app.example.com, app://obsidian.md, null, or * for all", text)
	case host == "*" && web:
		return fmt.Errorf("%q names no site; write each, like https://app.example.com, or * for all origins", text)
	case host == "*":
		return nil
	}
	if u, err := url.Parse(text); err != nil || text != scheme+"://"+u.Host || text != strings.ToLower(text) || strings.ContainsAny(host, "*@?#\\ ") {
		return fmt.Errorf("%q is not an origin; write it as browsers and apps send it, in small letters and without a path, like https://app.example.com", text)
	}
	if u, _ := url.Parse(text); web && u.Port() != "" && u.Port() == map[string]string{"http": "80", "https": "443"}[scheme] {
		return fmt.Errorf("%q is never sent: browsers leave the port %s of %s out", text, u.Port(), scheme)
	}
	return nil
}

// plainScheme tells whether a scheme is written as browsers send it.
func plainScheme(s string) bool {
	for i := range len(s) {
		c := s[i]
		if !(c >= 'a' && c <= 'z' || i > 0 && (c >= '0' && c <= '9' || c == '+' || c == '-' || c == '.')) {
			return false
		}
	}
	return s != ""
}

// has tells whether an origin is among them.
func (o Origins) has(origin string) bool {
	for _, one := range o {
		if one == origin || one == "*" || strings.HasSuffix(one, "://*") && strings.HasPrefix(origin, one[:len(one)-1]) && len(origin) >= len(one) {
			return true
		}
	}
	return false
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
	if len(origin) != 1 || !o.has(origin[0]) {
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
