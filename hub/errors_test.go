package hub

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
)

// TestEachRefusalHasItsOwnKind (C041): missing, unclear, gated with and without a token, a bad token, a token without the
// right, limits, pages and hanging servers are told apart, each with a sentence and a next step.
func TestEachRefusalHasItsOwnKind(t *testing.T) {
	answer := func(status int, body string, headers ...string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, _ *http.Request) bool {
			for i := 0; i+1 < len(headers); i += 2 {
				w.Header().Set(headers[i], headers[i+1])
			}
			w.WriteHeader(status)
			fmt.Fprint(w, body)
			return true
		}
	}
	for _, c := range []struct {
		name   string
		token  string
		answer func(http.ResponseWriter, *http.Request) bool
		kind   Kind
		says   string
	}{
		{"401 without token", "", answer(401, `{"error":"Invalid username or password."}`), ErrUnclear, "missing, private or gated"},
		{"401 gated", "", answer(401, `{"error":"Access to model org/name is restricted."}`, "X-Error-Code", "GatedRepo"), ErrGated, "licence"},
		{"403 gated", marker, answer(403, `{"error":"you are not in the authorized list"}`, "X-Error-Code", "GatedRepo"), ErrGated, "has not been given access"},
		{"401 bad token", marker, answer(401, `{"error":"Invalid credentials in Authorization header"}`), ErrBadToken, "does not accept this token"},
		{"404 with token", marker, answer(404, `{"error":"Repository not found"}`, "X-Error-Code", "RepoNotFound"), ErrMissing, "that this token may see"},
		{"404 revision", "", answer(404, `{"error":"Invalid rev id"}`, "X-Error-Code", "RevisionNotFound"), ErrRevisionMissing, "no such revision"},
		{"403 scope", marker, answer(403, `{"error":"forbidden"}`), ErrForbidden, "may not read"},
		{"429 seconds", "", answer(429, `{}`, "Retry-After", "400"), ErrRateLimited, "6m40s"},
		{"429 RateLimit", marker, answer(429, `{}`, "RateLimit", `"api";r=0;t=301`), ErrRateLimited, "5m1s"},
		{"page", "", answer(200, "<html>", "Content-Type", "text/html; charset=utf-8"), ErrNotHub, "not from the Hub"},
		{"page 404", "", answer(404, "<html>", "Content-Type", "text/html"), ErrNotHub, "not from the Hub"},
		{"other JSON", "", answer(200, `{"status":"ok"}`, "Content-Type", "application/json"), ErrNotHub, "names no commit"},
		{"list for an object", "", answer(200, `[]`, "Content-Type", "application/json"), ErrNotHub, "form"},
		{"500", "", answer(500, `{}`), ErrServer, "answered 500"},
		{"too large", "", answer(200, `{"id":"`+strings.Repeat("x", 3000)+`"}`, "Content-Type", "application/json"), ErrTooLarge, "larger than 2048"},
		{"another status", "", answer(418, `{"error":"teapot"}`), ErrRefused, "418"},
		{"hangs", "", func(_ http.ResponseWriter, r *http.Request) bool { <-r.Context().Done(); return true }, ErrTimeout, "in time"},
	} {
		s := newStand(t, nil)
		s.before = c.answer
		hub := s.client()
		hub.Token, hub.MaxBytes, hub.Timeout, hub.Attempts = c.token, 2048, 100*time.Millisecond, 2
		if c.kind != ErrTimeout {
			hub.Timeout = 5 * time.Second
		}
		_, err := hub.Resolve(t.Context(), "org/name", "main")
		var e *Error
		if !errors.As(err, &e) || !errors.Is(err, c.kind) || !strings.Contains(e.Message, c.says) {
			t.Errorf("%s: got %v (%T), want kind %s saying %q", c.name, err, err, c.kind, c.says)
			continue
		}
		if e.Reason() != levelrail.DownloadFailed {
			t.Errorf("%s: reason %s", c.name, e.Reason())
		}
		if e.Next == "" && c.kind != ErrServer && c.kind != ErrRefused {
			t.Errorf("%s: no next step", c.name)
		}
		if strings.Contains(err.Error(), marker) {
			t.Errorf("%s: the error holds the token", c.name)
		}
	}
}

