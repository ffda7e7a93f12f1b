package caddymodule

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestLinesFollowConfiguration: a request's line goes where Caddy's configuration sends the gateway's log, in the form and
// from the level that it says, and a reload changes all of that for the next request.
func TestLinesFollowConfiguration(t *testing.T) {
	h := newHost(t)
	lines := func(file string) string {
		b, err := os.ReadFile(file)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return string(b)
	}
	ask := func(id string) {
		t.Helper()
		resp, _ := h.do("GET", "/v1/models", "", "X-Request-Id", id)
		if resp.StatusCode != 200 {
			t.Fatalf("%s: status %d", id, resp.StatusCode)
		}
	}
	wait := func(what string, ok func() bool) {
		t.Helper()
		for deadline := time.Now().Add(5 * time.Second); !ok(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("not within 5 s: %s", what)
			}
		}
	}
	has := func(file, id, as string) func() bool {
		return func() bool {
			for line := range strings.Lines(lines(file)) {
				if strings.Contains(line, id) && strings.Contains(line, as) {
					return true
				}
			}
			return false
		}
	}
	ask("first")
	wait("a JSON line in the file of the log", has(h.logFile(), `"request_id":"first"`, `"logger":"levelrail","msg":"request"`))

	other := filepath.Join(h.dir, "other.log")
	h.changes = []string{"log gateway {\n\t\toutput file " + h.logFile(), "log gateway {\n\t\toutput file " + other, "include levelrail\n\t\tformat json", "include levelrail\n\t\tformat console"}
	h.load()
	ask("second")
	wait("a console line in the other file", has(other, `"request_id": "second"`, "\tlevelrail\trequest\t"))

	h.changes = append(h.changes, "format console", "format console\n\t\tlevel ERROR")
	h.load()
	ask("third")
	h.changes = nil
	h.load()
	ask("fourth")
	wait("a JSON line in the first file again", has(h.logFile(), `"request_id":"fourth"`, `"msg":"request"`))
	if strings.Contains(lines(other)+lines(h.logFile()), "third") {
		t.Error("a line below the level is written")
	}
	if strings.Contains(lines(other), "fourth") || strings.Contains(lines(h.logFile()), "second") {
		t.Error("a line is in the file of another configuration")
	}
}
