package proxy

import (
	"net/http"
	"strconv"
)

// Both directions go by a list of what passes, so that no header that somebody invents tomorrow reaches an engine or a
// client: hop-by-hop fields, credentials, cookies, cross-origin and forwarding fields are simply not on it. An engine is
// sent the client's own words where they matter, its name for itself if it has one, the target's key, and no wish for
// compression, so that the usage can be read (appendHead).
var (
	toEngine = [...]string{"Accept", "Traceparent", "Tracestate"}
	toClient = [...]string{contentType: "Content-Type", contentEncoding: "Content-Encoding", contentLanguage: "Content-Language", contentDisposition: "Content-Disposition",
		cacheControl: "Cache-Control", retryAfter: "Retry-After", retryAfterMs: "Retry-After-Ms", processingMs: "Openai-Processing-Ms"}
)

// The places of what passes to the client, in a Header and in toClient.
const (
	contentType = iota
	contentEncoding
	contentLanguage
	contentDisposition
	cacheControl
	retryAfter
	retryAfterMs
	processingMs
)

// Header holds the fields of an answer that pass to the client; "" is one that the engine did not send. Of one that came
// twice it has the first, or all with commas between where that is what the field's grammar says.
type Header [len(toClient)]string

// Get returns the value of a field by its canonical name, or "".
func (h *Header) Get(name string) string {
	for i, n := range toClient {
		if n == name {
			return h[i]
		}
	}
	return ""
}

// add takes a field that came, when it is one that passes.
func (h *Header) add(name, value []byte) {
	for i, n := range toClient {
		if len(n) != len(name) || !isFold(name, n) {
			continue
		}
		switch {
		case h[i] == "":
			h[i] = intern(value)
		case len(value) > 0 && (i == contentEncoding || i == contentLanguage || i == cacheControl):
			h[i] += ", " + string(value)
		}
		return
	}
}

// isFold tells whether two are the same but for the case of ASCII letters. They are equally long.
func isFold(a []byte, b string) bool {
	for i, x := range a {
		y := b[i]
		if x != y && (x|0x20 != y|0x20 || x|0x20 < 'a' || x|0x20 > 'z') {
			return false
		}
	}
	return true
}

// intern is a value as a string, without a copy of what most engines say in most answers.
func intern(v []byte) string {
	switch string(v) {
	case "application/json":
		return "application/json"
	case "application/json; charset=utf-8":
		return "application/json; charset=utf-8"
	case "text/event-stream":
		return "text/event-stream"
	case "text/event-stream; charset=utf-8":
		return "text/event-stream; charset=utf-8"
	case "text/plain; charset=utf-8":
		return "text/plain; charset=utf-8"
	case "no-cache":
		return "no-cache"
	case "no-store":
		return "no-store"
	case "identity":
		return "identity"
	}
	return string(v)
}

// answerHeader puts what passes of the engine's headers into the client's.
func answerHeader(to http.Header, a *Answer, events bool) {
	delete(to, "Server")
	values := make([]string, 0, len(toClient)+4) // one piece of memory for all; each field's slice has no room for more
	set := func(name, value string) {
		values = append(values, value)
		to[name] = values[len(values)-1 : len(values) : len(values)]
	}
	for i, v := range a.Header {
		if v != "" {
			set(toClient[i], v)
		}
	}
	if a.ContentLength >= 0 {
		set("Content-Length", strconv.FormatInt(a.ContentLength, 10))
	}
	set("X-Content-Type-Options", "nosniff")
	if events { // proxies in front must not collect events
		set("Cache-Control", "no-cache")
		set("X-Accel-Buffering", "no")
	}
}
