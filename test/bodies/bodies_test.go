package bodies

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/levelrail/levelrail/caddymodule/openai"
	"github.com/levelrail/levelrail/engine"
)

// mostText is the default of APP_MODEL_GATEWAY_MAX_TEXT_BYTES.
const mostText = 2 << 20

// TestLlamaServer and TestOllama: no body that the engine's table admits makes it crash, grow by more than 256 MiB or keep
// another client's stream waiting for 5 s of its own work. The bodies are those of testdata/ENGINE.jsonl and some made from
// the table, as many as FUZZTIME lets pass (make test-long SUITE=bodies); SEED makes the same ones again.
func TestLlamaServer(t *testing.T) { hold(t, "llamacpp", llamaServer) }

// Ollama has no setting for its threads, which spin while they wait: on two processors that others use as well, a prompt of
// 1,600 tokens takes it a minute. It is tried in the long suite, on a machine that does nothing else.
func TestOllama(t *testing.T) {
	if os.Getenv("FUZZTIME") == "" {
		t.Skip("takes minutes: make test-long SUITE=bodies")
	}
	hold(t, "ollama", ollamaServer)
}

func hold(t *testing.T, name string, run func(testing.TB) *process) {
	e, err := engine.Get(name)
	if err != nil {
		t.Fatal(err)
	}
	h := &held{t: t, fields: openai.NewTable(e.Body(), true), p: run(t)}
	h.w = watch(h.p, "/v1/completions", []byte(`{"model":"chat","prompt":"Once upon a time","max_tokens":3000,"stream":true,"ignore_eos":true,"temperature":0.9}`))
	defer func() { h.w.stop() }()
	if err := h.w.reset(2 * time.Minute); err != nil {
		t.Fatal(err)
	}
	for path, body := range corpus(t, name) {
		if !h.admits(body) {
			t.Errorf("the table does not admit a body of the corpus any more: %s %.200s", path, body)
		}
		h.try(path[strings.Index(path, "/"):], body)
	}
	seed := uint64(time.Now().UnixNano())
	fmt.Sscan(os.Getenv("SEED"), &seed)
	many, long := 12, time.Duration(0)
	if s := os.Getenv("FUZZTIME"); s != "" {
		if long, err = time.ParseDuration(s); err != nil {
			t.Fatalf("FUZZTIME: %v", err)
		}
		many = 1 << 30
	} else if os.Getenv("SEED") == "" {
		seed = 1 // a test in passing tries the same ones every time
	}
	t.Logf("SEED=%d", seed)
	m := &maker{Rand: rand.New(rand.NewPCG(seed, 0)), table: e.Body(), model: "chat"}
	begin := time.Now()
	for i := 0; i < many && (long == 0 || time.Since(begin) < long) && h.findings < 20; i++ {
		path, body := m.body()
		if !h.admits(body) {
			h.refused++
			continue
		}
		h.try(path, body)
	}
	t.Attr("bodies", fmt.Sprintf("%d sent to %s in %s, %d answered 200, %d not admitted; most growth %d MiB, longest wait %s", h.sent, name, time.Since(begin).Round(time.Second), h.good, h.refused, h.growth>>20, h.wait.Round(time.Millisecond)))
	t.Logf("%d sent, %d answered 200, %d not admitted; most growth %d MiB, longest wait %s (%s of work)", h.sent, h.good, h.refused, h.growth>>20, h.wait.Round(time.Millisecond), h.work)
	if h.good == 0 && h.sent > 200 { // a busy machine may need longer for each than the client waits
		t.Error("no body was answered with 200")
	}
}

