package caddymodule

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

// raw sends bytes as they stand and returns the answer. A read that takes longer than limit fails.
func (h *host) raw(limit time.Duration, request string) (*http.Response, string) {
	h.t.Helper()
	conn, err := net.Dial("tcp", "127.0.0.1:"+h.port)
	if err != nil {
		h.t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(limit))
	if _, err := io.WriteString(conn, request); err != nil {
		h.t.Fatal(err)
	}
	method, _, _ := strings.Cut(request, " ")
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, &http.Request{Method: method})
	for err == nil && resp.StatusCode == http.StatusContinue {
		resp, err = http.ReadResponse(r, &http.Request{Method: method})
	}
	if err != nil {
		h.t.Errorf("no answer within %s to %.60q: %v", limit, request, err)
		return &http.Response{Header: http.Header{}}, ""
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		h.t.Errorf("half an answer to %.60q: %v", request, err)
	}
	return resp, string(body)
}

// TestCredentials is case C001: the scheme's case and outer blanks do not matter, the key is exact, everything else is
// 401 in OpenAI's shape.
func TestCredentials(t *testing.T) {
	h := newHost(t)
	k := h.key
	other := strings.ToUpper(k[:1]) + k[1:]
	for _, c := range []struct {
		name, headers string
		status        int
	}{
		{"lower case", "Authorization: bearer " + k, 200},
		{"upper case", "Authorization: BEARER " + k, 200},
		{"two spaces", "Authorization: Bearer  " + k, 200},
		{"a tab after", "Authorization: Bearer " + k + "\t", 200},
		{"a tab between", "Authorization: Bearer\t" + k, 200},
		{"header name in lower case", "authorization: Bearer " + k, 200},
		{"blanks around", "Authorization:   Bearer " + k + "  ", 200},
		{"scheme alone", "Authorization: Bearer", 401},
		{"scheme and blank", "Authorization: Bearer ", 401},
		{"no blank", "Authorization: Bearer" + k, 401},
		{"Basic", "Authorization: Basic " + k, 401},
		{"no scheme", "Authorization: " + k, 401},
		{"a letter's case", "Authorization: Bearer " + other, 401},
		{"a letter more", "Authorization: Bearer " + k + "é", 401},
		{"a curly quote", "Authorization: Bearer \u201c" + k + "\u201d", 401},
		{"broken UTF-8", "Authorization: Bearer \xff\xfe" + k, 401},
		{"two keys", "Authorization: Bearer " + k + ", Bearer " + k, 401},
		{"good and bad", "Authorization: Bearer " + k + "\r\nAuthorization: Bearer lr-bad", 401},
		{"bad and good", "Authorization: Bearer lr-bad\r\nAuthorization: Bearer " + k, 401},
		{"twice the same", "Authorization: Bearer " + k + "\r\nAuthorization: Bearer " + k, 401},
		{"x-api-key beside a bad one", "Authorization: Bearer lr-bad\r\nX-Api-Key: " + k, 401},
		{"x-api-key alone", "X-Api-Key: " + k, 401},
		{"api-key", "Api-Key: " + k, 401},
		{"cookie", "Cookie: api_key=" + k, 401},
		{"nothing", "X-Nothing: 1", 401},
		{"8 KiB", "Authorization: Bearer " + strings.Repeat("x", 8<<10), 401},
	} {
		resp, body := h.raw(5*time.Second, "GET /v1/models HTTP/1.1\r\nHost: x\r\n"+c.headers+"\r\n\r\n")
		if resp.StatusCode != c.status {
			t.Errorf("%s: %d %s, want %d", c.name, resp.StatusCode, body, c.status)
		}
		if c.status == 401 && errorCode(body) != "invalid_api_key" {
			t.Errorf("%s: %s is no error in OpenAI's shape", c.name, body)
		}
	}
	for _, q := range []string{"/v1/models?api_key=" + k, "/v1/models?key=" + k, "http://" + k + "@127.0.0.1/v1/models"} {
		if resp, _ := h.raw(5*time.Second, "GET "+q+" HTTP/1.1\r\nHost: x\r\n\r\n"); resp.StatusCode != 401 {
			t.Errorf("%.30s…: %d, want 401", q, resp.StatusCode)
		}
	}
	for _, r := range h.records() {
		if r["end"] == "panic" {
			t.Errorf("a panic: %v", r)
		}
	}
}

