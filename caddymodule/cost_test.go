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
	const completions, responses, embeddings = "/v1/completions", "/v1/responses", "/v1/embeddings"
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
		common = both(common, field, "32769", "-1", "16.5", `"16"`, `" +1_6 "`, "1e3", "1e12", "1000000000000", "4294967295", "4294967297", "true", "[16]", `{"a":1}`, "1.9", `"٣"`)
		common = append(common, row{chatPath, `"` + field + `":null`, ""},
			row{responses, `"` + field + `":32769`, field}, row{completions, `"` + field + `":32769`, field})
	}
	for _, field := range []string{"n", "best_of"} {
		common = both(common, field, "0", "-1", "17", "17.0", "1.5", `"2"`, "true", "4294967297", "[]")
		common = append(common, row{chatPath, `"` + field + `":1`, ""}, row{chatPath, `"` + field + `":16`, ""}, row{chatPath, `"` + field + `":null`, ""})
	}
	common = append(common,
		row{chatPath, `"n":1,"n":17`, "n"}, row{chatPath, `"\u006e":17`, "n"}, row{chatPath, `"max_to\u006bens":-1`, "max_tokens"},
		row{chatPath, `"max_tokens":16,"MAX_TOKENS":99999`, "-"}, row{chatPath, "\"max_to\u212aens\":99999", "-"}, row{chatPath, `"max_tokens":16,"max_completion_tokens":99999`, "max_completion_tokens"},
		row{chatPath, `"n_predict":-1`, "n_predict"}, row{chatPath, `"num_predict":-1`, "num_predict"}, row{chatPath, `"n_cmpl":50`, "n_cmpl"}, row{chatPath, `"options":{"num_predict":-1}`, "options"},
		row{completions, `"prompt":"one, two","n":16`, ""}, row{completions, `"prompt":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18]`, ""},
		row{completions, `"prompt":["a","b","c","d"],"n":4`, ""}, row{completions, `"prompt":["a","b","c","d"],"n":5`, ""}, row{completions, `"prompt":[` + strings.Repeat(`"a",`, 31) + `"b"]`, ""}, row{embeddings, `"input":[` + strings.Repeat(`"a",`, 255) + `"b"]`, ""},
		row{completions, `"prompt":[` + strings.Repeat(`"a",`, 256) + `"b"]`, "prompt"}, row{completions, `"prompt":[` + strings.Repeat(`"a",`, 64) + `"b"],"n":4`, "prompt"}, row{completions, `"prompt":[` + strings.Repeat(`"a",`, 64) + `"b"],"best_of":4`, "prompt"},
		row{embeddings, `"input":[` + strings.Repeat(`"a",`, 256) + `"b"]`, "input"}, row{embeddings, `"input":[` + strings.Repeat("1,", 4000) + `2]`, ""}, row{responses, `"input":[` + strings.Repeat(`{"role":"user","content":"a"},`, 300) + `{"role":"user","content":"a"}]`, ""},
		row{completions, `"prompt":[` + strings.Repeat("[1],", 256) + `[1]]`, "prompt"},
		row{chatPath, `"n":1.0`, ""}, row{chatPath, `"options":{}`, ""}, row{chatPath, `"n_predict":null`, ""}, row{chatPath, `"num_ctx":4096`, "num_ctx"}, row{chatPath, `"keep_alive":"5m"`, "keep_alive"},
		row{chatPath, `"ignore_eos":false`, ""}, row{chatPath, `"ignore_eos":true`, "ignore_eos"}, row{chatPath, `"ignore_eos":true,"max_tokens":null`, "ignore_eos"},
		row{chatPath, `"messages":[{"content":"\"n\": 99, max_tokens: -1"}]`, ""}, row{chatPath, `"stream":true`, ""})
	for engine, own := range map[string][]row{
		"llamacpp": {{chatPath, `"max_tokens":0`, ""}, {completions, `"max_tokens":null`, ""}, {chatPath, `"min_keep":0,"n_keep":0,"id_slot":-1,"lora":[ ],"response_fields":[],"n_discard":0`, ""}, {chatPath, `"ignore_eos":true,"max_tokens":32768`, ""}},
		"vllm":     {{chatPath, `"max_tokens":0`, ""}, {completions, `"max_tokens":null`, "max_tokens"}, {chatPath, `"max_tokens":null,"max_completion_tokens":16`, ""}, {chatPath, `"ignore_eos":true,"max_tokens":32768,"min_tokens":32768`, ""}, {chatPath, `"min_tokens":32769`, "min_tokens"}, {chatPath, `"use_beam_search":false,"priority":0`, ""}},
		"ollama":   {{chatPath, `"max_tokens":0`, "max_tokens"}, {completions, `"max_tokens":0`, "max_tokens"}, {responses, `"max_output_tokens":0`, "max_output_tokens"}, {completions, `"max_tokens":null`, ""}},
	} {
		h.limited(levelrail.KeyLimits{RPM: 100000}, func(r *wire.Route) {
			r.Engine, r.Limits.MaxN, r.Limits.MaxPrompts, r.Limits.MaxGenLen = engine, 16, 256, 32768
		})
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

// TestLengthsBind: what is checked is what the engine reads, under whatever name the client sends it; a length that is too
// large is refused with the setting's name, or clamped where a setting says so.
func TestLengthsBind(t *testing.T) {
	h := newHost(t)
	const completions, responses = "/v1/completions", "/v1/responses"
	for engine, rows := range map[string][][3]string{
		"llamacpp": {
			{chatPath, `"max_tokens":5`, `"model":"chat","max_tokens":5`},
			{chatPath, `"max_output_tokens":5`, `"max_completion_tokens":5,"model":"chat","max_output_tokens":5`},
			{chatPath, `"max_completion_tokens":9,"max_tokens":5`, `"model":"chat","max_completion_tokens":5,"max_tokens":5`},
			{responses, `"max_output_tokens":5`, `"model":"chat","max_output_tokens":5`},
		},
		"vllm": {
			{chatPath, `"max_completion_tokens":5`, `"model":"chat","max_completion_tokens":5`},
			{completions, `"max_completion_tokens":5`, `"max_tokens":5,"model":"chat","max_completion_tokens":5`},
			{completions, `"max_tokens":50.0,"max_completion_tokens":5`, `"model":"chat","max_tokens":5,"max_completion_tokens":5`},
			{responses, `"max_tokens":5`, `"max_output_tokens":5,"model":"chat","max_tokens":5`},
		},
		"ollama": {
			{chatPath, `"max_tokens":5`, `"model":"chat","max_tokens":5`},
			{chatPath, `"max_completion_tokens":5`, `"max_tokens":5,"model":"chat","max_completion_tokens":5`},
			{chatPath, `"max_completion_tokens":5,"max_tokens":null`, `"model":"chat","max_completion_tokens":5,"max_tokens":5`},
			{chatPath, `"max_completion_tokens":5,"max_t\u006fkens":7`, `"model":"chat","max_completion_tokens":5,"max_t\u006fkens":5`},
			{completions, `"max_completion_tokens":5`, `"max_tokens":5,"model":"chat","max_completion_tokens":5`},
			{responses, `"max_completion_tokens":5`, `"max_output_tokens":5,"model":"chat","max_completion_tokens":5`},
			{responses, `"max_output_tokens":5`, `"model":"chat","max_output_tokens":5`},
		},
	} {
		h.limited(levelrail.KeyLimits{}, func(r *wire.Route) { r.Engine, r.Limits.MaxGenLen = engine, 100 })
		for _, c := range rows {
			h.sends(engine, c[0], c[1], c[2])
		}
		resp, body := h.do("POST", chatPath, `{"model":"chat","max_tokens":101}`)
		if resp.StatusCode != 400 || !strings.Contains(body, "APP_MODEL_GATEWAY_MAX_GEN_LEN") || !strings.Contains(body, "APP_MODEL_GATEWAY_OVER_GEN_LEN=clamp") {
			t.Errorf("%s: %d %s", engine, resp.StatusCode, body)
		}
		h.limited(levelrail.KeyLimits{}, func(r *wire.Route) {
			r.Engine, r.Limits.MaxGenLen, r.Limits.OverGenLen = engine, 100, "clamp"
		})
		for _, v := range []string{"101", "-1", "1000000000", "4294967295"} {
			h.sends(engine, completions, `"max_tokens":`+v, `"model":"chat","max_tokens":100`)
		}
		for _, v := range []string{`"101"`, "-2", "1e9", "99999999999999999999", "true"} {
			if resp, body := h.do("POST", chatPath, `{"model":"chat","max_tokens":`+v+`}`); resp.StatusCode != 400 {
				t.Errorf("%s: %s was clamped: %d %s", engine, v, resp.StatusCode, body)
			}
		}
	}
	h.limited(levelrail.KeyLimits{}, func(r *wire.Route) {
		r.Engine, r.Limits.MaxGenLen, r.Limits.OverGenLen = "vllm", 100, "clamp"
	})
	h.sends("vllm", completions, `"max_tokens":null`, `"model":"chat","max_tokens":100`)
}

// sends asks with the fields and holds what the engine gets against want.
func (h *host) sends(engine, path, fields, want string) {
	h.t.Helper()
	seen := len(h.engine.requests())
	if resp, body := h.do("POST", path, `{"model":"chat",`+fields+`}`); resp.StatusCode != 200 {
		h.t.Errorf("%s %s {%s}: %d %s", engine, path, fields, resp.StatusCode, body)
	} else if sent := string(h.engine.requests()[seen].body); sent != "{"+want+"}" {
		h.t.Errorf("%s %s {%s}: the engine was sent %s", engine, path, fields, sent)
	}
}

// TestFields: each engine's table holds on the way: what it does not admit reaches no engine, and the answer names the field
// and what it may be. Fields that no table knows follow the setting, and without one the engine's default.
func TestFields(t *testing.T) {
	h := newHost(t)
	ask := func(engine, setting, fields, param string) {
		t.Helper()
		h.limited(levelrail.KeyLimits{}, func(r *wire.Route) { r.Engine, r.Limits.UnknownFields, r.Limits.MaxTextBytes = engine, setting, 1<<20 })
		seen := len(h.engine.requests())
		resp, body := h.do("POST", chatPath, `{"model":"chat",`+fields+`}`)
		want := 400
		switch param {
		case "":
			want = 200
		case "text":
			want, param = 413, ""
		}
		if reached := len(h.engine.requests()) - seen; resp.StatusCode != want || errorParam(body) != param || reached != map[bool]int{true: 1}[want == 200] {
			t.Errorf("%s, %q {%.80s}: %d %s, reached %d", engine, setting, fields, resp.StatusCode, body, reached)
		}
	}
	for _, engine := range []string{"llamacpp", "vllm", "ollama"} {
		for _, setting := range []string{"", "pass", "refuse"} {
			param := ""
			if setting == "refuse" || setting == "" && engine != "ollama" {
				param = "chat_parser"
			}
			ask(engine, setting, `"chat_parser":"x"`, param)
			ask(engine, setting, `"seed":-1,"user":"u","metadata":{"a":1},"stop":["a","b"],"temperature":0.7,"top_p":1,"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}]`, "")
			ask(engine, setting, `"top_logprobs":1000000`, "top_logprobs")
			ask(engine, setting, `"logprobs":1000000`, "logprobs")
			ask(engine, setting, `"stop":["`+strings.Repeat(`a","`, 100)+`"]`, "stop")
			ask(engine, setting, `"logit_bias":{`+strings.Repeat(`"1":1,`, 2000)+`"2":1}`, "logit_bias")
			ask(engine, setting, `"temperature":1e30`, "temperature")
			ask(engine, setting, `"temperature":"0"`, "temperature")
			ask(engine, setting, `"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{"type":"array","minItems":1000000}}}`, "response_format")
			ask(engine, setting, `"messages":[{"role":"user","content":"`+strings.Repeat("a", 1<<20)+`"}]`, "text")
			ask(engine, setting, `"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,`+strings.Repeat("a", 1<<20)+`"}}]}]`, "")
		}
	}
	for _, fields := range []string{`"repeat_last_n":2147483647`, `"dry_penalty_last_n":2147483647`, `"n_probs":1000000`, `"grammar":"root ::= ` + strings.Repeat("(", 30000) + `"`, `"samplers":["` + strings.Repeat(`top_k","`, 100) + `"]`,
		`"dry_sequence_breakers":["` + strings.Repeat(`a","`, 100) + `"]`, `"json_schema":{"type":"string","pattern":"` + strings.Repeat("(", 300) + `"}`, `"chat_format":99`, `"generation_prompt":"x"`, `"grammar_triggers":[]`} {
		name, _, _ := strings.Cut(fields[1:], `"`)
		ask("llamacpp", "", fields, name)
	}
	ask("vllm", "", `"structured_outputs":{"regex":"([a-z]*){900}"}`, "structured_outputs")
	ask("vllm", "", `"guided_regex":"([a-z]*){900}"`, "guided_regex")
	ask("vllm", "", `"structured_outputs":{"choice":["a","b"]}`, "")
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
	h := newHost(t)
	// 1.1 KB/s is enough for a connection not to stand still, and far too little.
	h.limited(levelrail.KeyLimits{}, func(r *wire.Route) { r.Limits.BodyTimeoutSeconds, r.Limits.BodyMinRate = 1, 64<<10 })
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
	if b, _ := io.ReadAll(resp.Body); !strings.Contains(string(b), "65536 bytes") {
		t.Errorf("the refusal does not say what a body may take: %s", b)
	}
	// One that is faster than that has the time it needs.
	fast := h.request("POST", chatPath, "x")
	fast.Body, fast.ContentLength, fast.GetBody = io.NopCloser(io.MultiReader(strings.NewReader(`{"model":"chat","x":"`), &steady{left: 30, every: 50 * time.Millisecond, piece: 8 << 10}, strings.NewReader(`"}`))), -1, nil
	if got, err := httpClient.Do(fast); err != nil || got.StatusCode != 200 {
		t.Errorf("160 KiB a second: %v %v", got, err)
	}
	h.eventually("the slot is free", func() bool { return pooledSlots("chat") == 0 })
}

// steady is letters at a pace.
type steady struct {
	left, piece int
	every       time.Duration
}

func (s *steady) Read(p []byte) (int, error) {
	if s.left == 0 {
		return 0, io.EOF
	}
	s.left--
	time.Sleep(s.every) // the pace is what is tested
	return letters{}.Read(p[:min(len(p), s.piece)])
}
