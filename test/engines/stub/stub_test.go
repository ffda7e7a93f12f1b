package stub

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// start serves an engine on a Unix socket until the test ends.
func start(t *testing.T, o Options) (*Engine, *http.Client) {
	t.Helper()
	e, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "engine.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- e.Serve(l) }()
	transport := &http.Transport{DisableCompression: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		e.Close()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
		if n := e.Counters(); n.Connections != 0 || n.Active != 0 {
			t.Errorf("after Close: %+v", n)
		}
	})
	return e, &http.Client{Transport: transport, Timeout: 10 * time.Second}
}

func post(t *testing.T, c *http.Client, path, body string, headers ...string) (*http.Response, string, error) {
	t.Helper()
	req, err := http.NewRequest("POST", "http://engine"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := c.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp, string(b), err
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("not within 5 s: %s", what)
		}
		time.Sleep(time.Millisecond) // a poll's pause: the condition is asked anew
	}
}

// TestExactSizes: an answer has the size that was asked for, is JSON, and comes over one kept connection.
func TestExactSizes(t *testing.T) {
	e, c := start(t, Options{})
	for _, size := range []int{512, 1 << 10, 100 << 10, 1 << 10} {
		for _, more := range []string{"", `,"chunked":true`, `,"first":"1ms"`} {
			resp, body, err := post(t, c, "/v1/chat/completions", fmt.Sprintf(`{"model":"chat","stub":{"bytes":%d%s}}`, size, more))
			if err != nil || resp.StatusCode != 200 || len(body) != size {
				t.Fatalf("%d bytes%s: %v %d bytes", size, more, err, len(body))
			}
			var answer struct{ Usage map[string]int }
			if err := json.Unmarshal([]byte(body), &answer); err != nil || answer.Usage["total_tokens"] != 46 {
				t.Errorf("%d bytes: %v %v", size, err, answer)
			}
			if chunked := resp.ContentLength < 0; chunked != strings.Contains(more, "chunked") {
				t.Errorf("%s: length %d", more, resp.ContentLength)
			}
		}
	}
	eventually(t, "the stub has noted the end of the last one", func() bool { return e.Counters().Active == 0 })
	if n := e.Counters(); n.Accepted != 1 || n.Answered != 12 || n.Left != 0 {
		t.Errorf("%+v", n)
	}
}

// dataLines are the payloads of a stream, read as the standard says: any line end, comments skipped, several data lines
// joined.
func dataLines(text string) []string {
	text = strings.ReplaceAll(strings.ReplaceAll(text, "\r\n", "\n"), "\r", "\n")
	var out []string
	for _, event := range strings.Split(text, "\n\n") {
		var data []string
		for _, line := range strings.Split(event, "\n") {
			if v, ok := strings.CutPrefix(line, "data:"); ok {
				data = append(data, strings.TrimPrefix(v, " "))
			}
		}
		if data != nil {
			out = append(out, strings.Join(data, "\n"))
		}
	}
	return out
}

type chunk struct {
	Choices []struct {
		Delta struct{ Content string }
		Text  string
	}
	Usage *struct {
		Prompt int `json:"prompt_tokens"`
		Output int `json:"completion_tokens"`
	}
	Error json.RawMessage
}

func parse(t *testing.T, text string) (chunks []chunk, done bool) {
	t.Helper()
	for _, d := range dataLines(text) {
		if d == "[DONE]" {
			done = true
			continue
		}
		var c chunk
		if err := json.Unmarshal([]byte(d), &c); err != nil {
			t.Fatalf("%v: %.200q", err, d)
		}
		chunks = append(chunks, c)
	}
	return chunks, done
}

