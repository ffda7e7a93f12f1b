package caddymodule

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

// errorParam is the field that an error blames.
func errorParam(body string) string {
	var e struct{ Error struct{ Param *string } }
	if json.Unmarshal([]byte(body), &e) != nil || e.Error.Param == nil {
		return ""
	}
	return *e.Error.Param
}

// TestCost is case C011: what a body asks for is bounded for each engine in every spelling that the engine might read as a
// number; a refusal names the field, reaches no engine and charges nothing.
func TestCost(t *testing.T) {
	h := newHost(t)
	const completions, responses = "/v1/completions", "/v1/responses"
	type row struct {
		path, fields, param string // param "": it passes
	}
	both := func(rows []row, field string, values ...string) []row {
		for _, v := range values {
			rows = append(rows, row{chatPath, `"` + field + `":` + v, field})
		}
		return rows
	}
	var common []row
	for _, field := range []string{"max_tokens", "max_completion_tokens", "max_output_tokens"} {
		common = both(common, field, "32769", "-1", "-0", "16.0", `"16"`, `" +1_6 "`, "1e3", "1e12", "1000000000000", "4294967295", "4294967297", "true", "[16]", `{"a":1}`, "1.9", `"٣"`)
		common = append(common, row{chatPath, `"` + field + `":1`, ""}, row{chatPath, `"` + field + `":32768`, ""}, row{chatPath, `"` + field + `":null`, ""},
			row{responses, `"` + field + `":32769`, field}, row{completions, `"` + field + `":32769`, field})
	}
	for _, field := range []string{"n", "best_of"} {
		common = both(common, field, "0", "-1", "17", "1.0", `"2"`, "true", "4294967297", "[]")
		common = append(common, row{chatPath, `"` + field + `":1`, ""}, row{chatPath, `"` + field + `":16`, ""}, row{chatPath, `"` + field + `":null`, ""})
	}
	common = append(common,
		row{chatPath, `"n":1,"n":17`, "n"}, row{chatPath, `"\u006e":17`, "n"}, row{chatPath, `"max_to\u006bens":-1`, "max_tokens"},
		row{chatPath, `"max_tokens":16,"MAX_TOKENS":99999`, "-"}, row{chatPath, "\"max_to\u212aens\":99999", "-"}, row{chatPath, `"max_tokens":16,"max_completion_tokens":99999`, "max_completion_tokens"},
		row{chatPath, `"n_predict":-1`, "n_predict"}, row{chatPath, `"num_predict":-1`, "num_predict"}, row{chatPath, `"n_cmpl":50`, "n_cmpl"}, row{chatPath, `"options":{"num_predict":-1}`, "options"},
		row{completions, `"prompt":"one, two","n":16`, ""}, row{completions, `"prompt":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18]`, ""},
		row{completions, `"prompt":["a","b","c","d"],"n":4`, ""}, row{completions, `"prompt":["a","b","c","d"],"n":5`, "prompt"}, row{completions, `"prompt":["a","b","c","d"],"best_of":5`, "prompt"},
		row{completions, `"prompt":[[1],[2],[3],[4],[5],[6],[7],[8],[9],[10],[11],[12],[13],[14],[15],[16],[17]]`, "prompt"},
		row{chatPath, `"messages":[{"content":"\"n\": 99, max_tokens: -1"}]`, ""}, row{chatPath, `"stream":true`, ""})
	for engine, own := range map[string][]row{
		"llamacpp": {{chatPath, `"max_tokens":0`, ""}, {completions, `"max_tokens":null`, ""}},
		"vllm":     {{chatPath, `"max_tokens":0`, ""}, {completions, `"max_tokens":null`, "max_tokens"}, {chatPath, `"max_tokens":null,"max_completion_tokens":16`, ""}},
		"ollama":   {{chatPath, `"max_tokens":0`, "max_tokens"}, {completions, `"max_tokens":0`, "max_tokens"}, {responses, `"max_output_tokens":0`, "max_output_tokens"}, {completions, `"max_tokens":null`, ""}},
	} {
		h.limited(levelrail.KeyLimits{RPM: 100000}, func(r *wire.Route) { r.Engine, r.Limits.MaxN, r.Limits.MaxGenLen = engine, 16, 32768 })
		before, passed := h.usedOf("rpm"), int64(0)
		for _, c := range append(own, common...) {
			seen := len(h.engine.requests())
			resp, body := h.do("POST", c.path, `{"model":"chat",`+c.fields+`}`)
			switch reached := len(h.engine.requests()) - seen; {
			case c.param == "":
				if passed++; resp.StatusCode != 200 || reached != 1 {
					t.Errorf("%s %s {%s}: %d %s", engine, c.path, c.fields, resp.StatusCode, body)
				} else if sent := string(h.engine.requests()[seen].body); sent != `{"model":"chat",`+c.fields+`}` {
					t.Errorf("%s: the engine was sent %s", engine, sent)
				}
			case resp.StatusCode != 400 || reached != 0 || errorCode(body) != "invalid_body":
				t.Errorf("%s %s {%s}: %d %s, reached %d", engine, c.path, c.fields, resp.StatusCode, body, reached)
			case c.param != "-" && errorParam(body) != c.param:
				t.Errorf("%s %s {%s} blames %q, want %q", engine, c.path, c.fields, errorParam(body), c.param)
			}
		}
		if got := h.usedOf("rpm") - before; got != passed {
			t.Errorf("%s: %d requests were charged, %d passed", engine, got, passed)
		}
	}
	h.limited(levelrail.KeyLimits{}, func(r *wire.Route) { r.Limits.MaxN, r.Limits.MaxGenLen = 0, -1 })
	if resp, body := h.do("POST", chatPath, `{"model":"chat","n":1000,"max_tokens":-1}`); resp.StatusCode != 200 {
		t.Errorf("without limits: %d %s", resp.StatusCode, body)
	}
}

