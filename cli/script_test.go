package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

var updateFlag = flag.Bool("update", false, "write what the commands print into testdata and the generated documents")

// runScript runs testdata/NAME.txt against a fake server. A line that begins with "$ " is a command; below it stands what
// it writes to stdout, then its stderr with "2> " before each line, then "=> N" unless the exit code is 0. A line that
// begins with "# " after an empty one is a comment. Commands are
//
//	levelrail …              with NAME=value before it for its environment
//	levelrail … | json PATH  stdout has to be exactly one JSON document; prints what PATH (.items.0.name) finds in it
//	levelrail … | head -1    stdout is closed after its first line
//	fake …                   changes the server, see fakeCommand
func runScript(t *testing.T, name string) {
	t.Helper()
	t.Parallel()
	file := filepath.Join("testdata", name+".txt")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s := &script{t: t, fake: newFake(t)}
	var out strings.Builder
	lines := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	for i := 0; i < len(lines); {
		command, ok := strings.CutPrefix(lines[i], "$ ")
		out.WriteString(lines[i] + "\n")
		begin := i
		i++
		if !ok {
			continue
		}
		from := i
		prints := !strings.HasPrefix(command, "fake ")
		for prints && i < len(lines) && !strings.HasPrefix(lines[i], "$ ") && !(lines[i-1] == "" && strings.HasPrefix(lines[i], "# ")) {
			i++
		}
		want := strings.TrimRight(strings.Join(lines[from:i], "\n"), "\n")
		got := strings.TrimRight(s.run(command), "\n")
		if got != want && !*updateFlag {
			t.Errorf("%s:%d: $ %s\nprints\n%s\n\nand not\n%s", file, begin+1, command, got, want)
		}
		if got != "" {
			out.WriteString(got + "\n")
		}
		if i < len(lines) && prints {
			out.WriteString("\n")
		}
	}
	if *updateFlag {
		if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

type script struct {
	t     *testing.T
	fake  *fake
	ticks atomic.Int64
	// interruptAt is what the next command has to say before it is told to stop.
	interruptAt string
}

// trigger does something once what was written to it holds a text.
type trigger struct {
	to   *bytes.Buffer
	at   string
	fire func()
}

func (t *trigger) Write(b []byte) (int, error) {
	defer func() {
		if strings.Contains(t.to.String(), t.at) {
			t.fire()
		}
	}()
	return t.to.Write(b)
}

// now is a clock that goes on by a second each time somebody looks: durations in the output are then always the same.
func (s *script) now() time.Time { return fakeNow.Add(time.Duration(s.ticks.Add(1)) * time.Second) }

func (s *script) run(line string) string {
	pipe := ""
	if i := max(strings.LastIndex(line, " | json "), strings.LastIndex(line, " | head -1")); i >= 0 {
		line, pipe = line[:i], line[i+len(" | "):]
	}
	words := shellWords(line)
	env := map[string]string{"LEVELRAIL_SOCKET": s.fake.socket}
	for len(words) > 0 && strings.Contains(words[0], "=") {
		name, value, _ := strings.Cut(words[0], "=")
		env[name] = value
		words = words[1:]
	}
	switch words[0] {
	case "fake":
		s.fakeCommand(words[1:])
		return ""
	case "levelrail":
	default:
		s.t.Fatalf("unknown command in a script: %s", line)
	}
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	var stdout, stderr bytes.Buffer
	var to io.Writer = &stdout
	var talk io.Writer = &stderr
	if s.interruptAt != "" {
		talk, s.interruptAt = &trigger{to: &stderr, at: s.interruptAt, fire: cancel}, ""
	}
	if pipe == "head -1" {
		to = &head{&stdout}
	}
	code := Run(ctx, Env{Args: words[1:], Stdin: strings.NewReader(""), Stdout: to, Stderr: talk, Now: s.now, Getenv: func(n string) string { return env[n] }})
	var out strings.Builder
	if path, ok := strings.CutPrefix(pipe, "json "); ok {
		out.WriteString(jsonPath(stdout.Bytes(), path) + "\n")
	} else {
		out.WriteString(stdout.String())
	}
	if stderr.Len() > 0 {
		for l := range strings.SplitSeq(strings.TrimSuffix(stderr.String(), "\n"), "\n") {
			out.WriteString("2> " + l + "\n")
		}
	}
	if code != 0 {
		fmt.Fprintf(&out, "=> %d\n", code)
	}
	return strings.ReplaceAll(out.String(), s.fake.socket, "SOCKET")
}

// head is a reader that leaves after one line.
type head struct{ to *bytes.Buffer }

func (h *head) Write(b []byte) (int, error) {
	if strings.Contains(h.to.String(), "\n") {
		return 0, &os.PathError{Op: "write", Path: "|1", Err: syscall.EPIPE}
	}
	line, _, whole := bytes.Cut(b, []byte("\n"))
	h.to.Write(line)
	if whole {
		h.to.WriteString("\n")
	}
	return len(b), nil
}

// jsonPath reads exactly one JSON document and finds something in it; a string is printed without quotes.
func jsonPath(b []byte, path string) string {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return fmt.Sprintf("not JSON (%v): %s", err, b)
	}
	if rest, _ := io.ReadAll(d.Buffered()); len(bytes.TrimSpace(rest)) > 0 {
		return fmt.Sprintf("more than one document: %s", b)
	}
	for step := range strings.SplitSeq(strings.Trim(path, "."), ".") {
		switch at := v.(type) {
		case map[string]any:
			if step != "" {
				v = at[step]
			}
		case []any:
			i, err := strconv.Atoi(step)
			if err != nil || i >= len(at) {
				return "nothing at " + path
			}
			v = at[i]
		default:
			return "nothing at " + path
		}
	}
	if text, ok := v.(string); ok {
		return text
	}
	out, _ := json.Marshal(v)
	return string(out)
}

// fakeCommand changes the server:
//
//	fake model NAME [WHAT]       deploys a model, and makes WHAT of it (fake.step)
//	fake step NAME WHAT          makes something of a model now
//	fake then NAME WHAT          … while a command follows it; also "hang up"
//	fake node NAME [gpus|offline]
//	fake fail WHERE KIND MESSAGE NEXT   lets a request fail: "GET /api/v1/models", "watch", "logs"
//	fake interrupt TEXT          the next command is stopped, as by Ctrl-C, once its stderr has the text
//	fake weakened NAME WHAT      a drop-in takes isolation from the model's engine
//	fake note TEXT               the next deployments say so
//	fake warning TEXT            the status says so
//	fake gateways [silent] GATEWAY…  these are connected, and answer or do not
//	fake use KEY HOURS-AGO REQUESTS COUNTED    requests of a key in an hour; of any key
//	fake lost ROWS               gateways had to drop sums
//	fake flying ID GATEWAY STATE SECONDS TOKENS
//	fake limit GATEWAY LIMIT MOST USED REFUSED-SECONDS-AGO|never RESET-SECONDS
//	fake limited NAME            a model tells its limits and its last use
//	fake used NAME KEY           a key was used a minute ago
//	fake log MESSAGE             a line in the journal
//	fake expect TEXT             the newest request has to contain it
func (s *script) fakeCommand(w []string) {
	f := s.fake
	f.mu.Lock()
	defer f.mu.Unlock()
	switch w[0] {
	case "model":
		spec := levelrail.ModelSpec{Engine: "ollama", Source: "llama3.1:8b", Replicas: 1}
		f.models[w[1]] = &wire.Model{Name: w[1], Engine: "ollama", Model: "llama3.1:8b", Revision: 1, Spec: spec, ServedNames: levelrail.ServedNames(w[1], spec),
			URL: "http://127.0.0.1:7421/v1", NodeID: "node_1", NodeName: "gpu-01", Residency: levelrail.ResidencyAlways,
			Condition: levelrail.Condition{Reason: levelrail.Pending, Since: fakeNow}, CreatedAt: fakeNow.Add(-3 * time.Hour), CreatedBy: "socket:uid 0",
			UpdatedAt: fakeNow.Add(-3 * time.Hour)}
		f.newKey(w[1], "default", 0)
		if len(w) > 2 {
			f.step(w[1], w[2])
		}
		f.change()
	case "step":
		f.step(w[1], w[2])
	case "then":
		f.steps[w[1]] = append(f.steps[w[1]], w[2])
	case "node":
		f.nodes = append(f.nodes, fakeNode(w[1], w[2:]))
	case "weights":
		f.weights = append(f.weights, wire.StoredWeights{Name: w[1], NodeID: "node_" + w[2], Node: w[2], Online: true, Source: "org/name", Files: 1, Bytes: 4 << 30, FetchedAt: fakeNow.Add(-2 * time.Hour)})
	case "fail":
		f.fail[w[1]] = &levelrail.Error{Kind: levelrail.ErrorKind(w[2]), Message: w[3], Next: w[4]}
	case "interrupt":
		s.interruptAt = w[1]
	case "weakened":
		m := f.models[w[1]]
		for i := range m.Replicas {
			m.Replicas[i].NotIsolated = append(m.Replicas[i].NotIsolated, w[2])
		}
	case "note":
		f.notes = append(f.notes, w[1])
	case "warning":
		f.status.Warnings = append(f.status.Warnings, w[1])
	case "version":
		f.status.Version = w[1]
	case "gateways":
		if w[1] == "silent" {
			f.silent = w[2:]
		} else {
			f.heard = w[1:]
		}
	case "use":
		n := number(s.t, w[3])
		f.usage.Items = append(f.usage.Items, levelrail.Usage{Hour: fakeNow.Add(-time.Duration(number(s.t, w[2])) * time.Hour).Truncate(time.Hour), KeyID: w[1], Counts: levelrail.Counts{Requests: n, OK: n - 2,
			ClientErrors: 1, ServerErrors: 1, Limited: 1, WithUsage: number(s.t, w[4]), InputTokens: 100 * n, OutputTokens: 20 * n, ResponseBytes: 3000 * n, DurationMS: 1840 * n, FirstByteMS: 95 * n}})
		f.usage.UpToSeconds = 30
	case "lost":
		f.usage.DroppedRows = number(s.t, w[1])
	case "flying":
		f.flying = append(f.flying, wire.InFlight{ID: w[1], GatewayID: w[2], KeyID: "key_0001", KeyPrefix: "lr-00010", Route: "/v1/chat/completions", Stream: w[5] != "-", State: w[3],
			StartedAt: fakeNow.Add(-time.Duration(number(s.t, w[4])) * time.Second), AgeSeconds: number(s.t, w[4]), Bytes: 4096})
		if w[5] != "-" {
			f.flying[len(f.flying)-1].Tokens = number(s.t, w[5])
		}
	case "limit":
		l := wire.LimitState{GatewayID: w[1], Limit: w[2], Most: number(s.t, w[3]), Used: number(s.t, w[4]), ResetSeconds: number(s.t, w[6])}
		if w[5] != "never" {
			at := fakeNow.Add(-time.Duration(number(s.t, w[5])) * time.Second)
			l.RefusedLast = &at
		}
		if len(w) > 7 {
			part := number(s.t, w[7])
			l.Lease = &part
		}
		f.limits = append(f.limits, l)
	case "total":
		f.limits, f.total = nil, append(f.total, wire.LimitTotal{Limit: w[1], Most: number(s.t, w[2]), Used: number(s.t, w[3]), Gone: number(s.t, w[4]), ResetSeconds: number(s.t, w[5])})
	case "limited":
		at := fakeNow.Add(-3 * time.Minute)
		f.models[w[1]].LastActiveAt = &at
		f.models[w[1]].Limits = &wire.Limits{MaxBodyBytes: 32 << 20, MaxN: 16, MaxGenLen: 32768, MaxInflight: 32, RetryAfterSeconds: 5, DialTimeoutSeconds: 5, HeaderTimeout: 300, IdleTimeout: 120}
	case "used":
		for _, k := range f.keys[w[1]] {
			if at := fakeNow.Add(-time.Minute); k.ID == w[2] {
				k.LastUsedAt = &at
			}
		}
	case "log":
		f.logs = append(f.logs, wire.LogLine{At: fakeNow.Add(time.Duration(len(f.logs)) * time.Second), Unit: "levelrail-model-chat.service", Priority: 6, Message: w[1]})
	case "expect":
		if last := f.asked[len(f.asked)-1]; !strings.Contains(last, w[1]) {
			s.t.Errorf("the newest request is %q and has no %q", last, w[1])
		}
	default:
		s.t.Fatalf("unknown command in a script: fake %v", w)
	}
}

func number(t *testing.T, text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatalf("%q is no number", text)
	}
	return n
}

