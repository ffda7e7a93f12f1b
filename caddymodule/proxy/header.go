package proxy

import (
	"net/http"
	"strconv"
)

// Both directions go by a list of what passes, so that no header that somebody invents tomorrow reaches an engine or a
// client: hop-by-hop fields, credentials, cookies, cross-origin and forwarding fields are simply not on it.
var (
	toEngine = []string{"Accept", "Traceparent", "Tracestate"}
	toClient = []string{"Content-Type", "Content-Encoding", "Content-Language", "Content-Disposition", "Cache-Control", "Retry-After", "Retry-After-Ms",
		"Openai-Processing-Ms"}
)

// requestHeader is what the engine is sent: the client's own words where they matter, the target's key, no compression (so
// that the usage can be read), and the client's name for itself or none.
func requestHeader(client http.Header, contentType, key string) http.Header {
	h := make(http.Header, 8)
	for _, name := range toEngine {
		if v := client[name]; len(v) > 0 {
			h[name] = v
		}
	}
	h["Accept-Encoding"] = []string{"identity"}
	h["User-Agent"] = client["User-Agent"] // without one: nil, and net/http invents none
	if contentType != "" {
		h["Content-Type"] = []string{contentType}
	}
	if key != "" {
		h["Authorization"] = []string{"Bearer " + key}
	}
	return h
}

// answerHeader puts what passes of the engine's headers into the client's.
func answerHeader(to http.Header, a *Answer) {
	delete(to, "Server")
	for _, name := range toClient {
		if v := a.Header[name]; len(v) > 0 {
			to[name] = v
		}
	}
	if a.ContentLength >= 0 {
		to["Content-Length"] = []string{strconv.FormatInt(a.ContentLength, 10)}
	}
	to["X-Content-Type-Options"] = []string{"nosniff"}
}