// TestForms: however a stream is written, its events say the same.
func TestForms(t *testing.T) {
	_, c := start(t, Options{})
	say := `{"model":"chat","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"one two three"}],"stub":{%s}}`
	for _, form := range []string{``, `"crlf"`, `"cr"`, `"comments"`, `"fields"`, `"tight"`, `"lines"`, `"open"`, `"crlf","comments","fields","lines","open"`, `"cr","comments","tight"`} {
		for _, more := range []string{"", `,"split":7,"split_gap":"1us"`, `,"gap":"1ms"`, `,"compress":true`} {
			behaviour := `"form":[` + form + `]` + more
			resp, text, err := post(t, c, "/v1/chat/completions", fmt.Sprintf(say, behaviour), "Accept-Encoding", "gzip")
			if err != nil {
				t.Fatalf("%s: %v", behaviour, err)
			}
			if strings.Contains(more, "compress") {
				z, err := gzip.NewReader(strings.NewReader(text))
				if err != nil || resp.Header.Get("Content-Encoding") != "gzip" {
					t.Fatalf("%s: %v %v", behaviour, err, resp.Header)
				}
				b, err := io.ReadAll(z)
				if err != nil {
					t.Fatalf("%s: %v", behaviour, err)
				}
				text = string(b)
			}
			chunks, done := parse(t, text)
			var said string
			for _, c := range chunks {
				for _, ch := range c.Choices {
					said += ch.Delta.Content
				}
			}
			last := chunks[len(chunks)-1]
			if said != "You said: one two three" || !done || last.Usage == nil || last.Usage.Prompt != 3 || last.Usage.Output != len(chunks)-3 {
				t.Errorf("%s: %q, done %v, %+v", behaviour, said, done, last)
			}
		}
	}
	_, text, err := post(t, c, "/v1/chat/completions", fmt.Sprintf(say, `"form":["long"]`))
	if longest := longestLine(text); err != nil || longest < longLine {
		t.Errorf("%v: the longest line has %d bytes", err, longest)
	}
	_, text, err = post(t, c, "/v1/chat/completions", fmt.Sprintf(say, `"events":3,"event_bytes":300`))
	if err != nil {
		t.Fatal(err)
	}
	full := 0
	for _, event := range strings.SplitAfter(text, "\n\n") {
		if len(event) == 300 {
			full++
		}
	}
	if full != 3 {
		t.Errorf("%d events have 300 bytes: %q", full, text)
	}
}

func longestLine(text string) int {
	most := 0
	for line := range strings.Lines(text) {
		most = max(most, len(line))
	}
	return most
}

// TestBrotli holds the encoder to a stream that Node's and Python's decoders read.
func TestBrotli(t *testing.T) {
	b := &brotliPacker{}
	got := append(bytes.Clone(b.pack([]byte("hello "), false)), b.pack([]byte("world"), true)...)
	if want := "\x50\x00\x10hello \x20\x00\x08world\x03"; string(got) != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := (&brotliPacker{}).pack(nil, true); string(got) != "\x06" {
		t.Errorf("nothing is %q", got)
	}
}

// TestUsage: each engine says its usage where that engine says it.
func TestUsage(t *testing.T) {
	_, c := start(t, Options{})
	for _, test := range []struct {
		manner, path, options, more string
		want                        string // one letter an event: - none, 0 zeros, + some, ! the whole; capital letters on events without choices
	}{
		{LlamaCpp, "chat/completions", `,"stream_options":{"include_usage":true}`, "", "-----T"},
		{LlamaCpp, "chat/completions", "", "", "-----"},
		{LlamaCpp, "chat/completions", `,"n":2,"stream_options":{"include_usage":true}`, "", "----------TT"},
		{LlamaCpp, "completions", "", "", "---t"},
		{VLLM, "chat/completions", `,"stream_options":{"include_usage":true}`, "", "-----T"},
		{VLLM, "chat/completions", `,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`, "", "+++ttT"},
		{VLLM, "completions", "", "", "----"},
		{VLLM, "completions", `,"stream_options":{"include_usage":true}`, "", "----T"},
		{Ollama, "chat/completions", `,"stream_options":{"include_usage":true}`, "", "-----T"},
		{Ollama, "completions", `,"stream_options":{"include_usage":true}`, "", "0000T"},
		{Ollama, "completions", "", "", "----"},
		{LlamaCpp, "chat/completions", "", `,"usage":"always"`, "-----T"},
		{LlamaCpp, "chat/completions", `,"stream_options":{"include_usage":true}`, `,"usage":"none"`, "-----"},
		{LlamaCpp, "chat/completions", "", `,"usage":"zeros"`, "00000T"},
	} {
		body := fmt.Sprintf(`{"model":"chat","stream":true%s,"messages":[{"role":"user","content":"x"}],"prompt":"x","stub":{"events":3,"manner":%q,"prompt_tokens":9%s}}`, test.options, test.manner, test.more)
		_, text, err := post(t, c, "/v1/"+test.path, body)
		if err != nil {
			t.Fatal(err)
		}
		chunks, _ := parse(t, text)
		got := ""
		for _, c := range chunks {
			mark := "-"
			switch u := c.Usage; {
			case u == nil:
			case u.Prompt == 0:
				mark = "0"
			case u.Output%3 == 0 && u.Output > 0:
				mark = "t"
			default:
				mark = "+"
			}
			if len(c.Choices) == 0 {
				mark = strings.ToUpper(mark)
			}
			got += mark
		}
		if got != test.want {
			t.Errorf("%s %s %s%s: %s, want %s\n%s", test.manner, test.path, test.options, test.more, got, test.want, text)
		}
	}
}

