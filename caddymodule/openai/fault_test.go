package openai

import "testing"

// TestReadFault: an error response of any shape becomes one that clients with types can read, and keeps what it says.
func TestReadFault(t *testing.T) {
	for body, want := range map[string]string{
		`{"error":{"code":400,"message":"too long","type":"exceed_context_size_error","n_prompt_tokens":3031,"n_ctx":512}}`: `{"error":{"message":"too long","type":"exceed_context_size_error","param":null,"code":null,"n_ctx":512,"n_prompt_tokens":3031}}`,
		`{"error":{"message":"no","type":"BadRequestError","param":"n","code":400}}`:                                        `{"error":{"message":"no","type":"BadRequestError","param":"n","code":null}}`,
		`{"error":{"message":"no","type":"t","param":null,"code":"c"}}`:                                                     `{"error":{"message":"no","type":"t","param":null,"code":"c"}}`,
		`{"error":"no"}`:                       `{"error":{"message":"no","type":"invalid_request_error","param":null,"code":null}}`,
		`{"detail":"Not Found"}`:               `{"error":{"message":"Not Found","type":"invalid_request_error","param":null,"code":null}}`,
		`{"detail":[{"msg":"x"}]}`:             `{"error":{"message":"[{\"msg\":\"x\"}]","type":"invalid_request_error","param":null,"code":null}}`,
		`{"object":"error","message":"no"}`:    `{"error":{"message":"no","type":"invalid_request_error","param":null,"code":null}}`,
		"404 page not found\n":                 `{"error":{"message":"404 page not found","type":"invalid_request_error","param":null,"code":null}}`,
		`<html>`:                               `{"error":{"message":"The model's engine answered Bad Request without saying why.","type":"invalid_request_error","param":null,"code":null}}`,
		``:                                     `{"error":{"message":"The model's engine answered Bad Request without saying why.","type":"invalid_request_error","param":null,"code":null}}`,
		`{"error":null}`:                       `{"error":{"message":"The model's engine answered Bad Request without saying why.","type":"invalid_request_error","param":null,"code":null}}`,
		`{"error":{"message":5,"code":[400]}}`: `{"error":{"message":"The model's engine answered Bad Request without saying why.","type":"invalid_request_error","param":null,"code":null}}`,
	} {
		if got := string(ReadFault(400, []byte(body)).Body()); got != want {
			t.Errorf("%s became %s, want %s", body, got, want)
		}
	}
}

// TestNoFault: what says nothing of an error is left as it is.
func TestNoFault(t *testing.T) {
	for _, body := range []string{`{"usage":{"prompt_tokens":1}}`, `{}`, `{"a":"bc"}`} {
		if e := ReadFault(400, []byte(body)); e != nil {
			t.Errorf("%s became %s", body, e.Body())
		}
	}
}

// TestMenders: a stream's data is changed event by event however it comes in pieces, and everything else of it passes; a
// whole answer is changed once.
func TestMenders(t *testing.T) {
	mend := func(data []byte) []byte { return append([]byte("+"), data...) }
	stream := ": ping\n\nevent: x\ndata: {\"a\":1}\n\ndata:b\r\n\r\ndata: [DONE]\n\n"
	want := ": ping\n\nevent: x\ndata: +{\"a\":1}\n\ndata: +b\r\n\r\ndata: +[DONE]\n\n"
	for size := 1; size < len(stream); size++ {
		var got string
		m := NewMender(mend)
		for at := 0; at < len(stream); at += size {
			got += string(m.Pass([]byte(stream[at:min(at+size, len(stream))])))
		}
		if got += string(m.Rest()); got != want {
			t.Errorf("in pieces of %d: %q", size, got)
		}
		w := NewWholeMender(mend)
		got = ""
		for at := 0; at < len(stream); at += size {
			got += string(w.Pass([]byte(stream[at:min(at+size, len(stream))])))
		}
		if got += string(w.Rest()); got != "+"+stream {
			t.Errorf("whole in pieces of %d: %q", size, got)
		}
	}
	w, large := NewWholeMender(mend), make([]byte, mostWhole)
	if n := len(w.Pass(large)) + len(w.Pass(large)) + len(w.Pass(large)) + len(w.Rest()); n != 3*mostWhole {
		t.Errorf("%d bytes of a large answer pass", n)
	}
}
