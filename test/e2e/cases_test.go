package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	hosttest "github.com/levelrail/levelrail/test/host"
)

// TestCases tries what went wrong for users of similar products, on an installed host.
func TestCases(t *testing.T) {
	h := Install(t, hosttest.Forky, hosttest.WithWeights())
	key := h.Deploy(deployChat)
	t.Run("C001 credentials", func(t *testing.T) { credentials(t, h, key) })
	t.Run("C015 cancel", func(t *testing.T) { cancel(t, h, key) })
	t.Run("C062 json", func(t *testing.T) { jsonOnly(t, h) })
	t.Run("C066 no key anywhere", func(t *testing.T) { noKeyAnywhere(t, h, key) })
}

// credentials: the scheme's case and outer blanks do not matter, the key itself is exact, and whatever else comes is a
// 401 in OpenAI's shape.
func credentials(t *testing.T, h *Host, key string) {
	flip := strings.ToUpper(key[len(key)-1:])
	if flip == key[len(key)-1:] { // a digit: change a letter elsewhere
		i := strings.IndexAny(key[3:], "abcdef") + 3
		flip = key[:i] + strings.ToUpper(key[i:i+1]) + key[i+1:]
	} else {
		flip = key[:len(key)-1] + flip
	}
	for _, c := range []struct {
		name    string
		headers []string // whole lines
		status  int
	}{
		{"bearer", []string{"Authorization: bearer " + key}, 200},
		{"BEARER", []string{"Authorization: BEARER " + key}, 200},
		{"two spaces", []string{"Authorization: Bearer  " + key}, 200},
		{"a tab after", []string{"Authorization: Bearer " + key + "\t"}, 200},
		{"alone", []string{"Authorization: Bearer"}, 401},
		{"Basic", []string{"Authorization: Basic " + key}, 401},
		{"a letter's case", []string{"Authorization: Bearer " + flip}, 401},
		{"é", []string{"Authorization: Bearer " + key + "é"}, 401},
		{"a curly quote", []string{"Authorization: Bearer ”" + key + "”"}, 401},
		{"good and bad", []string{"Authorization: Bearer " + key, "Authorization: Bearer lr-bad"}, 401},
		{"bad and good", []string{"Authorization: Bearer lr-bad", "Authorization: Bearer " + key}, 401},
		{"bad beside x-api-key", []string{"Authorization: Bearer lr-bad", "x-api-key: " + key}, 401},
		{"none", nil, 401},
	} {
		status, body := raw(t, h, "GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1:7421\r\nConnection: close\r\n"+lines(c.headers)+"\r\n")
		if status != c.status {
			t.Errorf("%s: %d %s, want %d", c.name, status, body, c.status)
		}
		var e struct {
			Error struct{ Message, Type, Code string }
		}
		if c.status == 401 && (json.Unmarshal([]byte(body), &e) != nil || e.Error.Message == "" || e.Error.Type == "" || e.Error.Code != "invalid_api_key") {
			t.Errorf("%s: the body is not an error in OpenAI's shape: %s", c.name, body)
		}
	}
	if j := h.Journal("-u", "levelrail-gateway"); strings.Contains(j, "panic") {
		t.Errorf("the gateway panicked:\n%s", j)
	}
}

func lines(headers []string) string {
	if len(headers) == 0 {
		return ""
	}
	return strings.Join(headers, "\r\n") + "\r\n"
}

// raw sends bytes as they are and returns the status and the body of the answer.
func raw(t *testing.T, h *Host, request string) (int, string) {
	t.Helper()
	conn, err := h.Dial("tcp", "127.0.0.1:7421")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := conn.Write([]byte(request)); err != nil {
		t.Fatal(err)
	}
	return readAnswer(t, conn)
}

