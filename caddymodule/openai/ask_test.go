package openai

import (
	"strings"
	"testing"
)

// TestAskUsage: exactly the streams that do not ask for usage are changed, at one place, and nothing else of the body is.
func TestAskUsage(t *testing.T) {
	fields := NewFields("model", "stream", "stream_options")
	for body, want := range map[string]string{
		`{"model":"m","stream":true}`:                                                   `{"stream_options":{"include_usage":true},"model":"m","stream":true}`,
		" {\n \"stream\" : true }":                                                      " {\"stream_options\":{\"include_usage\":true},\n \"stream\" : true }",
		`{"stream":true,"stream_options":null,"n":1}`:                                   `{"stream":true,"stream_options":{"include_usage":true},"n":1}`,
		`{"stream":true,"stream_options":{"include_usage":false}}`:                      `{"stream":true,"stream_options":{"include_usage":true}}`,
		`{"stream":true,"stream_options":{"include_usage":null} }`:                      `{"stream":true,"stream_options":{"include_usage":true} }`,
		`{"stream":true,"stream_options":{"continuous_usage_stats":true}}`:              `{"stream":true,"stream_options":{"include_usage":true}}`,
		`{"stream_options":{},"x":{"stream_options":1},"stream":true}`:                  `{"stream_options":{"include_usage":true},"x":{"stream_options":1},"stream":true}`,
		`{"stream":true,"stream_\u006fptions": {}}`:                                     `{"stream":true,"stream_\u006fptions": {"include_usage":true}}`,
		`{"stream":true,"stream_options":{"include_usage":true}}`:                       "asked",
		`{"stream":true,"stream_options":{"include_usage":true,"x":1}}`:                 "asked",
		`{"stream":true,"stream_options":{"include_usage":true,"include_usage":false}}`: `{"stream":true,"stream_options":{"include_usage":true}}`,
		`{"stream":true,"stream_options":{"Include_Usage":false}}`:                      `{"stream":true,"stream_options":{"include_usage":true}}`,
		`{"stream":"on"}`:                     `{"stream_options":{"include_usage":true},"stream":"on"}`,
		`{"stream":true,"stream_options":7}`:  "",
		`{"stream":false}`:                    "",
		`{"stream":null,"stream_options":{}}`: "",
		`{"model":"m"}`:                       "",
		`{}`:                                  "",
	} {
		m, err := Walk([]byte(body), fields)
		if err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		change, asked := AskUsage([]byte(body), m)
		got := ""
		switch {
		case asked:
			got = "asked"
		case change != nil:
			got = body[:change.From] + change.Text + body[change.To:]
		}
		if got != want {
			t.Errorf("%s:\n got %s\nwant %s", body, got, want)
		}
	}
}

const (
	chunk   = `data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"w"},"finish_reason":null}]}`
	finish  = `data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`
	vllm    = `data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[],"usage":{"prompt_tokens":11,"total_tokens":33,"completion_tokens":22}}`
	spaced  = `data:{"choices": [ ], "usage": {"prompt_tokens": 0, "completion_tokens": 0}}`
	text    = `data: {"id":"c","object":"text_completion","created":1,"choices":[{"text":"w","index":0,"finish_reason":null}],"model":"m","system_fingerprint":"fp_ollama"`
	zeros   = `,"usage":{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}`
	quoted  = `data: {"choices":[{"index":0,"delta":{"content":"\"usage\":{\"prompt_tokens\":1} \"choices\":[]"}}]}`
	null    = `data: {"choices":[{"index":0,"text":"w"}],"usage":null}`
	figured = `data: {"choices":[{"index":0,"text":"w"}],"usage":{"prompt_tokens":1,"completion_tokens":2}}`
)

// TestHider: the client gets the very bytes that the engine sends to one that did not ask, however they come in pieces.
func TestHider(t *testing.T) {
	for name, c := range map[string]struct{ asked, plain []string }{
		"vLLM, Ollama chat":       {[]string{chunk, "", finish, "", vllm, "", "data: [DONE]", ""}, []string{chunk, "", finish, "", "data: [DONE]", ""}},
		"blanks":                  {[]string{chunk, "", spaced, "", "data: [DONE]", ""}, []string{chunk, "", "data: [DONE]", ""}},
		"Ollama completions":      {[]string{text + zeros + "}", "", text + zeros + "}", "", vllm, "", "data: [DONE]", ""}, []string{text + "}", "", text + "}", "", "data: [DONE]", ""}},
		"comments":                {[]string{": ping", "", chunk, "", ":", "", vllm, "", ": ping", "", "data: [DONE]", ""}, []string{": ping", "", chunk, "", ":", "", ": ping", "", "data: [DONE]", ""}},
		"other fields":            {[]string{"event: x", "id: 3", chunk, "", vllm, "id: 4", "", "data: [DONE]", ""}, []string{"event: x", "id: 3", chunk, "", "id: 4", "", "data: [DONE]", ""}},
		"a text about usage":      {[]string{quoted, "", null, "", figured, "", vllm, ""}, []string{quoted, "", null, "", figured, "", ""}},
		"an error":                {[]string{`data: {"error":{"message":"usage"}}`, "", "data: [DONE]", ""}, []string{`data: {"error":{"message":"usage"}}`, "", "data: [DONE]", ""}},
		"a long line":             {[]string{"data: " + strings.Repeat("x", 200<<10), "", "data: " + strings.Repeat("y", 300<<10), "", vllm, ""}, []string{"data: " + strings.Repeat("x", 200<<10), "", "data: " + strings.Repeat("y", 300<<10), "", ""}},
		"empty lines":             {[]string{"", "", "", vllm, "", "", ""}, []string{"", "", "", "", ""}},
		"no line end at the end ": {[]string{chunk, "", "data: [DON"}, []string{chunk, "", "data: [DON"}},
	} {
		for _, newline := range []string{"\n", "\r\n", "\r"} {
			asked, plain := strings.Join(c.asked, newline), strings.Join(c.plain, newline)
			for _, piece := range []int{1, 2, 3, 7, 4096, 1 << 20} {
				if piece < 7 && len(asked) > 1<<17 {
					continue
				}
				var h Hider
				var got strings.Builder
				for rest := asked; rest != ""; {
					n := min(piece, len(rest))
					got.Write(h.Pass([]byte(rest[:n])))
					rest = rest[n:]
				}
				got.Write(h.Rest())
				if got.String() != plain {
					t.Errorf("%s, %q, in pieces of %d:\n got %q\nwant %q", name, newline, piece, got.String(), plain)
				}
			}
		}
	}
}

// TestHiderHoldsNothingElse: what is no data goes out at once, with or without the end of its line.
func TestHiderHoldsNothingElse(t *testing.T) {
	var h Hider
	for _, piece := range []string{": pi", "ng\n", "\n", "event: x", "\n", chunk + "\n\n", "data: [DONE]\n"} {
		if got := string(h.Pass([]byte(piece))); got != piece {
			t.Errorf("of %q was passed %q", piece, got)
		}
	}
	if got := string(h.Pass([]byte("dat"))); got != "" {
		t.Errorf("the beginning of data was passed: %q", got)
	}
	if got := string(h.Pass([]byte("e: 1"))); got != "date: 1" {
		t.Errorf("passed: %q", got)
	}
}
