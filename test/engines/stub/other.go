package stub

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"mime"
	"mime/multipart"
	"strings"
)

const dimensions = 16 // of an embedding, unless the client says

// embeddings answers /v1/embeddings: vectors of length 1 that depend on the text alone.
func (x *exchange) embeddings() string {
	q, err := x.query()
	if err != nil {
		return x.refuse(400, err.Error())
	}
	inputs := []any{q.Input}
	if list, ok := q.Input.([]any); ok && len(list) > 0 {
		inputs = list
		if _, tokens := list[0].(float64); tokens { // one text, as token numbers
			inputs = []any{list}
		}
	}
	size, words := q.Dimensions, 0
	if size == 0 {
		size = dimensions
	}
	data := make([]any, len(inputs))
	for i, input := range inputs {
		text := fmt.Sprint(input)
		words += len(strings.Fields(text))
		vector := vectorOf(text, size)
		var v any = vector
		if q.EncodingFormat == "base64" {
			raw := make([]byte, 0, 4*size)
			for _, f := range vector {
				raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(f))
			}
			v = base64.StdEncoding.EncodeToString(raw)
		}
		data[i] = map[string]any{"object": "embedding", "index": i, "embedding": v}
	}
	if x.b.PromptTokens > 0 {
		words = x.b.PromptTokens
	}
	answer := map[string]any{"object": "list", "model": q.Model, "data": data}
	if x.b.Usage != "none" {
		answer["usage"] = map[string]any{"prompt_tokens": words, "total_tokens": words}
	}
	return x.json(answer)
}

func vectorOf(text string, size int) []float32 {
	h := fnv.New64a()
	h.Write([]byte(text))
	seed, sum := h.Sum64(), 0.0
	v := make([]float32, size)
	for i := range v {
		seed = seed*6364136223846793005 + 1442695040888963407
		f := float64(seed>>40)/(1<<23) - 1
		v[i], sum = float32(f), sum+f*f
	}
	for i := range v {
		v[i] /= float32(math.Sqrt(sum))
	}
	return v
}

// audio answers /v1/audio/transcriptions and translations: it says which file it got. A second of sound is 32,000 bytes.
func (x *exchange) audio() string {
	_, params, err := mime.ParseMediaType(x.head.contentType)
	if err != nil || params["boundary"] == "" {
		return x.refuse(400, "the body is no form")
	}
	fields, name, size := map[string]string{}, "", -1
	for form := multipart.NewReader(bytes.NewReader(x.body), params["boundary"]); ; {
		part, err := form.NextPart()
		if err == io.EOF {
			break
		}
		if err != nil {
			return x.refuse(400, "the form cannot be read: "+err.Error())
		}
		b, err := io.ReadAll(part)
		if err != nil {
			return x.refuse(400, "the form cannot be read: "+err.Error())
		}
		if part.FormName() == "file" {
			name, size = part.FileName(), len(b)
			continue
		}
		fields[part.FormName()] = string(b)
	}
	if size < 0 {
		return x.refuse(400, "the form has no file")
	}
	text := fmt.Sprintf("You sent %s with %d bytes.", name, size)
	if x.b.Text != "" {
		text = x.b.Text
	}
	pieces, seconds := words8(text), size/32000+1
	if fields["stream"] == "true" {
		return x.streamAudio(pieces, text, seconds)
	}
	answer := map[string]any{"text": text}
	if u := audioUsage(x.b.Manner, seconds, len(pieces)); u != nil && x.b.Usage != "none" {
		answer["usage"] = u
	}
	switch fields["response_format"] {
	case "text":
		return x.whole("text/plain; charset=utf-8", []byte(text+"\n"))
	case "srt":
		return x.whole("text/plain; charset=utf-8", fmt.Appendf(nil, "1\n00:00:00,000 --> 00:00:%02d,000\n%s\n\n", seconds%60, text))
	case "verbose_json":
		answer["task"], answer["language"], answer["duration"] = "transcribe", "english", float64(seconds)
		answer["segments"] = []any{map[string]any{"id": 0, "start": 0, "end": float64(seconds), "text": text}}
	}
	return x.json(answer)
}

func (x *exchange) streamAudio(pieces []string, text string, seconds int) string {
	s := x.events()
	if s == nil {
		return endLeft
	}
	if x.b.End == HeadersOnly || x.b.End == CutHeaders {
		return x.ending(nil)
	}
	if x.b.Events > 0 {
		pieces = again(pieces, x.b.Events)
	}
	say := func(_ int, piece string) bool {
		return s.content("", piece, func(quoted []byte) []byte {
			return append(append([]byte(`{"type":"transcript.text.delta","delta":`), quoted...), '}')
		})
	}
	if end := s.pieces(pieces, say, s.dyingWords); end != "" {
		return end
	}
	last := map[string]any{"type": "transcript.text.done", "text": text}
	if u := audioUsage(x.b.Manner, seconds, len(pieces)); u != nil && x.b.Usage != "none" {
		last["usage"] = u
	}
	b, err := json.Marshal(last)
	if err != nil {
		panic(err)
	}
	if !s.event("", b, false) {
		return endLeft
	}
	return s.done()
}

// control answers what tests in other processes ask of the stub itself. It needs no key and is not counted.
func (c *conn) control() bool {
	x := &exchange{conn: c, b: &Behaviour{Manner: LlamaCpp}, last: c.head.close}
	var end string
	switch c.head.method + " " + c.head.path {
	case "GET /stub/counters":
		end = x.json(c.e.Counters())
	case "GET /stub/requests":
		end = x.json(map[string]any{"items": c.e.Requests()})
	case "POST /stub/reset":
		c.e.Reset()
		end = x.json(c.e.Counters())
	case "PUT /stub/default":
		b, err := Behaviour{}.with(c.e.o.Manner).from(c.body)
		if err == nil {
			err = c.e.SetDefault(*b)
		}
		if err != nil {
			end = x.refuse(400, err.Error())
		} else {
			end = x.json(b)
		}
	default:
		end = x.refuse(404, "the stub has GET counters, GET requests, PUT default and POST reset")
	}
	return end == endAnswered && !x.last
}

func (b Behaviour) with(manner string) Behaviour {
	b.Manner = manner
	return b
}
