package openai

import (
	"encoding/json"
	"net/http/httptest"
	"testing"
)

// TestErrorShape: refusals have OpenAI's four members, null where there is nothing to say, and the headers of their status.
func TestErrorShape(t *testing.T) {
	for _, c := range []struct {
		err     *Error
		body    string
		headers map[string]string
	}{
		{Refuse(401, CodeInvalidKey, "", "no"), `{"error":{"message":"no","type":"invalid_request_error","param":null,"code":"invalid_api_key"}}`, map[string]string{"WWW-Authenticate": `Bearer realm="levelrail"`}},
		{Refuse(404, CodeModelNotFound, "model", `"x" <no>`), `{"error":{"message":"\"x\" \u003cno\u003e","type":"invalid_request_error","param":"model","code":"model_not_found"}}`, nil},
		{Limited(5), `{"error":{"message":"Too many requests: a limit is reached, of the API key or of the model (APP_MODEL_GATEWAY_MAX_INFLIGHT). Try again later.","type":"rate_limit_error","param":null,"code":"rate_limit_exceeded"}}`, map[string]string{"Retry-After": "5"}},
		{Failed(503, CodeModelLoading, 0, "x"), `{"error":{"message":"x","type":"server_error","param":null,"code":"model_loading"}}`, map[string]string{"Retry-After": ""}},
	} {
		w := httptest.NewRecorder()
		if n := c.err.Write(w); n != w.Body.Len() || w.Code != c.err.Status || w.Body.String() != c.body || !json.Valid(w.Body.Bytes()) {
			t.Errorf("%d %d %s", n, w.Code, w.Body)
		}
		for name, want := range c.headers {
			if got := w.Header().Get(name); got != want {
				t.Errorf("%d: %s %q, want %q", c.err.Status, name, got, want)
			}
		}
	}
	if got := string(Failed(502, CodeEngineFailed, 0, "x").Event()); got != `data: {"error":{"message":"x","type":"server_error","param":null,"code":"engine_error"}}`+"\n\n" {
		t.Errorf("an event is %q", got)
	}
	if got := string(ModelList(nil)); got != `{"object":"list","data":[]}` {
		t.Errorf("an empty listing is %s", got)
	}
}