// corpus are the bodies of a file, by number and path.
func corpus(t *testing.T, name string) map[string][]byte {
	f, err := os.Open(filepath.Join("testdata", name+".jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	out := map[string][]byte{}
	in := bufio.NewScanner(f)
	in.Buffer(nil, 4<<20)
	for n := 1; in.Scan(); n++ {
		var line struct {
			Path string          `json:"path"`
			Body json.RawMessage `json:"body"`
		}
		if err := json.Unmarshal(in.Bytes(), &line); err != nil {
			t.Fatalf("%s, line %d: %v", f.Name(), n, err)
		}
		out[fmt.Sprintf("%d%s", n, line.Path)] = line.Body
	}
	return out
}

type held struct {
	t        *testing.T
	fields   *openai.Fields
	p        *process
	w        *watcher
	sent     int
	good     int
	refused  int
	findings int
	growth   int64
	wait     time.Duration
	work     time.Duration
}

func (h *held) admits(body []byte) bool {
	m, err := openai.Walk(body, h.fields)
	return err == nil && m.Check() == nil && openai.TextBytes(body, mostText) <= mostText
}

// try sends a body and looks what it did. What looks bad is tried three times, since the machine may be busy with others.
func (h *held) try(path string, body []byte) {
	h.t.Helper()
	var what string
	for range 3 {
		if what = h.once(path, body); what == "" {
			return
		}
		if h.p.dead() {
			break
		}
	}
	h.findings++
	sum := fnv.New32a()
	sum.Write(body)
	file := filepath.Join(os.TempDir(), fmt.Sprintf("body-%08x.json", sum.Sum32()))
	os.WriteFile(file, body, 0o600)
	h.t.Errorf("POST %s %.400s\n(whole in %s): %s", path, body, file, what)
	if h.p.dead() {
		h.t.Logf("%s", h.p.tail())
	} else {
		h.p.stop()
	}
	h.p.run()
	if err := h.w.reset(2 * time.Minute); err != nil {
		h.t.Fatal(err)
	}
}

// once says what a body did that it may not do.
func (h *held) once(path string, body []byte) string {
	before, begin := h.p.memory("VmRSS"), time.Now()
	h.p.mark()
	h.w.reset(time.Minute)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second) // then the client leaves
	status, size, err := h.p.post(ctx, path, body)
	cancel()
	if err := h.w.goesOn(time.Minute); err != nil && !h.p.dead() {
		return err.Error()
	}
	gap, work := h.w.longest()
	growth := h.p.memory("VmHWM") - before
	h.sent++
	if status == 200 {
		h.good++
	}
	if h.p.dead() {
		return fmt.Sprintf("the engine ended: %v", h.p.cmd.ProcessState)
	}
	if gap > time.Second || growth > mostGrowth/4 || time.Since(begin) > 5*time.Second {
		h.t.Logf("%s: status %d in %s, growth %d MiB, wait %s with %s of work: %s %.160s", time.Now().Format(time.TimeOnly), status, time.Since(begin).Round(time.Millisecond), growth>>20, gap.Round(time.Millisecond), work, path, body)
	}
	h.growth = max(h.growth, growth)
	if gap > h.wait {
		h.wait, h.work = gap, work
	}
	switch {
	case growth > mostGrowth:
		return fmt.Sprintf("the engine grew by %d MiB", growth>>20)
	case gap > mostWait && work > mostWait:
		return fmt.Sprintf("another stream waited for %s, in which the engine worked for %s", gap.Round(time.Millisecond), work)
	case size > 16<<20:
		return fmt.Sprintf("the response has %d MiB (%v)", size>>20, err)
	}
	return ""
}

// TestMaker: the maker's bodies are JSON, and the table admits most of them: else the tests above would try nothing.
func TestMaker(t *testing.T) {
	for _, name := range engine.Names() {
		e, _ := engine.Get(name)
		m := &maker{Rand: rand.New(rand.NewPCG(1, 1)), table: e.Body(), model: "chat"}
		fields, admitted := openai.NewTable(e.Body(), true), 0
		for range 500 {
			_, body := m.body()
			if !json.Valid(body) {
				t.Fatalf("%s: no JSON: %.300s", name, body)
			}
			if v, err := openai.Walk(body, fields); err == nil && v.Check() == nil {
				admitted++
			}
		}
		if admitted < 150 {
			t.Errorf("%s: of 500 bodies the table admits %d", name, admitted)
		}
	}
}

// TestLengthBindsOllama: Ollama does not read max_completion_tokens; with what the gateway writes beside it, it is held to it.
func TestLengthBindsOllama(t *testing.T) {
	p := ollamaServer(t)
	e, _ := engine.Get("ollama")
	for kind, path := range map[string]string{"chat": "/v1/chat/completions", "completions": "/v1/completions", "responses": "/v1/responses"} {
		question := map[string]string{"chat": `"messages":[{"role":"user","content":"Count to one hundred."}]`, "completions": `"prompt":"one two three four"`, "responses": `"input":"Count to one hundred."`}[kind]
		plain := `{"model":"chat","temperature":0,"max_completion_tokens":3,` + question + `}`
		m, err := openai.Walk([]byte(plain), openai.NewTable(e.Body(), true))
		if err != nil {
			t.Fatal(err)
		}
		c := openai.Set([]byte(plain), m, e.Body().Reads[kind][0], "3")
		bound := plain[:c.From] + c.Text + plain[c.To:]
		if n := generated(t, p, path, bound); n != 3 {
			t.Errorf("%s: %d tokens of 3 with %s", path, n, bound)
		}
	}
}

func generated(t *testing.T, p *process, path, body string) int {
	t.Helper()
	resp, err := p.client.Post(p.base+path, "application/json", bytes.NewReader([]byte(body)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var answer struct {
		Usage struct {
			Completion int `json:"completion_tokens"`
			Output     int `json:"output_tokens"`
		} `json:"usage"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || resp.StatusCode != 200 {
		t.Fatalf("%s: %d %v", path, resp.StatusCode, err)
	}
	return answer.Usage.Completion + answer.Usage.Output
}
