package openai

import (
	"strings"
	"testing"
)

// TestEstimatePrompt: a prompt's estimate follows what an engine reads of a body, and nothing else of it.
func TestEstimatePrompt(t *testing.T) {
	text := strings.Repeat("word ", 1000)
	for name, c := range map[string]struct {
		body        string
		least, most int64
	}{
		"text":            {`{"model":"chat","prompt":"` + text + `"}`, 1250, 1250},
		"messages":        {`{"messages":[{"role":"user","content":"` + text + `"},{"role":"user","content":[{"type":"text","text":"` + text + `"}]}]}`, 2500, 2530},
		"tokens":          {`{"input":[[1,22,333],[-4,5]]}`, 5, 5},
		"a list":          {`{"input":["` + text + `","` + text + `"]}`, 2500, 2500},
		"reranking":       {`{"query":"` + text + `","documents":["` + text + `",{"text":"` + text + `"}]}`, 3750, 3760},
		"escaped":         {`{"prompt":"` + strings.Repeat(`\u4e2d`, 400) + strings.Repeat(`\n`, 400) + `"}`, 400, 400},
		"a picture":       {`{"messages":[{"content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,` + strings.Repeat("QUFB", 100000) + `"}}]}]}`, 1000, 1030},
		"a sound":         {`{"messages":[{"content":[{"type":"input_audio","input_audio":{"data":"` + strings.Repeat("QUFB", 100000) + `"}}]}]}`, 1000, 1030},
		"no prompt of it": {`{"model":"chat","logit_bias":{"1":5},"grammar":"` + text + `","user":"` + text + `"}`, 0, 0},
		"not JSON":        {`--boundary`, 0, 0},
	} {
		if n := EstimatePrompt([]byte(c.body)); n < c.least || n > c.most {
			t.Errorf("%s: %d tokens, want %d to %d", name, n, c.least, c.most)
		}
	}
}
