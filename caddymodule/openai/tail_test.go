package openai

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"strings"
	"testing"
)

// testScan is the control plane's default bound.
const testScan = 16 << 10

const usageEvent = `data: {"choices":[],"usage":{"prompt_tokens":11,"completion_tokens":22,"total_tokens":33}}`

// choiceUsage is an event that says what one choice has cost up to now.
func choiceUsage(index, input, output int) string {
	return fmt.Sprintf(`data: {"choices":[{"text":"w","index":%d}],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}`+"\n\n", index, input, output)
}

// TestTailStreams is the reader's half of case C016: the usage of a stream is found whatever surrounds it and however its
// bytes are cut into pieces.
func TestTailStreams(t *testing.T) {
	for name, c := range map[string]struct {
		stream  string
		in, out int64
		found   bool
		failed  bool
		done    bool
	}{
		"plain":             {usageEvent + "\n\ndata: [DONE]\n\n", 11, 22, true, false, true},
		"CRLF":              {usageEvent + "\r\n\r\ndata: [DONE]\r\n\r\n", 11, 22, true, false, true},
		"CR":                {usageEvent + "\r\rdata: [DONE]\r\r", 11, 22, true, false, true},
		"no blank":          {strings.Replace(usageEvent, "data: ", "data:", 1) + "\n\ndata:[DONE]\n\n", 11, 22, true, false, true},
		"comment between":   {usageEvent + "\n\n: ping\n\n:\n\ndata: [DONE]\n\n", 11, 22, true, false, true},
		"named events":      {"event: x\nid: 3\nretry: 5\n" + usageEvent + "\n\n", 11, 22, true, false, false},
		"no last line end":  {"data: {}\n\n" + usageEvent, 11, 22, true, false, false},
		"after a long line": {"data: \"" + strings.Repeat("x", 200<<10) + "\"\n\n" + usageEvent + "\n\n", 11, 22, true, false, false},
		"after a huge line": {"data: \"" + strings.Repeat("x", 300<<10) + "\"\n\n" + usageEvent + "\n\n", 11, 22, true, false, false},
		"zeros, then truth": {`data: {"choices":[{}],"usage":{"prompt_tokens":0,"completion_tokens":0}}` + "\n\n" + usageEvent + "\n\n", 11, 22, true, false, false},
		"null, then truth":  {`data: {"choices":[{}],"usage":null}` + "\n\n" + usageEvent + "\n\n", 11, 22, true, false, false},
		"truth, then null":  {usageEvent + "\n\n" + `data: {"choices":[{}],"usage":null}` + "\n\n", 11, 22, true, false, false},
		"none":              {"data: {\"choices\":[]}\n\ndata: [DONE]\n\n", 0, 0, false, false, true},
		"said in a text":    {`data: {"choices":[{"delta":{"content":"\"usage\":{\"prompt_tokens\":1}"}}]}` + "\n\n", 0, 0, false, false, false},
		"in a comment":      {": " + usageEvent[6:] + "\n\n", 0, 0, false, false, false},
		"responses":         {"event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"id\":\"r\",\"usage\":{\"input_tokens\":5,\"output_tokens\":6}}}\n\n", 5, 6, true, false, false},
		"long, usage last":  {"data: {\"type\":\"response.completed\",\"response\":{\"output\":\"" + strings.Repeat("x", 50<<10) + "\",\"usage\":{\"input_tokens\":5,\"output_tokens\":6}}}\n\n", 5, 6, true, false, false},
		"long, usage first": {"data: {\"type\":\"response.completed\",\"response\":{\"usage\":{\"input_tokens\":5,\"output_tokens\":6},\"output\":\"" + strings.Repeat("x", 50<<10) + "\"}}\n\n", 5, 6, true, false, false},
		"long, a choice":    {strings.Replace(choiceUsage(0, 11, 2), `"w"`, `"`+strings.Repeat("w", 50<<10)+`"`, 1) + choiceUsage(1, 11, 3) + choiceUsage(1, 11, 4), 22, 6, true, false, false},
		"a long error":      {`data: {"error":{"message":"` + strings.Repeat("x", 50<<10) + `"}}` + "\n\n", 0, 0, false, true, false},
		"of each choice":    {choiceUsage(0, 11, 2) + choiceUsage(1, 11, 3) + choiceUsage(1, 11, 4), 22, 6, true, false, false},
		"of each, then all": {choiceUsage(0, 11, 2) + choiceUsage(1, 11, 3) + usageEvent + "\n\n", 11, 22, true, false, false},
		"an event a choice": {usageEvent + "\n\n" + usageEvent + "\n\ndata: [DONE]\n\n", 22, 44, true, false, true},
		"timings":           {"data: {\"choices\":[{\"index\":0,\"finish_reason\":\"stop\"}],\"timings\":{\"cache_n\":4,\"prompt_n\":7,\"prompt_ms\":1.5,\"predicted_n\":22}}\n\n", 11, 22, true, false, false},
		"usage and timings": {strings.Replace(usageEvent, "}}", "},\"timings\":{\"prompt_n\":1,\"predicted_n\":1}}", 1) + "\n\n", 11, 22, true, false, false},
		"messages": {"data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":5,\"cache_read_input_tokens\":6,\"output_tokens\":1}}}\n\n" +
			"data: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":22}}\n\n", 11, 22, true, false, false},
		"an error":           {"data: {\"error\": {\"message\": \"EngineCore encountered an issue.\", \"code\": 500}}\n\ndata: [DONE]\n\n", 0, 0, false, true, true},
		"no error":           {"data: {\"error\":null,\"choices\":[]}\n\n", 0, 0, false, false, false},
		"an error in a text": {`data: {"choices":[{"delta":{"content":"\"error\""}}]}` + "\n\n", 0, 0, false, false, false},
		"negative":           {`data: {"usage":{"prompt_tokens":-1,"completion_tokens":"7"}}` + "\n\n", 0, 0, false, false, false},
		"empty":              {"", 0, 0, false, false, false},
	} {
		for _, piece := range []int{1, 2, 3, 7, 4096, 1 << 20} {
			tail := NewTail("text/event-stream; charset=utf-8", "", testScan)
			for s := c.stream; s != ""; {
				n := min(piece, len(s))
				tail.Write([]byte(s[:n]))
				s = s[n:]
			}
			seen := tail.End()
			if (seen.Usage != nil) != c.found || c.found && (seen.Usage.Input != c.in || seen.Usage.Output != c.out) || seen.EngineError != c.failed || seen.Done != c.done {
				t.Errorf("%s in pieces of %d: %+v %+v", name, piece, seen, seen.Usage)
			}
		}
	}
}