// TestNoSecretsInLogs is case C066 on this side: whatever is done with a key, the log has its first eight characters at
// most, and no body and no query.
func TestNoSecretsInLogs(t *testing.T) {
	h := newHost(t)
	past := h.cp.newKey("key_x", "chat")
	h.cp.revoke("key_x")
	const secretText = "the-client-wrote-this"
	for _, c := range [][2]string{
		{"GET /v1/models?api_key=" + h.key, "Authorization: Bearer " + h.key},
		{"GET /v1/" + h.key, "X-Api-Key: " + h.key},
		{"GET http://" + h.key + "@x/v1/models", "Authorization: Bearer " + h.key + "x"},
		{"GET /v1/models/" + h.key, "Authorization: Bearer " + past},
		{"OPTIONS " + chatPath + "?" + h.key, "Authorization: " + h.key},
		{"GET /v1/models", "X-Request-Id: " + h.key + "!"},
	} {
		if _, body := h.raw(5*time.Second, c[0]+" HTTP/1.1\r\nHost: x\r\n"+c[1]+"\r\n\r\n"); strings.Contains(body, h.key) || strings.Contains(body, past) {
			t.Errorf("an answer holds a key: %s", body)
		}
	}
	h.do("POST", chatPath, `{"model":"`+secretText+`"}`)
	h.do("POST", chatPath, `{"model":"chat","`+secretText+`":1,"`+secretText+`":2}`)
	h.engine.on(func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) })
	h.do("POST", chatPath, `{"model":"chat","prompt":"`+secretText+`"}`, "X-Request-Id", "last")
	h.recordOf("last")
	log := h.log()
	for what, text := range map[string]string{"a key": h.key, "a revoked key": past, "most of a key": h.key[:20], "a body": secretText, "the engine's key": "engine-secret", "a query": "api_key="} {
		if strings.Contains(log, text) {
			t.Errorf("the log holds %s:\n%s", what, log)
		}
	}
}

// TestPreflight is case C002: cross-origin use is not supported, and that is said the same way each time.
func TestPreflight(t *testing.T) {
	h := newHost(t)
	resp, body := h.do("OPTIONS", chatPath, "", "Authorization", "", "Origin", "https://app.example.com", "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "authorization")
	h.refused(resp, body, 405, "method_not_allowed")
	if resp.Header.Get("Allow") != "POST" {
		t.Errorf("Allow %q", resp.Header.Get("Allow"))
	}
	wrong, body := h.do("POST", chatPath, chatBody, "Authorization", "Bearer lr-wrong", "Origin", "https://app.example.com")
	h.refused(wrong, body, 401, "invalid_api_key")
	h.engine.on(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "*")
		w.Header().Set("Server", "uvicorn")
		w.Header().Set("Set-Cookie", "a=b")
		io.WriteString(w, `{}`)
	})
	right, _ := h.do("POST", chatPath, chatBody, "Origin", "https://app.example.com")
	for _, r := range []*http.Response{resp, wrong, right} {
		for name := range r.Header {
			if strings.HasPrefix(name, "Access-Control") || name == "Server" || name == "Set-Cookie" {
				t.Errorf("%d has %s", r.StatusCode, name)
			}
		}
	}
}