// TestGatedFile: metadata of a gated repository is open; its files and the access check say that it is gated.
func TestGatedFile(t *testing.T) {
	s := newStand(t, map[string][]byte{"a.gguf": blob(10)})
	s.info = map[string]any{"gated": "auto"}
	s.before = func(w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/resolve/") || strings.HasSuffix(r.URL.Path, "/auth-check") {
			w.Header().Set("X-Error-Code", "GatedRepo")
			http.Error(w, "restricted", http.StatusUnauthorized)
			return true
		}
		return false
	}
	if got := must[Repo](t)(s.client().Resolve(t.Context(), "org/name", "")); got.Gated != "auto" {
		t.Errorf("gated is %q", got.Gated)
	}
	if err := s.client().CheckAccess(t.Context(), "org/name"); !errors.Is(err, ErrGated) {
		t.Errorf("access: %v", err)
	}
	if _, err := s.client().Download(t.Context(), "org/name", commit, file(s, "a.gguf"), filepath.Join(t.TempDir(), "a"), nil); !errors.Is(err, ErrGated) {
		t.Errorf("file: %v", err)
	}
}

// TestWaits: what passes by itself is tried again, after the time that the Hub names or a growing one; what does not is
// returned at once, and so is a wait that is too long.
func TestWaits(t *testing.T) {
	for _, c := range []struct {
		name  string
		fail  func(w http.ResponseWriter)
		waits []time.Duration // at least
		kind  Kind            // "" succeeds in the end
	}{
		{"429 names a time", func(w http.ResponseWriter) { w.Header().Set("Retry-After", "7"); w.WriteHeader(429) }, []time.Duration{7 * time.Second, 7 * time.Second}, ""},
		{"503", func(w http.ResponseWriter) { w.WriteHeader(503) }, []time.Duration{time.Second, 2 * time.Second}, ""},
		{"too long", func(w http.ResponseWriter) { w.Header().Set("Retry-After", "3600"); w.WriteHeader(429) }, nil, ErrRateLimited},
		{"404", func(w http.ResponseWriter) { w.Header().Set("X-Error-Code", "RepoNotFound"); w.WriteHeader(404) }, nil, ErrMissing},
	} {
		s := newStand(t, map[string][]byte{"a.gguf": blob(10)})
		left := 2
		s.before = func(w http.ResponseWriter, r *http.Request) bool {
			if left == 0 {
				return false
			}
			left--
			c.fail(w)
			return true
		}
		hub := s.client()
		var waits []time.Duration
		hub.wait = func(_ context.Context, d time.Duration) error { waits = append(waits, d); return nil }
		_, err := hub.Resolve(t.Context(), "org/name", "")
		if c.kind == "" && err != nil || c.kind != "" && !errors.Is(err, c.kind) {
			t.Errorf("%s: %v", c.name, err)
		}
		if len(waits) != len(c.waits) {
			t.Errorf("%s: waited %v, want %v", c.name, waits, c.waits)
			continue
		}
		for i := range waits {
			if waits[i] < c.waits[i] || waits[i] > c.waits[i]*5/4 {
				t.Errorf("%s: waited %v, want %v", c.name, waits, c.waits)
			}
		}
	}
}

// TestUnreachable: a closed port is a kind of its own, and the error of a broken storage holds no signed address.
func TestUnreachable(t *testing.T) {
	s := newStand(t, map[string][]byte{"a.gguf": blob(10)})
	s.storage.Close()
	hub := s.client()
	_, err := hub.Download(t.Context(), "org/name", commit, file(s, "a.gguf"), filepath.Join(t.TempDir(), "a"), nil)
	if !errors.Is(err, ErrUnreachable) || strings.Contains(err.Error(), "SIGNED") || strings.Contains(fmt.Sprintf("%+v", err), "SIGNED") {
		t.Errorf("got %v", err)
	}
	s.hub.Close()
	if _, err := hub.Resolve(t.Context(), "org/name", ""); !errors.Is(err, ErrUnreachable) {
		t.Errorf("got %v", err)
	}
}

