package hostile

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/levelrail/levelrail/test/e2e"
)

// attacks are bodies with which the holder of one key has taken an engine from everybody, each below "model" and, but for
// chat, a prompt.
func attacks() map[string]string {
	text := func(s string) string {
		b, _ := json.Marshal(s)
		return string(b)
	}
	schema := func(s string) string {
		return `"messages":[{"role":"user","content":"a"}],"max_tokens":64,"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":` + s + `}}`
	}
	const ambiguous = `{"type":"object","properties":{"a":{"$ref":"#/$defs/a"},"%s":{"type":"null"}},"required":["a","%[1]s"]}`
	values := make([]string, 20000)
	for i := range values {
		values[i] = fmt.Sprintf(`"v%d"`, i)
	}
	all := strings.Join(values, ",")
	return map[string]string{
		"a grammar of 30,000 brackets":           `"grammar":` + text("root ::= "+strings.Repeat("(", 30000)),
		"a grammar that is ambiguous within":     `"max_tokens":64,"grammar":` + text(`root ::= "x" root "y" | "x" root "z" | "x" root "w"`),
		"a grammar of 20,000 alternatives":       `"grammar":` + text("root ::= "+strings.ReplaceAll(all, ",", "|")),
		"a large repeat_last_n":                  `"repeat_penalty":1.1,"repeat_last_n":2147483647`,
		"a large dry_penalty_last_n":             `"dry_multiplier":0.8,"dry_penalty_last_n":2147483647`,
		"a million n_probs":                      `"n_probs":1000000`,
		"a million logprobs":                     `"logprobs":1000000`,
		"20,000 sequence breakers":               `"dry_multiplier":0.8,"dry_sequence_breakers":[` + all + `]`,
		"20,000 stops":                           `"stop":[` + all + `]`,
		"50,000 biases":                          `"logit_bias":{` + strings.Repeat(`"5":1,`, 50000) + `"6":1}`,
		"100,000 samplers":                       `"samplers":["` + strings.Repeat(`top_k","`, 100000) + `"]`,
		"1,000 prompts":                          `"prompt":["` + strings.Repeat(`a","`, 1000) + `"]`,
		"4 MB of one word":                       `"prompt":"` + strings.Repeat("a", 4<<20) + `"`,
		"a regular expression as trigger":        `"grammar":"root ::= \"a\"","grammar_lazy":true,"grammar_triggers":[{"type":2,"value":` + text(strings.Repeat("(", 20000)) + `}]`,
		"the parser of another chat format":      `"chat_parser":"{}","chat_format":99`,
		"no end":                                 `"ignore_eos":true`,
		"a schema that is ambiguous within":      schema(`{"$defs":{"a":{"anyOf":[` + fmt.Sprintf(ambiguous, "b") + "," + fmt.Sprintf(ambiguous, "c") + `]}},"$ref":"#/$defs/a"}`),
		"a schema of 20,000 values":              schema(`{"enum":[` + all + `]}`),
		"a schema of a million items":            schema(`{"type":"array","items":{},"minItems":1000000}`),
		"a schema with a pattern of 20,000 ways": schema(`{"type":"string","pattern":"` + strings.Repeat("(", 20000) + `"}`),
		"a million top_logprobs":                 `"messages":[{"role":"user","content":"a"}],"logprobs":true,"top_logprobs":1000000`,
		"200,000 messages":                       `"messages":[` + strings.Repeat(`{"role":"user","content":"a"},`, 200000) + `{"role":"user","content":"b"}]`,
	}
}

// TestBodies: the holder of one key can neither end an engine, nor make it large, nor keep another client's stream waiting,
// with any body that is known to have done so. Each is refused as the client's mistake, in words.
func TestBodies(t *testing.T) {
	t.Parallel()
	w := New(t)
	const unit = "levelrail-model-chat.service"
	other := strings.TrimSpace(w.Run("levelrail models keys create chat --name other --json | jq -r .secret 2>/dev/null || true"))
	if !strings.HasPrefix(other, "lr-") {
		other = w.Key
	}
	memory := func() (mib int64) {
		fmt.Sscan(w.Run("awk '/VmHWM/ {s+=$2} END {print int(s/1024)}' $(systemctl show -P ControlGroup "+unit+" | sed 's|^|/sys/fs/cgroup|; s|$|/cgroup.procs|' | xargs cat | sed 's|.*|/proc/&/status|')"), &mib)
		return mib
	}

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var last, longest, events atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			resp, err := w.Send(ctx, http.MethodPost, "/v1/chat/completions", other, e2e.Chat("chat", 1500, true))
			if err != nil {
				continue
			}
			in := bufio.NewScanner(resp.Body)
			for begin := true; in.Scan(); begin = false {
				now := time.Now().UnixNano()
				if !begin {
					longest.Store(max(longest.Load(), now-last.Load()))
				}
				last.Store(now)
				events.Add(1)
			}
			resp.Body.Close()
		}
	}()
	goesOn := func() {
		was := events.Load()
		w.Eventually("the other client's stream to go on", time.Minute, func() error {
			if events.Load() == was {
				return fmt.Errorf("no event")
			}
			return nil
		})
	}
	goesOn()
	pid, before := w.Run("systemctl show -P MainPID "+unit), memory()
	for what, fields := range attacks() {
		path := "/v1/completions"
		switch {
		case strings.Contains(fields, `"messages":`):
			path = "/v1/chat/completions"
		case !strings.Contains(fields, `"prompt":`):
			fields = `"prompt":"Hi",` + fields
		}
		if !strings.Contains(fields, `"max_tokens":`) && what != "no end" {
			fields = `"max_tokens":10,` + fields
		}
		longest.Store(0)
		ask, stop := context.WithTimeout(context.Background(), 40*time.Second)
		reached := ""
		if resp, err := w.Send(ask, http.MethodPost, path, w.Key, `{"model":"chat",`+fields+`}`); err != nil {
			reached = fmt.Sprintf("no answer: %v", err)
		} else {
			if resp.StatusCode != http.StatusBadRequest && resp.StatusCode != http.StatusRequestEntityTooLarge {
				reached = fmt.Sprintf("the engine: %d", resp.StatusCode)
			}
			resp.Body.Close()
		}
		stop()
		goesOn()
		if now := w.Run("systemctl show -P MainPID " + unit); now != pid {
			reached, pid = "the end of the engine", now
		} else if wait := time.Duration(longest.Load()); wait > 20*time.Second { // far from what a busy machine does to a stream, and below what these did
			reached = fmt.Sprintf("a wait of %s for another stream", wait.Round(time.Millisecond))
		}
		w.Attempt(KeyHolder, what, reached)
	}
	if after := memory(); after > before+256 {
		w.Attempt(KeyHolder, "make the engine large", fmt.Sprintf("%d MiB more", after-before))
	}
	cancel()
	<-done
	// The door is shut to these alone.
	if resp, body := w.Ask(http.MethodPost, "/v1/completions", w.Key, `{"model":"chat","prompt":"Hi","max_tokens":8,"ignore_eos":true,"repeat_last_n":64,"grammar":"root ::= [a-z ]+"}`); resp.StatusCode != 200 {
		t.Errorf("a plain request: %d %s", resp.StatusCode, body)
	}
}
