package stub

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Behaviour is how one request is answered. The zero value is a well-behaved engine: it answers at once, repeats what it
// was told, fills in tools and schemas, and streams a word an event.
type Behaviour struct {
	Manner string `json:"manner,omitempty"` // LlamaCpp, VLLM or Ollama; the engine's own by default

	// What is said.
	Text         string            `json:"text,omitempty"`          // the words; default: what the client said
	Bytes        int               `json:"bytes,omitempty"`         // a whole answer's body has exactly so many bytes (at least 512)
	Status       int               `json:"status,omitempty"`        // an error of that status, in the engine's words
	Header       map[string]string `json:"header,omitempty"`        // further headers
	Usage        string            `json:"usage,omitempty"`         // "", none, always, zeros, cumulative: see usage.go
	PromptTokens int               `json:"prompt_tokens,omitempty"` // default: the words of the request
	OutputTokens int               `json:"output_tokens,omitempty"` // default: the events, or words

	// When.
	First Duration `json:"first,omitempty"` // before the headers
	Body  Duration `json:"body,omitempty"`  // from the headers to the first byte of the body
	Gap   Duration `json:"gap,omitempty"`   // at least so long between two events

	// Streams.
	Events     int      `json:"events,omitempty"`      // content events; default: one a word
	EventBytes int      `json:"event_bytes,omitempty"` // each content event is padded to so many bytes, line ends included
	Endless    bool     `json:"endless,omitempty"`     // content events until the client leaves
	Form       []string `json:"form,omitempty"`        // how events are written: see forms
	Split      int      `json:"split,omitempty"`       // events go out in pieces of so many bytes, SplitGap apart
	SplitGap   Duration `json:"split_gap,omitempty"`   // default 1ms

	// Framing.
	Chunked  bool `json:"chunked,omitempty"`  // a whole answer without Content-Length
	Close    bool `json:"close,omitempty"`    // ends the connection with the answer, and says so
	Compress bool `json:"compress,omitempty"` // gzip or br, if the request accepts it
	Early    bool `json:"early,omitempty"`    // an informational 103 comes first

	// How it ends.
	End string `json:"end,omitempty"` // see ends; empty: properly
	At  int    `json:"at,omitempty"`  // for End: after so many content events, or bytes of a whole body
}

// The values of Behaviour.End.
const (
	NoAnswer    = "no_answer"    // nothing at all, until the client leaves
	HeadersOnly = "headers_only" // headers, then nothing until the client leaves
	Silence     = "silence"      // nothing more after At, until the client leaves
	Refuse      = "refuse"       // the connection ends without an answer
	CutHeaders  = "cut_headers"  // … after the headers
	Cut         = "cut"          // … after At, in the middle of the body
	Reset       = "reset"        // the same by a reset where the network has one (TCP)
	ErrorEvent  = "error"        // a stream's error event after At, and what the engine does then
	NoDone      = "no_done"      // a stream ends after At: properly framed, no finish, no [DONE]
	Garbage     = "garbage"      // what comes is not HTTP
)

var ends = []string{"", NoAnswer, HeadersOnly, Silence, Refuse, CutHeaders, Cut, Reset, ErrorEvent, NoDone, Garbage}

// The values of Behaviour.Form, any of them together but for the two line ends.
const (
	CRLF     = "crlf"     // lines end with CR LF
	CR       = "cr"       // lines end with CR
	Comments = "comments" // ": ping" and ":" lines before, between and after events, also before [DONE]
	Fields   = "fields"   // event:, id: and retry: lines
	Tight    = "tight"    // no blank after "data:"
	Lines    = "lines"    // data over several lines
	Long     = "long"     // the second content event is a line of 200 KB
	Open     = "open"     // the last line has no end
)

var forms = []string{CRLF, CR, Comments, Fields, Tight, Lines, Long, Open}

var usages = []string{"", "none", "always", "zeros", "cumulative"}

func (b *Behaviour) check() error {
	switch {
	case !slices.Contains([]string{LlamaCpp, VLLM, Ollama}, b.Manner):
		return fmt.Errorf("there is no manner %q; write %s, %s or %s", b.Manner, LlamaCpp, VLLM, Ollama)
	case !slices.Contains(ends, b.End):
		return fmt.Errorf("there is no end %q; write one of %s", b.End, strings.Join(ends[1:], ", "))
	case !slices.Contains(usages, b.Usage):
		return fmt.Errorf("there is no usage %q; write one of %s", b.Usage, strings.Join(usages[1:], ", "))
	case b.Status != 0 && (b.Status < 200 || b.Status > 599):
		return fmt.Errorf("%d is no status of an answer", b.Status)
	case b.Events < 0 || b.At < 0 || b.Bytes < 0 || b.Split < 0 || b.EventBytes < 0 || b.First < 0 || b.Body < 0 || b.Gap < 0 || b.SplitGap < 0:
		return fmt.Errorf("a number of the behaviour is negative")
	case b.Bytes != 0 && b.Bytes < leastBytes:
		return fmt.Errorf("an answer of %d bytes has no room for what an answer says; the least is %d", b.Bytes, leastBytes)
	}
	for _, f := range b.Form {
		if !slices.Contains(forms, f) {
			return fmt.Errorf("there is no form %q; write some of %s", f, strings.Join(forms, ", "))
		}
	}
	return nil
}

func (b *Behaviour) has(form string) bool { return slices.Contains(b.Form, form) }

// from reads a behaviour's JSON on top of b. What is misspelt is an error, so that no test passes by a typing mistake.
func (b Behaviour) from(raw []byte) (*Behaviour, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&b); err != nil {
		return nil, fmt.Errorf("the stub's behaviour cannot be read: %w", err)
	}
	return &b, b.check()
}

// instant tells that an answer in full depends on nothing but the behaviour and is sent in one piece: it can be made once.
func (b *Behaviour) instant() bool {
	return b.Bytes > 0 && b.Status == 0 && b.First == 0 && b.Body == 0 && !b.Chunked && !b.Close && !b.Compress && !b.Early && b.End == "" && len(b.Header) == 0
}

// Duration is a time.Duration that is text in JSON: "10ms".
type Duration time.Duration

// MarshalText writes it as Go does.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText reads what time.ParseDuration reads.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	*d = Duration(v)
	return err
}
