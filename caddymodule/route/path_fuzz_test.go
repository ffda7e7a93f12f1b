package route

import (
	"bufio"
	"errors"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/levelrail/levelrail/engine"
)

// rule is the rule for what a client sends as a request's target, told from its bytes alone: before the query stands a path
// of the table, byte for byte, or /v1/models/ and an id in which the slash, colon and at sign may be percent-encoded. The
// absolute form counts from its path on, and a CONNECT's authority is one.
type rule struct{ methods map[string][]string }

var (
	targetBegin = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*:(?://[^/?]*)?`)
	targetID    = regexp.MustCompile(`^/v1/models/((?:[A-Za-z0-9._:@/-]|%2[Ff]|%3[Aa]|%40)+)$`)
	idDecoder   = strings.NewReplacer("%2F", "/", "%2f", "/", "%3A", ":", "%3a", ":", "%40", "@")
)

func ruleOf(engines ...string) rule {
	w := rule{map[string][]string{"/v1/models": {"GET"}}}
	for _, name := range engines {
		e, err := engine.Get(name)
		if err != nil {
			panic(err)
		}
		for _, r := range e.Routes() {
			if !strings.HasPrefix(r.Path+"/", "/v1/models/") && !slices.Contains(w.methods[r.Path], r.Method) {
				w.methods[r.Path] = append(w.methods[r.Path], r.Method)
			}
		}
	}
	return w
}

// read tells the path or the id that a request line asks for, and whether it is served by another method alone.
func (w rule) read(method, target string) (path, id string, elsewhere, ok bool) {
	if method == "CONNECT" && !strings.HasPrefix(target, "/") {
		target = "http://" + target
	}
	if !strings.HasPrefix(target, "/") {
		target = target[len(targetBegin.FindString(target)):]
	}
	target, _, _ = strings.Cut(target, "?")
	if methods, there := w.methods[target]; there {
		return target, "", !slices.Contains(methods, method), true
	}
	if m := targetID.FindStringSubmatch(target); m != nil {
		id = idDecoder.Replace(m[1])
		for s := range strings.SplitSeq(id, "/") {
			if s == "" || s == "." || s == ".." {
				return "", "", false, false
			}
		}
		return "", id, method != "GET", len(id) <= 512
	}
	return "", "", false, false
}

// FuzzMatch: whatever stands in a request line that net/http takes, a route is found exactly when the bytes of the target
// ask for one, and what goes to the engine is the table's own constant. Held against the tables of each engine and of the
// shared address.
func FuzzMatch(f *testing.F) {
	for _, s := range []string{"/v1/chat/completions", "/v1/chat/completions/", "//v1/chat/completions", "/v1//chat/completions", "/v1/./chat/completions", "/v1/x/../chat/completions", "/v1/chat%2Fcompletions", "/v1/ch%61t/completions", "/v1/%2e%2e/v1/chat/completions",
		"/v1/models", "/v1/models/", "/v1/models/org/name:Q4_K_M", "/v1/models/org%2Fname%3AQ4", "/v1/models/org%2fname%3aQ4%40x", "/v1/models/..", "/v1/models/a//b", "/v1/models/%2e%2e/x", "/v1/models/a%2F..%2Fb", "/v1/models/a%2F%2Fb", "/v1/models/\xff", "/v1/models/a%252Fb", "/v1/models/%41", "/v1/models/a%20b", "/v1/models/a%2", "/v1/models/a;b", "/v1/models/" + strings.Repeat("a", 513),
		"*", "/", "", "?", "/v1/chat/completions?x=1;y=2", "/v1/chat/completions#x", "/v1/chat/completions;x=1", "/v1/chat/completions.", "http://host/v1/chat/completions", "http://h%41st:80/v1/models?x", "http:/v1/models", "http:v1/models", "http:///v1/models", "http://user@host/v1/models/a", "h+t.-1:///v1/models", "host/v1/models", "host:443", "v1/chat/completions",
		"/v1/chat\\completions", "/v1/chat%5Ccompletions", "/v1/chat/completions%00", "/v1/chat/completions%20", "/v1/chat/completions%3Fx=1", "/v1/chat/completions%0d%0aX:1", "/V1/CHAT/COMPLETIONS", "/v1/chat/completions\u00ed", "/v1/embeddings", "/v1/audio/transcriptions", "/%zz", "/v1/models/a?b/../c", "///v1/models"} {
		for _, method := range []string{"POST", "GET", "get", "CONNECT"} {
			f.Add(method, s)
		}
	}
	tables := map[string]*Paths{"all": Shared()}
	rules := map[string]rule{"all": ruleOf(engine.Names()...)}
	for _, name := range engine.Names() {
		e, err := engine.Get(name)
		if err != nil {
			f.Fatal(err)
		}
		tables[name], rules[name] = pathsOf(e), ruleOf(name)
	}
	f.Fuzz(func(t *testing.T, method, target string) {
		if strings.ContainsAny(method+target, " \r\n") {
			return // they would be another request line
		}
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(method + " " + target + " HTTP/1.1\r\nHost: llm.example.com\r\n\r\n")))
		if err != nil {
			return
		}
		for name, paths := range tables {
			path, id, elsewhere, ok := rules[name].read(method, target)
			m, err := paths.Match(r.Method, r.URL)
			other := new(MethodError)
			switch {
			case !ok:
				if !errors.Is(err, ErrNoRoute) {
					t.Fatalf("%s: %s %q matched %+v, %v", name, method, target, m, err)
				}
			case elsewhere:
				if !errors.As(err, &other) || slices.Contains(strings.Split(other.Allow, ", "), method) {
					t.Fatalf("%s: %s %q matched %+v, %v", name, method, target, m, err)
				}
			case err != nil || m.Method != method || m.ModelID != id || id == "" && m.Path != path || id != "" && m.Kind != KindModel:
				t.Fatalf("%s: %s %q asks for %q %q, matched %+v, %v", name, method, target, path, id, m, err)
			}
		}
	})
}
