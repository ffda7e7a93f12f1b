package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// pieces cuts a stream into pieces whose sizes come from cuts, again and again.
func pieces(stream, cuts []byte, yield func([]byte)) {
	for i := 0; len(stream) > 0; i++ {
		n := len(stream)
		if len(cuts) > 0 {
			n = min(n, 1+int(cuts[i%len(cuts)]))
		}
		yield(stream[:n])
		stream = stream[n:]
	}
}

// streamLines takes a stream apart as EventSource does: a line ends with CRLF, LF or CR, and the last one need not end.
func streamLines(stream string) (lines []struct{ text, end string }) {
	for stream != "" {
		i := strings.IndexAny(stream, "\r\n")
		if i < 0 {
			return append(lines, struct{ text, end string }{stream, ""})
		}
		end := stream[i : i+1]
		if strings.HasPrefix(stream[i:], "\r\n") {
			end = "\r\n"
		}
		lines = append(lines, struct{ text, end string }{stream[:i], end})
		stream = stream[i+len(end):]
	}
	return lines
}

// sourceEvent is an event as EventSource dispatches it.
type sourceEvent struct {
	data  string
	lines int // of data
}

// eventSource reads a stream by the rules of HTML's EventSource: comments, fields without a colon, one blank after it, data
// of several lines. An event that the end cuts off is dispatched, too: the engine has sent its data.
func eventSource(stream string) (events []sourceEvent) {
	var data []string
	dispatch := func() {
		if data != nil {
			events = append(events, sourceEvent{strings.Join(data, "\n"), len(data)})
		}
		data = nil
	}
	for _, l := range streamLines(stream) {
		if l.text == "" {
			dispatch()
			continue
		}
		field, value, _ := strings.Cut(l.text, ":") // a comment has the field ""
		if field == "data" {
			data = append(data, strings.TrimPrefix(value, " "))
		}
	}
	dispatch()
	return events
}

// streamSeeds are streams as engines write them, and as nobody should.
var streamSeeds = []string{
	usageEvent + "\r\n\r\ndata: [DONE]\n\n", ": ping\n\ndata: {\"error\":{}}\n\n", "data: {\"usage\":{\"prompt_tokens\":1}}\r\rdata:x", vllm + "\r\n\r\ndata: [DONE]\n\n", text + zeros + "}\n\n" + spaced + "\r\rdata:x", ": ping\n\n\r\r\n",
	"\ufeffdata: {}\n\n", "data\n\n", "data:\n\n", "data: a\ndata: b\n\n", "event: x\nid: 3\nretry: 5\n" + usageEvent + "\n\n", "data : x\n\n", " data: x\n\n", "data:  [DONE]\n\n", "data: [DONE] \n\n", "DATA: x\n\n", "dat", "data:[DONE]", figured + "\n\n" + vllm + "\n\n" + vllm + "\n\n",
	`data: {"choices":[{"index":0,"finish_reason":"stop"}],"timings":{"cache_n":4,"prompt_n":7,"predicted_n":22}}` + "\n\n", `data: {"response":{"usage":{"input_tokens":5,"output_tokens":6}}}` + "\n\n", `data: {"type":"message_start","message":{"usage":{"input_tokens":5,"cache_read_input_tokens":6,"output_tokens":1}}}` + "\n\n" + `data: {"usage":{"output_tokens":2}}` + "\n\n",
	quoted + "\n\n" + null + "\n\n", "event: x\n" + vllm + "\nid: 4\n\ndata: [DONE]\n\n", vllm + "\n" + vllm + "\n\n\n", text + zeros + zeros + "}\n\n", `data: {"choices":[{}],"usage":{"prompt_tokens":0,"prompt_tokens":0}}` + "\n\n", `data:{"choices":[],"usage":{"input_tokens":1,"cache_read_input_tokens":9223372036854775807}}` + "\r",
}

