package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	hosttest "github.com/levelrail/levelrail/test/host"
)

const deployChat = "--name chat --engine llamacpp --model " + hosttest.WeightsPath + " --gpus none --context 8192 --option threads=1"

// stream is an open completion whose events are read in the background.
type stream struct {
	events chan string // data of each event; closed at the end
	err    error       // after events is closed: how the body ended, nil for a proper end
}

func openStream(t *testing.T, h *Host, key, body string) *stream {
	t.Helper()
	res, err := h.Send(context.Background(), "POST", "/v1/chat/completions", key, body)
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != http.StatusOK || !strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		t.Fatalf("a stream was answered with %s %s", res.Status, res.Header.Get("Content-Type"))
	}
	s := &stream{events: make(chan string, 100_000)}
	go func() {
		defer close(s.events)
		defer res.Body.Close()
		sc := bufio.NewScanner(res.Body)
		sc.Buffer(nil, 1<<20)
		for sc.Scan() {
			if data, ok := strings.CutPrefix(sc.Text(), "data: "); ok {
				s.events <- data
			}
		}
		s.err = sc.Err()
	}()
	return s
}

// next waits for the stream's next event; ok is false at its end.
func (s *stream) next(t *testing.T, during string) (string, bool) {
	t.Helper()
	select {
	case e, ok := <-s.events:
		return e, ok
	case <-time.After(time.Minute):
		t.Fatalf("the stream stood still for a minute %s", during)
		return "", false
	}
}

// flows waits for further events: the stream lives.
func (s *stream) flows(t *testing.T, during string) {
	t.Helper()
	for len(s.events) > 0 { // what was read before does not count
		<-s.events
	}
	for range 3 {
		if e, ok := s.next(t, during); !ok || e == "[DONE]" {
			t.Fatalf("the stream ended %s: %v", during, s.err)
		}
	}
}

// finish reads the stream to its end, which must be a proper one with usage, and returns the tokens generated.
func (s *stream) finish(t *testing.T) int {
	t.Helper()
	tokens, last := 0, ""
	for {
		e, ok := s.next(t, "before its end")
		if !ok {
			break
		}
		var chunk struct {
			Usage *struct {
				CompletionTokens int `json:"completion_tokens"`
			}
			Error any
		}
		if e != "[DONE]" {
			if err := json.Unmarshal([]byte(e), &chunk); err != nil || chunk.Error != nil {
				t.Fatalf("event %q: %v", e, err)
			}
			if chunk.Usage != nil {
				tokens = chunk.Usage.CompletionTokens
			}
		}
		last = e
	}
	if last != "[DONE]" || s.err != nil {
		t.Fatalf("the stream was cut: last event %q, %v", last, s.err)
	}
	return tokens
}

// longChat asks for exactly that many tokens: the two tokens that would end the answer are ruled out.
func longChat(tokens int) string {
	return fmt.Sprintf(`{"model":"chat","max_tokens":%d,"logit_bias":{"0":-100,"2":-100},"temperature":0,"stream":true,"stream_options":{"include_usage":true},`+
		`"messages":[{"role":"user","content":"Count from one upwards."}]}`, tokens)
}