// TestModelIDs is case C006: every id that is listed can be fetched, as it stands and as a library escapes it, and gives
// the same object; unknown ids are told from unknown routes.
func TestModelIDs(t *testing.T) {
	h := newHost(t)
	names := []string{"org/name-7b", "org/name-GGUF:Q4_K_M", "hf.co/org/name:Q4_K_M", "llama3.1:8b", "user@place/x"}
	if _, body := h.do("GET", "/v1/models/chat", ""); strings.Contains(body, "context") { // it is not known
		t.Errorf("an entry is %s", body)
	}
	sized := h.route("chat", names...)
	sized.Context = 4096
	h.cp.putRoute(sized)
	h.caughtUp()
	_, body := h.do("GET", "/v1/models", "")
	var list struct {
		Object string
		Data   []json.RawMessage
	}
	if err := json.Unmarshal([]byte(body), &list); err != nil || list.Object != "list" || len(list.Data) != 1+len(names) {
		t.Fatalf("%v: %s", err, body)
	}
	for _, object := range list.Data {
		var m struct {
			ID, Object string
			Created    int64
			OwnedBy    string `json:"owned_by"`
			MaxLen     int64  `json:"max_model_len"`
			Length     int64  `json:"context_length"`
			Window     int64  `json:"context_window"`
		}
		if json.Unmarshal(object, &m); m.Object != "model" || m.Created != 1700000000 || m.OwnedBy == "" || m.MaxLen != 4096 || m.Length != 4096 || m.Window != 4096 {
			t.Errorf("an entry is %s", object)
		}
		node := strings.NewReplacer("/", "%2F", ":", "%3A", "@", "%40").Replace(m.ID) // as encodeURIComponent does
		for _, form := range []string{m.ID, url.PathEscape(m.ID), node, strings.ToLower(node)} {
			if form == strings.ToLower(node) && strings.ToLower(m.ID) != m.ID {
				continue
			}
			resp, got := h.raw(5*time.Second, "GET /v1/models/"+form+" HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+h.key+"\r\n\r\n")
			if resp.StatusCode != 200 || got != string(object) {
				t.Errorf("%s: %d %s, want %s", form, resp.StatusCode, got, object)
			}
		}
	}
	for form, code := range map[string]string{
		"nothing": "model_not_found", "org/other": "model_not_found", "org%2Fother": "model_not_found", "chat/": "unknown_url", "org//name-7b": "unknown_url", "../chat": "unknown_url",
		"org/../chat": "unknown_url", "org%2F..%2Fchat": "unknown_url", "%2e%2e/chat": "unknown_url", "": "unknown_url", "ch%61t": "unknown_url", "chat%00": "unknown_url",
		"chat%20": "unknown_url", "chat%252F": "unknown_url", "/chat": "unknown_url", "%2Fchat": "unknown_url", "./chat": "unknown_url", "chat;x": "unknown_url",
	} {
		resp, got := h.raw(5*time.Second, "GET /v1/models/"+form+" HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+h.key+"\r\n\r\n")
		if resp.StatusCode != 404 || errorCode(got) != code {
			t.Errorf("%q: %d %s, want 404 %s", form, resp.StatusCode, got, code)
		}
	}
	if n := len(h.engine.requests()); n != 0 {
		t.Errorf("the engine was asked %d times", n)
	}
}

// TestPaths: no spelling of a path but the table's own reaches an engine, and what is no path is 400.
func TestPaths(t *testing.T) {
	h := newHost(t)
	for target, status := range map[string]int{
		"/v1/chat/completions": 200, "/v1/chat/completions?x=1;y=2": 200, "/v1/chat/completions?": 200, "http://evil.example.com/v1/chat/completions": 200,
		"/v1/chat/completions/": 404, "/v1/chat/completions.": 404, "//v1/chat/completions": 404, "/v1//chat/completions": 404, "/v1/./chat/completions": 404,
		"/v1/x/../chat/completions": 404, "/V1/Chat/Completions": 404, "/v1/chat%2Fcompletions": 404, "/v1/chat%2fcompletions": 404, "/v1/ch%61t/completions": 404,
		"/v1/%2e%2e/v1/chat/completions": 404, "/v1/chat\\completions": 404, "/v1/chat%5Ccompletions": 404, "/v1/chat/completions%00": 404, "/v1/chat/completions%20": 404,
		"/v1/chat/completions%3Fx=1": 404, "/v1/chat/completions%0d%0aX:1": 404, "/v1/chat/completions;x=1": 404, "/v1/chat/completions#f": 404, "/v1/caf\xc3\xa9": 404,
		"/chat/completions": 404, "/v1/messages": 404, "/v1/chat/completions/control": 404, "/v1/chat/completions/batch": 404, "/v1/load_lora_adapter": 404, "/v1/responses/resp_1": 404,
		"/api/pull": 404, "/metrics": 404, "/props": 404, "/tokenize": 404, "/": 404, "*": 404, "v1/chat/completions": 400, "/v1/%zz": 400,
	} {
		before := len(h.engine.requests())
		resp, body := h.raw(5*time.Second, fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", target, h.key, len(chatBody), chatBody))
		if resp.StatusCode != status {
			t.Errorf("%q: %d %s, want %d", target, resp.StatusCode, body, status)
		}
		if status == 404 && errorCode(body) != "unknown_url" {
			t.Errorf("%q: %s", target, body)
		}
		after := h.engine.requests()
		if status == 200 && (len(after) != before+1 || after[before].target != chatPath) || status != 200 && len(after) != before {
			t.Errorf("%q: the engine saw %v", target, after[before:])
		}
	}
	for _, m := range []string{"GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "post", "BREW", strings.Repeat("M", 40)} {
		resp, _ := h.raw(5*time.Second, m+" "+chatPath+" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		if resp.StatusCode != 405 {
			t.Errorf("%.10s: %d, want 405", m, resp.StatusCode)
		}
	}
}

// TestFraming: whatever framing a client uses, the engine gets the exact bytes with their length.
func TestFraming(t *testing.T) {
	h := newHost(t)
	head := "POST " + chatPath + " HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + h.key + "\r\nContent-Type: application/json\r\n"
	for name, rest := range map[string]string{
		"chunked": fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n5\r\n%s\r\n%x;ext=1\r\n%s\r\n0\r\nX-Trailer: 1\r\n\r\n", chatBody[:5], len(chatBody)-5, chatBody[5:]),
		"both":    fmt.Sprintf("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(chatBody), chatBody),
		"expect":  fmt.Sprintf("Expect: 100-continue\r\nContent-Length: %d\r\n\r\n%s", len(chatBody), chatBody),
	} {
		before := len(h.engine.requests())
		h.raw(5*time.Second, head+rest)
		h.eventually(name+" reaches the engine", func() bool { return len(h.engine.requests()) == before+1 })
		if r := h.engine.requests()[before]; string(r.body) != chatBody || r.length != int64(len(chatBody)) || r.header.Get("X-Trailer") != "" || r.header.Get("Expect") != "" {
			t.Errorf("%s: the engine was sent %d bytes: %s, %v", name, r.length, r.body, r.header)
		}
	}
	for name, rest := range map[string]string{
		"broken chunk": "Transfer-Encoding: chunked\r\n\r\nzz\r\n", "two lengths": "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", "gzip coding": "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
	} {
		if resp, body := h.raw(5*time.Second, head+rest); resp.StatusCode != 400 && resp.StatusCode != 501 {
			t.Errorf("%s: %d %s", name, resp.StatusCode, body)
		}
	}
}