// usedOf is how much of a limit of the host's key is used.
func (h *host) usedOf(limit string) int64 {
	h.t.Helper()
	for _, l := range h.ask(wire.Question{Ask: wire.AskExplain, Model: "chat", KeyID: "key_a"}).Limits {
		if l.Limit == limit {
			return l.Used
		}
	}
	h.t.Fatalf("the key has no limit %s", limit)
	return 0
}

// slow gives n bytes, then one more whenever the test says so.
type slow struct {
	n    int
	more chan struct{}
}

func (s *slow) Read(p []byte) (int, error) {
	if s.n > 0 {
		k := min(s.n, len(p))
		for i := range p[:k] {
			p[i] = ' '
		}
		s.n -= k
		return k, nil
	}
	if _, ok := <-s.more; !ok {
		return 0, io.EOF
	}
	p[0] = ' '
	return 1, nil
}

// TestBodyCapOfSleeper is case C009: the cap holds however a body is framed, for a model that sleeps: what is too large, lies
// about its length or stands still neither reaches an engine nor wakes one, charges nothing and frees its slot; exactly the
// cap passes, with a length.
func TestBodyCapOfSleeper(t *testing.T) {
	h := newHost(t)
	const most = 64 << 10
	sleeper := func(r *wire.Route) {
		r.Limits.MaxBodyBytes, r.Limits.WakeRetryAfterSeconds = most, 7
		r.Serving, r.Asleep, r.Reason = false, true, string(levelrail.Idle)
	}
	h.limited(levelrail.KeyLimits{RPM: 1000, MaxParallel: 1}, sleeper)
	exact := `{"model":"chat","x":"` + strings.Repeat("x", most-23) + `"}`
	h.each(func(t *testing.T, c *http.Client, proto int) {
		endless := &slow{n: most + 1, more: make(chan struct{})}
		for name, body := range map[string]io.Reader{"with its length": strings.NewReader(exact + " "), "chunked": io.MultiReader(strings.NewReader(exact), strings.NewReader(" ")),
			"without an end": endless} {
			req := h.request("POST", chatPath, "x")
			req.Body = io.NopCloser(body)
			if req.ContentLength = -1; name == "with its length" {
				req.ContentLength = most + 1
			}
			req.GetBody = nil
			resp, err := c.Do(req)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			b, _ := io.ReadAll(resp.Body)
			if body == endless {
				close(endless.more) // the client waits for its own reader
			}
			resp.Body.Close()
			h.refused(resp, string(b), 413, "request_too_large")
		}
	})
	resp, short := h.raw(3*time.Second, "POST "+chatPath+" HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+h.key+"\r\nContent-Length: 4\r\n\r\n"+chatBody)
	if resp == nil || resp.StatusCode != 400 {
		t.Errorf("a length that is too short: %v %s", resp, short)
	}
	h.eventually("the slots are free", func() bool { return pooledSlots("chat") == 0 && h.usedOf("max_parallel") == 0 })
	if n := h.cp.wakesOf("chat"); n != 0 || len(h.engine.requests()) != 0 || h.usedOf("rpm") != 0 {
		t.Errorf("%d wakes, %d requests reached the engine, %d were charged", n, len(h.engine.requests()), h.usedOf("rpm"))
	}
	h.limited(levelrail.KeyLimits{RPM: 1000, MaxParallel: 1}, func(r *wire.Route) { r.Limits.MaxBodyBytes = most })
	req := h.request("POST", chatPath, "x")
	req.Body, req.ContentLength, req.GetBody = io.NopCloser(strings.NewReader(exact)), -1, nil
	got, err := httpClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	got.Body.Close()
	if sent := h.engine.requests(); got.StatusCode != 200 || len(sent) != 1 || sent[0].length != most {
		t.Errorf("exactly the cap: %d", got.StatusCode)
	}
}

// TestTrickle is the rest of case C009: a body that comes byte by byte is cut, with the answer that says so.
func TestTrickle(t *testing.T) {
	h := newHost(t, "read_body_idle 30s 1024", "read_body_idle 300ms 1024")
	conn, err := net.Dial("tcp", "127.0.0.1:"+h.port)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 100000\r\n\r\n{", chatPath, h.key)
	go func() {
		for range time.Tick(20 * time.Millisecond) { // a trickle is time itself
			if _, err := conn.Write([]byte(" ")); err != nil {
				return
			}
		}
	}()
	conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || resp.StatusCode != 408 {
		t.Fatalf("%v %v", resp, err)
	}
	h.eventually("the slot is free", func() bool { return pooledSlots("chat") == 0 })
}