// TestTailBorder: an event may be added only where one has ended.
func TestTailBorder(t *testing.T) {
	tail := NewTail("text/event-stream", "", testScan)
	for _, s := range []struct {
		write  string
		border bool
	}{{"", true}, {"data: a", false}, {"b\n", true}, {"\n", true}, {": pi", false}, {"ng\r\n\r\n", true}} {
		tail.Write([]byte(s.write))
		if tail.Border() != s.border {
			t.Errorf("after %q: border %v", s.write, tail.Border())
		}
	}
	if NewTail("application/json", "", testScan).Border() {
		t.Error("a JSON answer has no borders")
	}
}

// TestTailBodies: the usage of a whole answer is its own top-level one, in a short and in a long body.
func TestTailBodies(t *testing.T) {
	long := strings.Repeat(`{"embedding":[0.1,0.2,0.3,0.4],"index":0},`, 10000)
	for name, c := range map[string]struct {
		body, encoding string
		in, out        int64
		found          bool
	}{
		"chat":              {`{"choices":[{"message":{"content":"hi"}}],"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7},"timings":{}}`, "", 3, 4, true},
		"responses":         {`{"id":"r","output":[],"usage":{"input_tokens":3,"output_tokens":4}}`, "identity", 3, 4, true},
		"embeddings, long":  {`{"object":"list","data":[` + long + `{}],"usage":{"prompt_tokens":9,"total_tokens":9}}`, "", 9, 0, true},
		"long, usage first": {`{"usage":{"prompt_tokens":9,"total_tokens":9},"data":[` + long + `{}],"text":"\"usage\":{\"prompt_tokens\":5}"}`, "", 9, 0, true},
		"in the middle":     {`{"data":[` + long + `{}],"usage" : {"prompt_tokens":9,"total_tokens":9}, "more":[` + long + `{"usage":{"prompt_tokens":1}}]}`, "", 9, 0, true},
		"after a text":      {`{"text":"` + strings.Repeat(`\\\"usage\":{`, 10000) + `\\","usage":{"prompt_tokens":9}}`, "", 9, 0, true},
		"reranking":         {`{"usage":{"prompt_tokens":9,"total_tokens":9},"results":[` + long + `{"index":0}]}`, "", 9, 0, true},
		"the sum alone":     {`{"usage":{"total_tokens":9},"results":[]}`, "", 9, 0, true},
		"transcription":     {`{"text":"` + strings.Repeat("x", 50000) + `","usage":{"type":"tokens","input_tokens":3,"output_tokens":4,"total_tokens":7}}`, "", 3, 4, true},
		"said twice":        {`{"usage":{"prompt_tokens":1},"usage":{"prompt_tokens":9}}`, "", 0, 0, false},
		"too large":         {`{"usage":{"prompt_tokens":9223372036854775807,"completion_tokens":1e300}}`, "", 0, 0, false},
		"endless usage":     {`{"usage":{"x":"` + strings.Repeat("x", 50000) + `","prompt_tokens":3}}`, "", 0, 0, false},
		"said in it":        {`{"choices":[{"message":{"content":"\"usage\":{\"prompt_tokens\":5}"}}]}`, "", 0, 0, false},
		"nested":            {`{"choices":[{"usage":{"prompt_tokens":5}}]}`, "", 0, 0, false},
		"null":              {`{"usage":null}`, "", 0, 0, false},
		"compressed":        {`{"usage":{"prompt_tokens":3}}`, "gzip", 0, 0, false},
		"cut after it":      {`{"usage":{"prompt_tokens":3},"data":[`, "", 3, 0, true},
		"cut in it":         {`{"usage":{"prompt_tokens":3`, "", 0, 0, false},
		"a list":            {`[{"usage":{"prompt_tokens":3}}]`, "", 0, 0, false},
		"an error":          {`{"error":{"message":"no"}}`, "", 0, 0, false},
		"seconds of speech": {`{"text":"hi","usage":{"type":"duration","seconds":3}}`, "", 0, 0, false},
	} {
		for _, piece := range []int{1, 7, 1000, 1 << 20} {
			tail := NewTail("application/json", c.encoding, testScan)
			for s := c.body; s != ""; {
				n := min(piece, len(s))
				tail.Write([]byte(s[:n]))
				s = s[n:]
			}
			if held := cap(tail.part) + cap(tail.short.out); held > 8*testScan {
				t.Errorf("%s: %d bytes are held", name, held)
			}
			seen := tail.End()
			if (seen.Usage != nil) != c.found || c.found && (seen.Usage.Input != c.in || seen.Usage.Output != c.out) {
				t.Errorf("%s in pieces of %d: %+v", name, piece, seen.Usage)
			}
			if tail.part != nil || tail.held != nil || tail.room != nil || tail.short.out != nil {
				t.Errorf("%s: something is held after the end", name)
			}
		}
	}
}