// TestStreamOutlivesTheControlPlane: a stream runs to its end through kill -9 of the agent, a restart of the server and a
// reinstall of the agent's package, and the engine is the same process afterwards (C060). The host is then rebooted and
// the model comes back without a hand; and with the control plane stopped the gateway serves, also after its own restart.
func TestStreamOutlivesTheControlPlane(t *testing.T) {
	h := Install(t, hosttest.Bookworm, hosttest.WithEngine(hosttest.LlamaCpp), hosttest.WithWeights())
	key := h.Deploy(deployChat)
	before := h.WaitActive("levelrail-model-chat.service")

	const tokens = 1500
	s := openStream(t, h, key, longChat(tokens))
	s.flows(t, "at first")

	agent := h.WaitActive("levelrail-agent.service")
	h.Kill9(agent.MainPID)
	h.Eventually("a new agent", 30*time.Second, func() error {
		u, err := h.Show(context.Background(), "levelrail-agent.service")
		if err == nil && (u.ActiveState != "active" || u.MainPID == agent.MainPID) {
			err = fmt.Errorf("it is %s with process %d", u.ActiveState, u.MainPID)
		}
		return err
	})
	s.flows(t, "while the agent was killed")

	h.Run("systemctl restart levelrail-server.service")
	h.WaitActive("levelrail-server.service")
	s.flows(t, "while the server was restarted")

	for _, deb := range Debs(t) {
		if strings.Contains(deb, "levelrail-agent_") {
			h.Apt(append([]string{"install", "--reinstall"}, h.CopyDebs(deb)...)...)
		}
	}
	h.WaitActive("levelrail-agent.service")
	s.flows(t, "while the agent's package was reinstalled")
	if got := s.finish(t); got != tokens {
		t.Errorf("the stream brought %d tokens, not the %d asked for", got, tokens)
	}
	if after := h.WaitActive("levelrail-model-chat.service"); after.MainPID != before.MainPID || after.NRestarts != 0 {
		t.Errorf("the engine was restarted: process %d, then %d", before.MainPID, after.MainPID)
	}
	h.WaitReason("chat", "ModelLoaded", time.Minute)

	t.Run("reboot", func(t *testing.T) {
		h.Reboot()
		began := time.Now()
		h.Eventually("the model to serve after the reboot", 2*time.Minute, func() error { return serves(h, key) })
		t.Logf("the model served %.1f s after the reboot", time.Since(began).Seconds())
	})

	t.Run("control plane gone", func(t *testing.T) {
		// After the boot the control plane has to hear from the agent first; until then it says that nothing serves.
		h.WaitReason("chat", "ModelLoaded", time.Minute)
		h.Eventually("the gateway to know it", 5*time.Second, func() error { return serves(h, key) })
		h.Run("systemctl stop levelrail-server.service levelrail-server-api.socket levelrail-server-gateway.socket levelrail-server-agent.socket")
		if err := serves(h, key); err != nil {
			t.Errorf("without a control plane: %v", err)
		}
		h.Run("systemctl restart levelrail-gateway.service")
		h.WaitActive("levelrail-gateway.service")
		h.Eventually("the gateway to serve from its own disk", 20*time.Second, func() error { return serves(h, key) })
		if res, body := h.Ask("POST", "/v1/chat/completions", "lr-wrong", Chat("chat", 1, false)); res.StatusCode != 401 {
			t.Errorf("without a control plane a wrong key got %s %s", res.Status, body)
		}
		h.Run("systemctl start levelrail-server-api.socket levelrail-server-gateway.socket levelrail-server-agent.socket levelrail-server.service")
		h.WaitReason("chat", "ModelLoaded", time.Minute)
	})
}

func serves(h *Host, key string) error {
	res, err := h.Send(context.Background(), "POST", "/v1/chat/completions", key, Chat("chat", 3, false))
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("answered with %s", res.Status)
	}
	return nil
}

// TestUpdateWhileStreaming: an update stops an engine that is answering. The engine does not end in time and is killed:
// that was asked for, so no reason calls it a failure and the wait ends with the new revision.
func TestUpdateWhileStreaming(t *testing.T) {
	h := Install(t, hosttest.Forky, hosttest.WithWeights())
	key := h.Deploy(deployChat)
	s := openStream(t, h, key, longChat(7000))
	s.flows(t, "at first")
	stdout, stderr, code := h.Try("models update chat --context 2048 --wait --timeout 2m")
	if code != 0 {
		t.Fatalf("the update ended with %d\n%s%s", code, stdout, stderr)
	}
	if m := h.Get("chat"); m.Revision != 2 || !m.Condition.Ready {
		t.Errorf("after the update: %+v", m)
	}
	if j := h.Journal("-u", "levelrail-agent"); strings.Contains(j, "reason=EngineFailed") {
		t.Errorf("the agent took the stop for a failure:\n%s", j)
	}
}
