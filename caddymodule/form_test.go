package caddymodule

import (
	"bytes"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

// upload is a form with a file and, unless it is empty, a model.
func upload(model string) (contentType, body string) {
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	if model != "" {
		w.WriteField("model", model)
	}
	part, _ := w.CreateFormFile("file", "a.wav")
	part.Write(bytes.Repeat([]byte{0, 1, 2, 255}, 10000))
	w.Close()
	return w.FormDataContentType(), b.String()
}

// TestForms: uploads pass byte for byte with their own Content-Type. Their model is looked at where it decides: on the
// shared address, and for a key with allow_models; on a model's own domain it is the engine's business.
func TestForms(t *testing.T) {
	h := newHost(t)
	r := h.route("speech", "openai/whisper-1")
	r.Engine, r.Domain = "test-audio", "speech.example.com"
	h.cp.putRoute(r)
	key := h.cp.newKey("key_speech", "speech")
	narrow := levelrail.NewSecret("lr")
	h.cp.putKey(wire.RouteKey{ID: "key_narrow", SHA256: levelrail.HashSecret(narrow), Prefix: narrow[:8], Models: []string{"speech"}, AllowModels: []string{"speech"}})
	h.caughtUp()
	const path = "/v1/audio/transcriptions"
	for _, c := range []struct {
		name, model, key, host string
		status                 int
		code                   string
	}{
		{"its name", "speech", key, "", 200, ""},
		{"its source", "openai/whisper-1", key, "", 200, ""},
		{"another", "chat", key, "", 404, "model_not_found"},
		{"none", "", key, "", 400, "missing_required_parameter"},
		{"another on the domain", "whatever", key, "speech.example.com", 200, ""},
		{"none on the domain", "", key, "speech.example.com", 200, ""},
		{"allowed", "speech", narrow, "", 200, ""},
		{"not allowed", "openai/whisper-1", narrow, "", 403, "model_not_allowed"},
		{"not allowed on the domain", "openai/whisper-1", narrow, "speech.example.com", 403, "model_not_allowed"},
		{"none, with a list, on the domain", "", narrow, "speech.example.com", 403, "model_not_allowed"},
	} {
		contentType, body := upload(c.model)
		headers := []string{"Authorization", "Bearer " + c.key, "Content-Type", contentType}
		if c.host != "" {
			headers = append(headers, "Host", c.host)
		}
		before := len(h.engine.requests())
		resp, got := h.do("POST", path, body, headers...)
		if resp.StatusCode != c.status || errorCode(got) != c.code {
			t.Errorf("%s: %d %s, want %d %s", c.name, resp.StatusCode, got, c.status, c.code)
		}
		after := h.engine.requests()[before:]
		if c.status == 200 && (len(after) != 1 || string(after[0].body) != body || after[0].header.Get("Content-Type") != contentType || after[0].target != path) || c.status != 200 && len(after) != 0 {
			t.Errorf("%s: the engine was sent %d requests", c.name, len(after))
		}
	}
	for name, contentType := range map[string]string{"JSON": "application/json", "nothing": ""} {
		resp, got := h.do("POST", path, `{"model":"speech"}`, "Authorization", "Bearer "+key, "Content-Type", contentType)
		if resp.StatusCode != 415 {
			t.Errorf("%s on an upload route: %d %s", name, resp.StatusCode, got)
		}
	}
	resp, got := h.do("POST", path, "--x\r\n", "Authorization", "Bearer "+key, "Content-Type", "multipart/form-data; boundary=x")
	h.refused(resp, got, 400, "invalid_body")
}

// TestStalledReader: a client that stops reading is given up after the server's write timeout; its engine is told and its
// slot is free, and meanwhile the engine's silence timeout is not held against the engine.
func TestStalledReader(t *testing.T) {
	h := newHost(t, "write_idle 1m", "write_idle 1500ms")
	r := h.route("chat")
	r.Limits.IdleTimeout = 1
	h.cp.putRoute(r)
	h.caughtUp()
	h.engine.on(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		piece := "data: " + strings.Repeat("x", 60<<10) + "\n\n"
		for r.Context().Err() == nil {
			if _, err := io.WriteString(w, piece); err != nil {
				return
			}
		}
	})
	conn, err := net.Dial("tcp", "127.0.0.1:"+h.port)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nX-Request-Id: stalled\r\nContent-Length: %d\r\n\r\n%s", chatPath, h.key, len(streamBody), streamBody)
	h.engine.leftWithin(t, 8*time.Second)
	if r := h.recordOf("stalled"); r["end"] != "client_gone" {
		t.Errorf("recorded as %v", r)
	}
	h.eventually("the slot is free", func() bool { return pooledSlots("chat") == 0 })
}

// TestManyAtOnce: requests of every kind at the same time, while keys and routes change under them: each gets its own
// answer, and nothing is left taken.
func TestManyAtOnce(t *testing.T) {
	h := newHost(t)
	h.engine.on(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		rc := http.NewResponseController(w)
		for range 5 {
			io.WriteString(w, "data: "+r.Header.Get("Traceparent")+"\n\n")
			rc.Flush()
		}
	})
	stop := make(chan struct{})
	changes := make(chan struct{})
	go func() {
		defer close(changes)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			id := fmt.Sprint("key_churn_", i%10)
			h.cp.newKey(id, "chat")
			h.cp.putRoute(h.route("chat", fmt.Sprint("name-", i)))
			h.cp.revoke(id)
		}
	}()
	results := make(chan error, 200)
	for i := range cap(results) {
		req := h.request("POST", chatPath, streamBody, "Traceparent", fmt.Sprint("request-", i))
		go func() {
			resp, err := httpClient.Do(req)
			if err != nil {
				results <- err
				return
			}
			defer resp.Body.Close()
			b, err := io.ReadAll(resp.Body)
			switch want := strings.Repeat(fmt.Sprintf("data: request-%d\n\n", i), 5); {
			case err != nil:
			case resp.StatusCode == 429:
			case resp.StatusCode != 200 || string(b) != want:
				err = fmt.Errorf("%d %s", resp.StatusCode, b)
			}
			results <- err
		}()
	}
	for range cap(results) {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	close(stop)
	<-changes
	h.eventually("all slots are free", func() bool { return pooledSlots("chat") == 0 })
}