// TestTailOff: with a bound of 0 no tokens are counted, and an engine's error is seen all the same.
func TestTailOff(t *testing.T) {
	for kind, answer := range map[string]string{"text/event-stream": usageEvent + "\n\ndata: {\"error\":{}}\n\n", "application/json": `{"usage":{"prompt_tokens":1}}`} {
		tail := NewTail(kind, "", 0)
		tail.Write([]byte(answer))
		if seen := tail.End(); seen.Usage != nil || seen.EngineError != (kind == "text/event-stream") {
			t.Errorf("%s: %+v", kind, seen)
		}
	}
}

// TestTailCompressed: the usage of an answer that is compressed although the gateway asks for none is found in a copy, also
// when the copy is cut; what cannot be decoded says nothing.
func TestTailCompressed(t *testing.T) {
	var stream, body bytes.Buffer
	z := gzip.NewWriter(&stream)
	io.WriteString(z, usageEvent+"\n\n")
	z.Flush()
	cut := stream.Len()
	io.WriteString(z, "data: [DONE]\n\n")
	z.Close()
	z = gzip.NewWriter(&body)
	io.WriteString(z, `{"usage":{"prompt_tokens":11,"completion_tokens":22}}`)
	z.Close()
	for name, c := range map[string]struct {
		kind, encoding string
		bytes          []byte
		found          bool
	}{
		"stream":     {"text/event-stream", "gzip", stream.Bytes(), true},
		"cut stream": {"text/event-stream", "gzip", stream.Bytes()[:cut], true},
		"body":       {"application/json", "GZip", body.Bytes(), true},
		"not gzip":   {"application/json", "gzip", []byte(`{"usage":{"prompt_tokens":11}}`), false},
		"nothing":    {"application/json", "gzip", nil, false},
		"brotli":     {"application/json", "br", []byte{1, 2, 3}, false},
	} {
		tail := NewTail(c.kind, c.encoding, testScan)
		for _, b := range c.bytes {
			tail.Write([]byte{b})
		}
		seen := tail.End()
		if (seen.Usage != nil) != c.found || c.found && *seen.Usage != (Usage{11, 22}) {
			t.Errorf("%s: %+v", name, seen)
		}
	}
}