func readAnswer(t *testing.T, conn net.Conn) (int, string) {
	t.Helper()
	var b strings.Builder
	buf := make([]byte, 4096)
	for {
		n, err := conn.Read(buf)
		b.Write(buf[:n])
		if err != nil {
			break
		}
	}
	head, body, _ := strings.Cut(b.String(), "\r\n\r\n")
	var status int
	if _, err := fmt.Sscanf(head, "HTTP/1.1 %d", &status); err != nil {
		t.Fatalf("no answer: %q", b.String())
	}
	if strings.Contains(strings.ToLower(head), "transfer-encoding: chunked") {
		body = dechunk(body)
	}
	return status, body
}

func dechunk(s string) string {
	var b strings.Builder
	for {
		size, rest, ok := strings.Cut(s, "\r\n")
		var n int
		if _, err := fmt.Sscanf(size, "%x", &n); !ok || err != nil || n == 0 || n > len(rest) {
			return b.String()
		}
		b.WriteString(rest[:n])
		s = strings.TrimPrefix(rest[n:], "\r\n")
	}
}

// cancel: an engine stops generating within about a second of its client's leaving, for a stream and for a whole answer.
func cancel(t *testing.T, h *Host, key string) {
	// An engine that generates uses its one thread whole, so its clock tells. Asking its /metrics would not do: llama.cpp
	// looks for clients that left only once no answer of any kind was ready for a second.
	pid := h.WaitActive("levelrail-model-chat.service").MainPID
	busy := func() error {
		out := h.Run(fmt.Sprintf(`t() { awk '{print $14+$15}' /proc/%d/stat; }; a=$(t); sleep 0.3; echo $(( $(t) - a ))`, pid))
		if ticks, err := strconv.Atoi(strings.TrimSpace(out)); err != nil || ticks > 5 {
			return fmt.Errorf("it used %s hundredths of a second in three tenths", strings.TrimSpace(out))
		}
		return nil
	}
	for _, streaming := range []bool{true, false} {
		ctx, leave := context.WithCancel(context.Background())
		body := strings.Replace(longChat(4000), `"stream":true,"stream_options":{"include_usage":true}`, fmt.Sprintf(`"stream":%v`, streaming), 1)
		done := make(chan struct{})
		go func() {
			defer close(done)
			res, err := h.Send(ctx, "POST", "/v1/chat/completions", key, body)
			if err == nil {
				buf := make([]byte, 512)
				for err == nil {
					_, err = res.Body.Read(buf)
				}
				res.Body.Close()
			}
		}()
		h.Eventually("the engine to be busy", 20*time.Second, func() error {
			if busy() == nil {
				return fmt.Errorf("it is idle")
			}
			return nil
		})
		leave()
		left := time.Now()
		<-done
		h.Eventually("the engine to be idle", 10*time.Second, busy)
		t.Logf("stream %v: idle %.2f s after the client left", streaming, time.Since(left).Seconds())
	}
	if res, body := h.Ask("POST", "/v1/chat/completions", key, Chat("chat", 2, false)); res.StatusCode != http.StatusOK {
		t.Errorf("after that: %s %s", res.Status, body)
	}
}

// jsonOnly: with --json standard output is one JSON document whatever happens, errors included, and a closed pipe is
// quiet.
func jsonOnly(t *testing.T, h *Host) {
	for _, args := range []string{
		"status --json", "version --json", "models list --json", "models get chat --json", "models keys list chat --json", "nodes list --json", "tokens list --json",
		"models get nothing --json", "models deploy --json --no-wait --name X --engine llamacpp --model org/x-GGUF",
		"models deploy --json --wait --timeout 2s --name hub --engine llamacpp --gpus none --model org/missing-GGUF",
	} {
		stdout, stderr, code := h.Try(args)
		d := json.NewDecoder(strings.NewReader(stdout))
		var v any
		if err := d.Decode(&v); err != nil && code == 0 {
			t.Errorf("levelrail %s (exit %d): standard output is no JSON: %v\n%s\n%s", args, code, err, stdout, stderr)
		}
		if d.More() {
			t.Errorf("levelrail %s: more than one document:\n%s", args, stdout)
		}
		if strings.Contains(stdout+stderr, "\x1b[") {
			t.Errorf("levelrail %s: colour codes without a terminal", args)
		}
		if code != 0 && !strings.Contains(stdout+stderr, `"kind"`) {
			t.Errorf("levelrail %s (exit %d): the error is not machine-readable:\n%s\n%s", args, code, stdout, stderr)
		}
	}
	if out := h.Run(`set +o pipefail; levelrail models list 2>&1 >/dev/full || true; levelrail models logs chat -n 1000 2>&1 | head -1 >/dev/null; levelrail models list 2>&1 | true`); strings.Contains(out, "panic") || strings.Contains(out, "broken pipe") {
		t.Errorf("a closed pipe is not quiet: %s", out)
	}
	h.Try("models delete hub --yes")
}