// TestNoDowngrade: a redirect from https to http is not followed.
func TestNoDowngrade(t *testing.T) {
	s := newStand(t, nil)
	secure := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, s.hub.URL+r.URL.Path, http.StatusTemporaryRedirect)
	}))
	defer secure.Close()
	hub := s.client()
	hub.BaseURL, hub.HTTP = secure.URL, secure.Client()
	if _, err := hub.Resolve(t.Context(), "org/name", ""); !errors.Is(err, ErrNotHub) || len(s.requests) != 0 {
		t.Errorf("got %v after %v", err, s.requests)
	}
}

// TestCleanToken (C042): outer white space goes, nothing means none, what cannot stand in a header is refused, and no
// error holds the value.
func TestCleanToken(t *testing.T) {
	for in, want := range map[string]string{
		marker: marker, marker + "\n": marker, marker + "\r\n": marker, "\t " + marker + "  ": marker, "": "", " \n": "",
	} {
		if got, err := CleanToken(in); err != nil || got != want {
			t.Errorf("%q: got %q, %v", in, got, err)
		}
	}
	for _, in := range []string{`"` + marker + `"`, "hf_MARK\tER", "hf_MARK\nER", "hf_MARKér", "hf_MARK\x00ER", strings.Repeat("M", 2000)} {
		got, err := CleanToken(in)
		if err == nil || got != "" || levelrail.KindOf(err) != levelrail.ErrInvalid || strings.Contains(err.Error(), "MARK") {
			t.Errorf("%q: got %q, %v", in, got, err)
		}
		s := newStand(t, nil)
		hub := s.client()
		hub.Token = in
		if _, err := hub.Resolve(t.Context(), "org/name", ""); !errors.Is(err, ErrBadToken) || strings.Contains(err.Error(), "MARK") || len(s.requests) != 0 {
			t.Errorf("%q: got %v after %v", in, err, s.requests)
		}
	}
}

// TestBadNames: what is no repository, revision or address is refused without a request; a listing that would leave its
// directory is refused whole.
func TestBadNames(t *testing.T) {
	s := newStand(t, map[string][]byte{"../../etc/passwd": []byte("x")})
	for _, repo := range []string{"", "a/b/c", "../x", "a/..", "a b/c", "/a/b", "a/b?x"} {
		if _, err := s.client().Resolve(t.Context(), repo, ""); !errors.Is(err, ErrSettings) {
			t.Errorf("%q: %v", repo, err)
		}
	}
	if len(s.requests) != 0 {
		t.Errorf("asked for %v", s.requests)
	}
	if _, err := s.client().Resolve(t.Context(), "org/name", ""); !errors.Is(err, ErrNotHub) {
		t.Errorf("unsafe listing: %v", err)
	}
	for _, base := range []string{"huggingface.co", "ftp://x", "http://", "http://[::1"} {
		if _, err := (&Client{BaseURL: base}).Resolve(t.Context(), "org/name", ""); !errors.Is(err, ErrSettings) {
			t.Errorf("%q: %v", base, err)
		}
	}
}

// TestMirrorBelowAPath: a mirror may live below a path, also over the pages of a listing.
func TestMirrorBelowAPath(t *testing.T) {
	s := newStand(t, map[string][]byte{"a.gguf": blob(10), "b.gguf": blob(20), "c.gguf": blob(30)})
	s.pageSize = 1
	s.before = func(w http.ResponseWriter, r *http.Request) bool {
		rest, ok := strings.CutPrefix(r.URL.Path, "/mirror/hf")
		if !ok {
			t.Errorf("asked for %s", r.URL.Path)
		}
		r.URL.Path = rest
		return false
	}
	hub := s.client()
	hub.BaseURL += "/mirror/hf/"
	if got := must[Repo](t)(hub.Resolve(t.Context(), "org/name", "")); len(got.Files) != 3 {
		t.Errorf("got %v", got.Files)
	}
}