// BenchmarkTailOneByteLines is the worst that an engine can do to the reader; it stays in proportion to the bytes.
func BenchmarkTailOneByteLines(b *testing.B) {
	lines := []byte(strings.Repeat("\r", 32<<10))
	tail := NewTail("text/event-stream", "", testScan)
	b.SetBytes(int64(len(lines)))
	for b.Loop() {
		tail.Write(lines)
	}
}

// BenchmarkTail is what reading along costs per event of a stream.
func BenchmarkTail(b *testing.B) {
	event := []byte(`data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"chat","choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}` + "\n\n")
	tail := NewTail("text/event-stream", "", testScan)
	b.SetBytes(int64(len(event)))
	b.ReportAllocs()
	for b.Loop() {
		tail.Write(event)
	}
}

// TestTailAllocates: reading an answer along costs the reader itself and nothing more, whole or streamed, read in one piece or
// in pieces that cut lines.
func TestTailAllocates(t *testing.T) {
	event := `data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}` + "\n\n"
	body := `{"choices":[{"message":{"content":"` + strings.Repeat("word ", 10000) + `"}}],"usage":{"prompt_tokens":3,"completion_tokens":4}}`
	for name, c := range map[string]struct{ kind, answer string }{
		"short body": {"application/json", `{"choices":[{"message":{"content":"hi"}}],"usage":{"prompt_tokens":3,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":1}}}`},
		"long body":  {"application/json", body},
		"stream":     {"text/event-stream", strings.Repeat(event, 50) + usageEvent + "\n\ndata: [DONE]\n\n"},
	} {
		for _, piece := range []int{100, 1000, 32 << 10} {
			all := []byte(c.answer)
			read := func() {
				tail := NewTail(c.kind, "", testScan)
				for rest := all; len(rest) > 0; {
					n := min(piece, len(rest))
					tail.Write(rest[:n])
					rest = rest[n:]
				}
				if tail.End().Usage == nil {
					t.Fatal("no usage")
				}
			}
			read()
			if n := testing.AllocsPerRun(100, read); n > 1 && !raced {
				t.Errorf("%s in pieces of %d: %v allocations", name, piece, n)
			}
		}
	}
}

// BenchmarkTailBody is what reading along a whole answer costs.
func BenchmarkTailBody(b *testing.B) {
	for _, size := range []int{1 << 10, 100 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			body := []byte(`{"choices":[{"message":{"content":"` + strings.Repeat("word ", size/5) + `"}}],"usage":{"prompt_tokens":3,"completion_tokens":4}}`)
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				tail := NewTail("application/json", "", testScan)
				for rest := body; len(rest) > 0; {
					n := min(32<<10, len(rest))
					tail.Write(rest[:n])
					rest = rest[n:]
				}
				tail.End()
			}
		})
	}
}

// BenchmarkTailKinds reads whole answers of 100 KiB as they pass, in the pieces in which they come.
func BenchmarkTailKinds(b *testing.B) {
	for name, body := range map[string]string{
		"text":       `{"choices":[{"message":{"content":"` + strings.Repeat(`It is said that the quick brown fox \"jumps\".\n`, 2048) + `"}}],"usage":{"prompt_tokens":3,"completion_tokens":4}}`,
		"embeddings": `{"usage":{"prompt_tokens":3},"data":[{"embedding":[` + strings.Repeat("-0.0123456789,", 7500) + `0]}]}`,
		"base64":     `{"usage":{"prompt_tokens":3},"data":[{"embedding":"` + strings.Repeat("83s4vKftk7zV3qU6", 6400) + `"}]}`,
		"logprobs":   `{"choices":[{"logprobs":{"content":[` + strings.Repeat(`{"token":" a","logprob":-0.25,"bytes":[32,97]},`, 2140) + `{}]}}],"usage":{"prompt_tokens":3}}`,
	} {
		b.Run(name, func(b *testing.B) {
			all := []byte(body)
			b.SetBytes(int64(len(all)))
			b.ReportAllocs()
			for b.Loop() {
				tail := NewTail("application/json", "", testScan)
				for s := all; len(s) > 0; {
					n := min(len(s), 32<<10)
					tail.Write(s[:n])
					s = s[n:]
				}
				if tail.End().Usage == nil {
					b.Fatal("no usage")
				}
			}
		})
	}
}
