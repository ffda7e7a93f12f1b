package main

import (
	"strings"
	"testing"
)

// TestReadStream: the demo accepts a stream with text, usage and an end, and says what is missing of another.
func TestReadStream(t *testing.T) {
	const (
		words = "data: {\"choices\":[{\"delta\":{\"content\":\"Par\"}}]}\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"is\"}}]}\n\n"
		usage = "data: {\"choices\":[],\"usage\":{\"total_tokens\":42}}\n\n"
		done  = "data: [DONE]\n\n"
	)
	for _, c := range []struct{ name, stream, wantErr string }{
		{"whole", words + usage + done, ""},
		{"cut", words + usage, "[DONE]"},
		{"no usage", words + done, "usage"},
		{"no text", usage + done, "no text"},
		{"not JSON", "data: {\n\n" + done, "no JSON"},
	} {
		t.Run(c.name, func(t *testing.T) {
			text, tokens, err := readStream(strings.NewReader(c.stream))
			if c.wantErr == "" {
				if err != nil || text != "Paris" || tokens != 42 {
					t.Errorf("got %q, %d, %v", text, tokens, err)
				}
			} else if err == nil || !strings.Contains(err.Error(), c.wantErr) {
				t.Errorf("got error %v, want one about %s", err, c.wantErr)
			}
		})
	}
}