func fakeNode(name string, with []string) wire.Node {
	gib := func(n int64) *int64 { n <<= 30; return &n }
	percent := 12
	at := fakeNow.Add(-4 * time.Second)
	n := wire.Node{Node: levelrail.Node{ID: "node_" + name, Name: name, Local: true, Version: levelrail.Version, OS: "debian 14", Stamp: levelrail.Stamp{CreatedAt: fakeNow.Add(-240 * time.Hour)}},
		Online: true, LastReport: &at, Disk: &levelrail.DiskReading{Path: "/var/lib/levelrail/weights", TotalBytes: 500 << 30, FreeBytes: 123 << 30},
		Engines: []wire.EngineStatus{
			{Engine: "ollama", Installed: false, Next: "curl -fsSL https://ollama.com/install.sh | sh, or set APP_MODEL_ENGINE_OLLAMA"},
			{Engine: "llamacpp", Installed: true, Version: "b6100", Program: "/usr/bin/llama-server"},
		}}
	for _, w := range with {
		switch w {
		case "offline":
			n.Online = false
			at = fakeNow.Add(-6 * time.Minute)
		case "gpus":
			for i := range 2 {
				uuid := fmt.Sprintf("GPU-%08d", i)
				n.Devices = append(n.Devices, levelrail.Device{UUID: uuid, Index: i, Kind: "card", Class: "NVIDIA H200", MemoryBytes: gib(140)})
				n.Readings = append(n.Readings, levelrail.DeviceReading{UUID: uuid, FreeBytes: gib(100), UsedBytes: gib(40), Busy: &percent, At: at})
			}
			n.Models = []string{"chat"}
			n.Labels = map[string]levelrail.Labels{"operator": {"rack": "a4"}}
		}
	}
	return n
}

// shellWords splits a line as a shell does: blanks between words, quotes around them.
func shellWords(line string) []string {
	var words []string
	var b strings.Builder
	in, open := rune(0), false
	for _, r := range line {
		switch {
		case in != 0 && r == in:
			in = 0
		case in != 0:
			b.WriteRune(r)
		case r == '\'' || r == '"':
			in, open = r, true
		case r == ' ':
			if open || b.Len() > 0 {
				words = append(words, b.String())
				b.Reset()
			}
			open = false
		default:
			b.WriteRune(r)
		}
	}
	if open || b.Len() > 0 {
		words = append(words, b.String())
	}
	return words
}