// FuzzTail: what a stream says does not depend on how it is cut into pieces, nor on how its lines end, nor on comments and
// other fields between them; its events, its end and its errors are those that EventSource and encoding/json find; and
// nothing makes the reader hold more than a line.
func FuzzTail(f *testing.F) {
	for i, s := range streamSeeds {
		f.Add([]byte(s), []byte{byte(i % 7), 3})
	}
	f.Add([]byte(": ping pong\r\n\r\nid: 30000\r\r"+usageEvent+"\n\n"), []byte{1, 30})
	f.Fuzz(func(t *testing.T, stream, cuts []byte) {
		most := 0
		read := func(stream, cuts []byte) (Seen, string, bool) {
			tail := NewTail("text/event-stream", "", testScan)
			if most > 0 {
				tail.most = most
			}
			pieces(stream, cuts, func(p []byte) {
				tail.Write(p)
				if held := cap(tail.part) + cap(tail.short.out); held > 8*testScan+len(p) {
					t.Fatalf("%d bytes are held", held)
				}
			})
			border := tail.Border()
			s := tail.End()
			return s, fmt.Sprint(s.Usage, s.Events, s.EngineError, s.Done), border
		}
		seen, whole, border := read(stream, nil)
		if _, cut, b := read(stream, cuts); cut != whole || b != border {
			t.Fatalf("%q whole is %s %v, in pieces %s %v", stream, whole, border, cut, b)
		}
		lines := streamLines(string(stream))
		if atLine := len(lines) == 0 || lines[len(lines)-1].end != ""; border != atLine {
			t.Fatalf("%q ends between lines %v, the reader says %v", stream, atLine, border)
		}
		// The same events, in the plainest way to write them.
		var plain strings.Builder
		events, done, failed, bare := int64(0), false, false, 0
		for _, l := range lines {
			if len(l.text) > testScan {
				return // of a long line not all is checked
			}
			if l.text == "data" {
				bare++ // an empty one, which no engine sends
			}
			data, isData := strings.CutPrefix(l.text, "data:")
			if !isData {
				continue
			}
			data = strings.TrimPrefix(data, " ")
			fmt.Fprintf(&plain, "data: %s\n\n", data)
			if data == "[DONE]" {
				done = true
				continue
			}
			events++
			var m map[string]json.RawMessage
			if _, err := Walk([]byte(data), tailFields); err == nil && json.Unmarshal([]byte(data), &m) == nil && m["error"] != nil && string(m["error"]) != "null" {
				// A name with escapes is not looked for: no engine writes one.
				failed = failed || strings.Contains(data, `"error"`) || strings.Contains(data, `"usage"`) || strings.Contains(data, `"timings"`)
			}
		}
		if seen.Events != events || seen.Done != done || seen.EngineError != failed {
			t.Fatalf("%q has %d events, end %v, error %v; the reader says %+v", stream, events, done, failed, seen)
		}
		if _, again, _ := read([]byte(plain.String()), nil); again != whole {
			t.Fatalf("%q says %s, written plainly %s", stream, whole, again)
		}
		// A line that is too long to be kept says the same, if it is JSON and names are plain.
		strict := true
		for _, l := range lines {
			if data, isData := strings.CutPrefix(l.text, "data:"); isData {
				_, err := Walk([]byte(strings.TrimPrefix(data, " ")), tailFields)
				strict = strict && (strings.TrimSpace(data) == "[DONE]" || err == nil && !strings.Contains(data, `\`) && !strings.Contains(data, "\f"))
			}
		}
		if most = 16; strict {
			_, short, _ := read(stream, nil)
			if _, cut, _ := read(stream, cuts); short != whole || cut != short {
				t.Fatalf("%q says %s, with little memory %s, in pieces %s", stream, whole, short, cut)
			}
		}
		// A line of data is an event, in streams as engines write them.
		source := int64(0)
		for _, e := range eventSource(string(stream)) {
			if e.lines > 1 {
				return
			}
			if e.data != "[DONE]" {
				source++
			}
		}
		if bare == 0 && source != events {
			t.Fatalf("%q has %d events, EventSource finds %d", stream, events, source)
		}
	})
}

// FuzzCondense: what is kept of a text as it passes is what encoding/json finds in it, however it comes in pieces; of a text
// that is no JSON it is a short text all the same.
func FuzzCondense(f *testing.F) {
	for i, s := range streamSeeds {
		data, _ := strings.CutPrefix(strings.TrimSpace(s), "data:")
		f.Add([]byte(data), []byte{byte(i % 5), 2})
	}
	f.Add([]byte(`{"data":[{"a":"\\\"}"},[],{},[[1,-2.5e3,true,null]]],"usage":{"prompt_tokens":7,"x":{"y":["}"]}},"z":"usage"}`), []byte{0})
	f.Add([]byte(`{"choices":[{"delta":{"index":4},"index":3},{"index":5},[],9],"error":"x","timings":null,"message":{"usage":{},"x":[{"usage":1}]},"response":3}`), []byte{2})
	f.Add([]byte(`{"choices":[{}],"x":1}{"usage":1}`), []byte{1})
	f.Fuzz(func(t *testing.T, text, cuts []byte) {
		run := func(cuts []byte) string {
			var c condenser
			c.begin(nil)
			pieces(text, cuts, c.write)
			return string(c.end())
		}
		short := run(nil)
		if cut := run(cuts); cut != short {
			t.Fatalf("%q is condensed to %q, in pieces to %q", text, short, cut)
		}
		if len(short) > 2*mostCondensed+len(text) {
			t.Fatalf("%d bytes are kept of %d", len(short), len(text))
		}
		want, err := Walk(text, tailFields)
		if err != nil || bytes.IndexByte(text, '\\') >= 0 {
			if short != "" && utf8.Valid(text) && !json.Valid([]byte(short)) && json.Valid(text) {
				t.Fatalf("%q is condensed to %q", text, short)
			}
			return
		}
		if len(text) > mostCondensed {
			return
		}
		got, err := Walk([]byte(short), tailFields)
		if err != nil {
			t.Fatalf("%q is condensed to %q: %v", text, short, err)
		}
		same := func(name string, in, out Members) {
			a, there := in.Get(name)
			b, kept := out.Get(name)
			if there != kept || string(a) != string(b) {
				t.Fatalf("%q is condensed to %q: %s differs", text, short, name)
			}
		}
		same("usage", want, got)
		same("timings", want, got)
		for _, name := range []string{"response", "message"} {
			a, there := want.Get(name)
			b, kept := got.Get(name)
			if kept != (there && a[0] == '{') {
				t.Fatalf("%q is condensed to %q: %s differs", text, short, name)
			}
			if !kept {
				continue
			}
			in, err := Walk(a, tailFields)
			if err != nil {
				continue // a name twice
			}
			out, err := Walk(b, tailFields)
			if err != nil {
				t.Fatalf("%q is condensed to %q: %v", text, short, err)
			}
			same("usage", in, out)
		}
		a, there := want.Get("choices")
		b, kept := got.Get("choices")
		if there != kept || there && (emptyArray(a) != emptyArray(b) || a[0] == '[' && unique(a) && index(a) != index(b)) {
			t.Fatalf("%q is condensed to %q: choices differ", text, short)
		}
		a, there = want.Get("error")
		if b, kept = got.Get("error"); there != kept || there && (string(a) == "null") != (string(b) == "null") {
			t.Fatalf("%q is condensed to %q: error differs", text, short)
		}
	})
}

// unique tells whether the first of an array is an object that Walk takes.
func unique(array []byte) bool {
	var all []json.RawMessage
	if json.Unmarshal(array, &all) != nil || len(all) == 0 || all[0][0] != '{' {
		return false
	}
	_, err := Walk(all[0], indexField)
	return err == nil
}

// FuzzHider: a stream passes byte for byte, but for the events that have to be hidden and the usage of zeros, which a reader
// that has all of it at once and encoding/json find the same; how it is cut into pieces never matters.
func FuzzHider(f *testing.F) {
	for i, s := range streamSeeds {
		f.Add([]byte(s), []byte{byte(i % 5), 2})
	}
	f.Add([]byte(": ping pong\n"+vllm+"\n\ndata: [DONE]\n\n"), []byte{1, 30})
	f.Fuzz(func(t *testing.T, stream, cuts []byte) {
		run := func(cuts []byte) string {
			var h Hider
			var out []byte
			pieces(stream, cuts, func(p []byte) {
				out = append(out, h.Pass(p)...)
				if len(h.held) > mostHeld {
					t.Fatalf("%d bytes are held", len(h.held))
				}
			})
			return string(append(out, h.Rest()...))
		}
		whole := run(nil)
		if got := run(cuts); got != whole {
			t.Fatalf("%q: in pieces %q, whole %q", stream, got, whole)
		}
		if want := hidden(string(stream)); whole != want {
			t.Fatalf("%q: passed %q, want %q", stream, whole, want)
		}
	})
}

// hidden is a stream without what is to be hidden: each line is judged by itself, and with one that goes the empty line after
// it goes.
func hidden(stream string) string {
	var out strings.Builder
	gone := false
	for _, l := range streamLines(stream) {
		if l.text == "" && gone {
			gone = false
			continue
		}
		shown, hide := shownLine(l.text)
		if gone = hide; !hide {
			out.WriteString(shown + l.end)
		}
	}
	return out.String()
}

// shownLine judges a line with encoding/json.
func shownLine(line string) (shown string, hide bool) {
	data, ok := strings.CutPrefix(line, "data:")
	if !ok || !strings.Contains(data, `"usage"`) {
		return line, false
	}
	trimmed := bytes.TrimSpace([]byte(data))
	if _, err := Walk(trimmed, hideFields); err != nil {
		return line, false
	}
	var event, usage map[string]json.RawMessage
	if json.Unmarshal(trimmed, &event) != nil || json.Unmarshal(event["usage"], &usage) != nil || event["choices"] == nil {
		return line, false
	}
	if _, err := Walk(event["usage"], usageFields); err != nil {
		return line, false
	}
	said, zero := false, true
	for name, raw := range usage {
		n, err := strconv.ParseInt(string(raw), 10, 64)
		if err != nil || n < 0 || n > mostFigure {
			continue
		}
		switch name {
		case "prompt_tokens", "input_tokens", "completion_tokens", "output_tokens":
			said = true
		}
	}
	input, output := int64(0), int64(0)
	if total, err := strconv.ParseInt(string(usage["total_tokens"]), 10, 64); err == nil && total >= 0 && total <= mostFigure && !said {
		said, input = true, total
	}
	for _, name := range []string{"prompt_tokens", "input_tokens", "completion_tokens", "output_tokens"} {
		if n, err := strconv.ParseInt(string(usage[name]), 10, 64); err == nil && n >= 0 && n <= mostFigure {
			if strings.HasPrefix(name, "p") || strings.HasPrefix(name, "i") {
				input = n
			} else {
				output = n
			}
		}
	}
	if n, err := strconv.ParseInt(string(usage["input_tokens"]), 10, 64); err == nil && n >= 0 && n <= mostFigure {
		for _, name := range []string{"cache_read_input_tokens", "cache_creation_input_tokens"} {
			if n, err := strconv.ParseInt(string(usage[name]), 10, 64); err == nil && n >= 0 && n <= mostFigure {
				input += n
			}
		}
	}
	zero = input == 0 && output == 0
	var choices []json.RawMessage
	isArray := json.Unmarshal(event["choices"], &choices) == nil && choices != nil
	switch {
	case !said:
		return line, false
	case isArray && len(choices) == 0:
		return "", true
	case !zero:
		return line, false
	}
	member := `,"usage":` + string(event["usage"])
	at := strings.LastIndex(line, member)
	if at < 0 {
		return line, false
	}
	return line[:at] + line[at+len(member):], false
}

// TestEventSource: the reference reader reads as EventSource does.
func TestEventSource(t *testing.T) {
	for stream, want := range map[string][]sourceEvent{
		"data: a\n\n":                         {{"a", 1}},
		"data:a\r\n\r\ndata:  b\r\r":          {{"a", 1}, {" b", 1}},
		": c\n\ndata: a\ndata\n\n":            {{"a\n", 2}},
		"event: x\n\ndata: a":                 {{"a", 1}},
		"datax: a\nData: b\n\n":               nil,
		"data: a\r\n\n":                       {{"a", 1}},
		"data:\n\n":                           {{"", 1}},
		"data: a\n: between\ndata: b\n\n\n\n": {{"a\nb", 2}},
	} {
		if got := eventSource(stream); !reflect.DeepEqual(got, want) {
			t.Errorf("%q is %+v, want %+v", stream, got, want)
		}
	}
}

// TestReadersAreBounded: neither a line without an end nor a body without one makes a reader hold it.
func TestReadersAreBounded(t *testing.T) {
	piece := []byte(strings.Repeat("x", 1000))
	for _, start := range []string{"data: ", ": ", "", `data: {"usage":`} {
		tail, hider := NewTail("text/event-stream", "", testScan), new(Hider)
		tail.Write([]byte(start))
		hider.Pass([]byte(start))
		for range 4000 {
			tail.Write(piece)
			hider.Pass(piece)
			if cap(tail.part) > 8*testScan || cap(hider.held) > 4*mostHeld {
				t.Fatalf("after %q, the tail holds %d bytes, the hider %d", start, cap(tail.part), cap(hider.held))
			}
		}
		tail.End()
	}
}