// noKeyAnywhere: after creation the whole key is nowhere: not in answers, the journal, the data of any daemon, nor in the
// log when it came in the wrong place.
func noKeyAnywhere(t *testing.T, h *Host, key string) {
	var second struct{ Secret, ID string }
	h.JSON(&second, "models keys create chat --name second")
	h.Eventually("the new key to open its model", time.Second, func() error {
		if res, _ := h.Ask("GET", "/v1/models", second.Secret, ""); res.StatusCode != 200 {
			return fmt.Errorf("it got %s", res.Status)
		}
		return nil
	})
	h.CLI("models keys revoke chat " + second.ID + " --yes")
	h.Eventually("the revoked key to be refused", 2*time.Second, func() error {
		if res, _ := h.Ask("GET", "/v1/models", second.Secret, ""); res.StatusCode != 401 {
			return fmt.Errorf("it got %s", res.Status)
		}
		return nil
	})
	h.Ask("GET", "/v1/models?api_key="+key, "", "")
	h.Ask("GET", "/v1/models?key="+key, key+"x", "")
	raw(t, h, "GET http://user:"+key+"@127.0.0.1:7421/v1/models HTTP/1.1\r\nHost: 127.0.0.1:7421\r\nConnection: close\r\n\r\n")
	h.Ask("POST", "/v1/chat/completions", key, `{"model": `)
	for _, k := range []string{key, second.Secret} {
		bare := strings.TrimPrefix(k, "lr-")
		if out := h.Run("journalctl --no-pager -o export | grep -c -a -F " + bare + " || true"); strings.TrimSpace(out) != "0" {
			t.Errorf("the journal holds a key %s times", strings.TrimSpace(out))
		}
		if out := h.Run("grep -r -l -a -F " + bare + " /var/lib/levelrail/server /var/lib/levelrail/gateway /var/lib/levelrail/agent /run/levelrail /run/levelrail-agent /etc/systemd/system /etc/levelrail /var/log 2>/dev/null || true"); out != "" {
			t.Errorf("a key lies in %s", out)
		}
		for _, args := range []string{"models get chat --json", "models keys list chat --json", "models list --json"} {
			if out, _ := h.CLI(args); strings.Contains(out, bare) {
				t.Errorf("levelrail %s shows a key", args)
			}
		}
	}
	engineKey := strings.TrimSpace(h.Run("cat /var/lib/levelrail/agent/credentials/chat/engine-key"))
	_, secret, _ := strings.Cut(engineKey, "-")
	out, errText, err := h.ExecInput(t.Context(), strings.NewReader(secret+"\n"), `umask 077; cat >/root/pattern
cat /proc/[0-9]*/cmdline | tr '\0' '\n' | grep -c -F -f /root/pattern
systemctl show 'levelrail-model-*' | grep -c -F -f /root/pattern
journalctl --no-pager -o export | grep -c -a -F -f /root/pattern
grep -r -l -F -f /root/pattern /etc/systemd | wc -l`)
	if err != nil || strings.Join(strings.Fields(out), " ") != "0 0 0 0" {
		t.Log(errText, err)
		t.Errorf("the engine's key shows in a command line or unit: %q", out)
	}
}