// TestDepartures: a request whose client leaves is noted as left, wherever it stands.
func TestDepartures(t *testing.T) {
	e, c := start(t, Options{Keep: 10})
	stream := `"stream":true,`
	for i, test := range []struct{ stream, behaviour string }{
		{"", `"first":"1m"`}, {"", `"end":"no_answer"`}, {"", `"end":"headers_only"`}, {"", `"body":"1m"`}, {"", `"bytes":1000,"end":"silence","at":100`},
		{stream, `"endless":true,"gap":"1ms"`}, {stream, `"endless":true`}, {stream, `"gap":"1m"`}, {stream, `"end":"silence","at":2`}, {stream, `"body":"1m"`},
	} {
		e.Reset()
		conn, err := c.Transport.(*http.Transport).DialContext(t.Context(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		body := fmt.Sprintf(`{"model":"chat",%s"stub":{%s}}`, test.stream, test.behaviour)
		fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		eventually(t, "the request has come", func() bool { return e.Counters().Active == 1 })
		if i%2 == 0 { // a half-closed connection is a departure too
			conn.(*net.UnixConn).CloseWrite()
			go io.Copy(io.Discard, conn)
		} else {
			conn.Close()
		}
		eventually(t, "the departure is noted: "+test.behaviour, func() bool { return e.Counters().Left == 1 })
		conn.Close()
		if n := e.Counters(); n.Active != 0 || n.Answered != 0 {
			t.Errorf("%s: %+v", test.behaviour, n)
		}
		if r := e.Requests(); len(r) != 1 || r[0].End != endLeft || !strings.Contains(string(r[0].Body), test.behaviour) {
			t.Errorf("%s: %+v", test.behaviour, r)
		}
	}
}

// TestEnds: answers that end badly do so in the way that was asked for.
func TestEnds(t *testing.T) {
	e, c := start(t, Options{})
	for _, test := range []struct {
		behaviour string
		check     func(text string, err error) bool
	}{
		{`"end":"refuse"`, func(text string, err error) bool { return err != nil && text == "" }},
		{`"end":"garbage"`, func(text string, err error) bool { return err != nil && strings.Contains(err.Error(), "malformed") }},
		{`"end":"cut_headers"`, func(text string, err error) bool { return errors.Is(err, io.ErrUnexpectedEOF) && text == "" }},
		{`"end":"cut","at":2`, func(text string, err error) bool {
			return errors.Is(err, io.ErrUnexpectedEOF) && strings.Count(text, "data:") == 3
		}},
		{`"end":"no_done","at":2`, func(text string, err error) bool { return err == nil && strings.Count(text, "data:") == 3 }},
		{`"end":"error","at":2,"manner":"vllm"`, func(text string, err error) bool {
			return err == nil && strings.Count(text, "data:") == 5 && strings.Contains(text, `"error"`) && strings.HasSuffix(text, "data: [DONE]\n\n")
		}},
		{`"end":"error","at":2,"manner":"llamacpp"`, func(text string, err error) bool {
			return err == nil && strings.Count(text, "data:") == 4 && strings.Contains(text, `"error"`) && !strings.Contains(text, "[DONE]")
		}},
		{`"end":"error","at":2,"manner":"ollama"`, func(text string, err error) bool {
			return err == nil && strings.Count(text, "data:") == 3 && !strings.Contains(text, `"error"`)
		}},
	} {
		_, text, err := post(t, c, "/v1/chat/completions", `{"model":"chat","stream":true,"stub":{"events":5,`+test.behaviour+`}}`)
		if !test.check(text, err) {
			t.Errorf("%s: %v %q", test.behaviour, err, text)
		}
	}
	_, text, err := post(t, c, "/v1/chat/completions", `{"model":"chat","stub":{"bytes":1000,"end":"cut","at":100}}`)
	if !errors.Is(err, io.ErrUnexpectedEOF) || len(text) != 100 {
		t.Errorf("a whole answer cut at 100: %v, %d bytes", err, len(text))
	}
	eventually(t, "the stub has noted the end of the last one", func() bool { return e.Counters().Active == 0 })
	if n := e.Counters(); n.Cut != 5 || n.Active != 0 {
		t.Errorf("%+v", n)
	}
}

// TestKeepAlive: a connection that is idle for long enough is closed by the stub, in the middle of nothing.
func TestKeepAlive(t *testing.T) {
	e, c := start(t, Options{KeepAlive: 20 * time.Millisecond})
	if _, _, err := post(t, c, "/v1/chat/completions", `{"model":"chat"}`); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the idle connection is closed", func() bool { return e.Counters().Connections == 0 })
}

// TestAnswers: tools, JSON, embeddings, responses and audio are what clients of the OpenAI API read.
func TestAnswers(t *testing.T) {
	_, c := start(t, Options{Manner: VLLM, Names: []string{"chat", "org/chat"}, Key: "k"})
	auth := []string{"Authorization", "Bearer k"}
	resp, body, err := post(t, c, "/v1/chat/completions", `{}`)
	if err != nil || resp.StatusCode != 401 || !strings.Contains(body, `"code":401`) {
		t.Errorf("without the key: %v %s", err, body)
	}
	for _, test := range []struct{ path, body, want string }{
		{"chat/completions", `{"messages":[{"role":"user","content":[{"type":"text","text":"Paris"}]}],"tools":[{"type":"function","function":{"name":"weather","parameters":{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}}}}}]}`,
			`"arguments":"{\"city\":\"Paris\",\"days\":7}","name":"weather"`},
		{"chat/completions", `{"messages":[{"role":"user","content":"x"},{"role":"tool","content":"sunny"}],"tools":[{"type":"function","function":{"name":"weather"}}]}`, `"content":"The tool said: sunny"`},
		{"chat/completions", `{"messages":[{"role":"user","content":"x"}],"response_format":{"type":"json_object"}}`, `"content":"{\"said\":\"x\"}"`},
		{"chat/completions", `{"messages":[{"role":"user","content":"x"}],"response_format":{"type":"json_schema","json_schema":{"name":"s","schema":{"$ref":"#/$defs/A","$defs":{"A":{"type":"object","properties":{"ok":{"type":"boolean"},"list":{"type":"array","items":{"enum":["a","b"]}}}}}}}}}`, `"content":"{\"list\":[\"a\"],\"ok\":true}"`},
		{"chat/completions", `{"messages":[{"role":"user","content":"a b c d e"}],"max_tokens":3}`, `"finish_reason":"length"`},
		{"completions", `{"prompt":"x"}`, `"text":"You said: x"`},
		{"embeddings", `{"input":["a","b"],"dimensions":2}`, `"usage":{"prompt_tokens":2,"total_tokens":2}`},
		{"embeddings", `{"input":"a","encoding_format":"base64","dimensions":3}`, `"embedding":"`},
		{"responses", `{"input":"hello"}`, `"text":"You said: hello"`},
		{"responses", `{"input":[{"role":"user","content":[{"type":"input_text","text":"hi"}]}],"stream":true}`, "event: response.completed\ndata: {"},
		{"responses", `{"input":"hi","tools":[{"type":"function","name":"f","parameters":{}}],"stream":true}`, "event: response.function_call_arguments.done\n"},
	} {
		resp, body, err := post(t, c, "/v1/"+test.path, test.body, auth...)
		if err != nil || resp.StatusCode != 200 || !strings.Contains(body, test.want) {
			t.Errorf("%s %s: %v %s", test.path, test.body, err, body)
		}
	}
	for stream, want := range map[string]string{"false": `{"text":"You sent a.wav with 5 bytes.","usage":{"seconds":1,"type":"duration"}}`, "true": `"type":"transcript.text.done"`} {
		var form bytes.Buffer
		w := multipart.NewWriter(&form)
		w.WriteField("stream", stream)
		w.WriteField("stub", `{"gap":"1ms"}`)
		f, _ := w.CreateFormFile("file", "a.wav")
		f.Write([]byte("12345"))
		w.Close()
		_, body, err := post(t, c, "/v1/audio/transcriptions", form.String(), append(auth, "Content-Type", w.FormDataContentType())...)
		if err != nil || !strings.Contains(body, want) {
			t.Errorf("audio, stream %s: %v %s", stream, err, body)
		}
	}
}

// TestControl: what a test in another process asks and sets; a misspelt behaviour is refused.
func TestControl(t *testing.T) {
	e, c := start(t, Options{Keep: 3})
	send := func(method, path, body string) (int, string) {
		t.Helper()
		req, _ := http.NewRequest(method, "http://engine"+path, strings.NewReader(body))
		resp, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(b)
	}
	if code, body := send("PUT", "/stub/default", `{"status":418}`); code != 200 {
		t.Errorf("%d %s", code, body)
	}
	if code, _ := send("POST", "/v1/chat/completions", `{}`); code != 418 {
		t.Errorf("the default was set and the answer is %d", code)
	}
	if code, body := send("PUT", "/stub/default", `{"statsu":418}`); code != 400 {
		t.Errorf("%d %s", code, body)
	}
	if code, body := send("POST", "/v1/chat/completions", `{"stub":{"end":"nowhere"}}`); code != 400 || !strings.Contains(body, "nowhere") {
		t.Errorf("%d %s", code, body)
	}
	if _, body := send("GET", "/stub/requests", ""); strings.Count(body, `"target":"/v1/chat/completions"`) != 2 {
		t.Error(body)
	}
	if _, body := send("GET", "/stub/counters", ""); !strings.Contains(body, `"answered":2`) {
		t.Error(body)
	}
	send("POST", "/stub/reset", "")
	if n := e.Counters(); n.Requests != 0 || n.Connections != 1 {
		t.Errorf("%+v", n)
	}
}

// TestPipelined: two requests sent at once are both answered, in order, also when the first takes its time.
func TestPipelined(t *testing.T) {
	_, c := start(t, Options{})
	conn, err := c.Transport.(*http.Transport).DialContext(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(5 * time.Second))
	for _, b := range []string{`{"stub":{"first":"20ms","bytes":600}}`, `{"stub":{"bytes":700}}`} {
		fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(b), b)
	}
	in := bufio.NewReader(conn)
	for _, want := range []int64{600, 700} {
		resp, err := http.ReadResponse(in, nil)
		if err != nil || resp.ContentLength != want {
			t.Fatalf("%v %+v", err, resp)
		}
		io.Copy(io.Discard, resp.Body)
	}
}

// BenchmarkWhole is the cost of one request over a Unix socket, client and stub in one process.
func BenchmarkWhole(b *testing.B) {
	e, err := New(Options{})
	if err != nil {
		b.Fatal(err)
	}
	path := filepath.Join(b.TempDir(), "engine.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		b.Fatal(err)
	}
	go e.Serve(l)
	defer e.Close()
	conn, err := net.Dial("unix", path)
	if err != nil {
		b.Fatal(err)
	}
	body := `{"model":"chat","stub":{"bytes":1024},"pad":"` + strings.Repeat("x", 970) + `"}`
	request := fmt.Appendf(nil, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	answer := make([]byte, 64<<10)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := conn.Write(request); err != nil {
			b.Fatal(err)
		}
		for n := 0; n < 1024; {
			m, err := conn.Read(answer)
			if err != nil {
				b.Fatal(err)
			}
			n += m
		}
	}
}
