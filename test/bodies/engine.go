// Package bodies holds real engines against what the tables of package engine admit: no body that passes may make an engine
// crash, grow by more than mostGrowth, or keep another client's stream waiting for mostWait.
//
// It starts an engine as a process of its own, with real weights, and watches its memory and the stream of a second client
// while it sends bodies made from the table. What is checked here is the table; the way through the gateway is package
// hostile's.
package bodies

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/levelrail/levelrail/test/fixtures"
)

// What an engine has to keep to.
const (
	mostGrowth = 256 << 20
	mostWait   = 5 * time.Second
)

// process is a running engine.
type process struct {
	t      testing.TB
	cmd    *exec.Cmd
	ended  chan struct{}
	log    *os.File
	client *http.Client
	base   string
	args   func() *exec.Cmd
	ready  func(*process) error
}

// start starts the engine that args says, and waits until it serves.
func start(t testing.TB, client *http.Client, base string, args func() *exec.Cmd, ready func(*process) error) *process {
	t.Helper()
	p := &process{t: t, client: client, base: base, args: args, ready: ready}
	log, err := os.Create(filepath.Join(t.TempDir(), "engine.log"))
	if err != nil {
		t.Fatal(err)
	}
	p.log = log
	p.run()
	t.Cleanup(func() {
		p.stop()
		log.Close()
	})
	return p
}

func (p *process) run() {
	p.t.Helper()
	p.cmd = p.args()
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.ended = make(chan struct{})
	go func(cmd *exec.Cmd, ended chan struct{}) {
		cmd.Wait()
		close(ended)
	}(p.cmd, p.ended)
	deadline := time.Now().Add(2 * time.Minute)
	for {
		err := p.ready(p)
		if err == nil {
			return
		}
		if p.dead() || time.Now().After(deadline) {
			p.t.Fatalf("the engine does not come up: %v\n%s", err, p.tail())
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func (p *process) stop() {
	syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	<-p.ended
}

func (p *process) dead() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

func (p *process) tail() string {
	b, _ := os.ReadFile(p.log.Name())
	return string(b[max(0, len(b)-3000):])
}

// members are the processes of the engine: those of its process group.
func (p *process) members() (pids []int) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, s := range stats {
		b, err := os.ReadFile(s)
		if err != nil {
			continue
		}
		fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		if len(fields) > 2 && fields[2] == strconv.Itoa(p.cmd.Process.Pid) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(s)))
			pids = append(pids, pid)
		}
	}
	return pids
}

// memory sums a figure of /proc/PID/status over the engine's processes, in bytes: VmRSS is what they hold now, VmHWM the most
// since mark.
func (p *process) memory(name string) (sum int64) {
	for _, pid := range p.members() {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if _, after, ok := strings.Cut(string(b), name+":"); ok {
			n, _ := strconv.ParseInt(strings.Fields(after)[0], 10, 64)
			sum += n << 10
		}
	}
	return sum
}

func (p *process) mark() {
	for _, pid := range p.members() {
		os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)
	}
}

// worked is how much processor time the engine has had: on a machine that is busy with other things a stream waits
// without the engine doing anything.
func (p *process) worked() time.Duration {
	ticks := int64(0)
	for _, pid := range p.members() {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:])); len(fields) > 12 {
			user, _ := strconv.ParseInt(fields[11], 10, 64)
			system, _ := strconv.ParseInt(fields[12], 10, 64)
			ticks += user + system
		}
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// post asks the engine and reads the whole response, of which it returns the status and the size.
func (p *process) post(ctx context.Context, path string, body []byte) (status int, size int64, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, p.base+path, bytes.NewReader(body))
	if err != nil {
		return 0, 0, err
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := p.client.Do(r)
	if err != nil {
		return 0, 0, err
	}
	defer resp.Body.Close()
	size, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, size, err
}

// watcher is a second client, with a stream that goes on and on.
type watcher struct {
	p      *process
	cancel context.CancelFunc
	done   chan struct{}
	mu     sync.Mutex
	last   time.Time     // of an event; zero while a stream begins
	at     time.Duration // what the engine had worked then
	gap    time.Duration // the longest one
	worked time.Duration // what the engine did in it
	events int
}

func watch(p *process, path string, body []byte) *watcher {
	ctx, cancel := context.WithCancel(context.Background())
	w := &watcher{p: p, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		for ctx.Err() == nil {
			w.stream(ctx, path, body)
		}
	}()
	return w
}

func (w *watcher) stop() {
	w.cancel()
	<-w.done
}

func (w *watcher) stream(ctx context.Context, path string, body []byte) {
	r, _ := http.NewRequestWithContext(ctx, http.MethodPost, w.p.base+path, bytes.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	resp, err := w.p.client.Do(r)
	if err != nil {
		time.Sleep(50 * time.Millisecond)
		return
	}
	defer resp.Body.Close()
	in := bufio.NewScanner(resp.Body)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		if !strings.HasPrefix(in.Text(), "data:") {
			continue
		}
		w.mu.Lock()
		w.passed()
		w.last, w.at = time.Now(), w.p.worked()
		w.events++
		w.mu.Unlock()
	}
	w.mu.Lock()
	w.passed()
	w.last = time.Time{}
	w.mu.Unlock()
}

// passed takes the time since the last event for a gap. Its caller holds the lock.
func (w *watcher) passed() {
	if w.last.IsZero() {
		return
	}
	if d := time.Since(w.last); d > w.gap {
		w.gap, w.worked = d, w.p.worked()-w.at
	}
}

// reset waits until the stream runs, and begins anew.
func (w *watcher) reset(limit time.Duration) error {
	err := w.goesOn(limit)
	w.mu.Lock()
	w.gap, w.worked = 0, 0
	w.mu.Unlock()
	return err
}

// goesOn waits for the next event.
func (w *watcher) goesOn(limit time.Duration) error {
	w.mu.Lock()
	was := w.events
	w.mu.Unlock()
	for deadline := time.Now().Add(limit); ; time.Sleep(20 * time.Millisecond) {
		w.mu.Lock()
		more := w.events > was && !w.last.IsZero()
		w.mu.Unlock()
		if more {
			return nil
		}
		if time.Now().After(deadline) || w.p.dead() {
			return errors.New("the second client's stream has stopped")
		}
	}
}

func (w *watcher) longest() (gap, worked time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.passed()
	return w.gap, w.worked
}

func piece(t testing.TB, p fixtures.Piece) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("the engines of the tests are made as root")
	}
	dir, err := fixtures.Get(context.Background(), p)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// llamaServer is started as our units do on a CPU.
func llamaServer(t testing.TB) *process {
	program := filepath.Join(piece(t, fixtures.LlamaCpp), "bin", "llama-server")
	weights := filepath.Join(piece(t, fixtures.Weights), fixtures.WeightsFile)
	dir, err := os.MkdirTemp("", "bodies")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "engine.sock")
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	return start(t, client, "http://localhost", func() *exec.Cmd {
		os.Remove(socket)
		// A processor takes seconds for a batch of 2048 tokens, in which no stream goes on: small ones show what a field does.
		cmd := exec.Command(program, "--host", socket, "--model", weights, "--alias", "chat", "--ctx-size", "4096", "--parallel", "4", "--kv-unified", "--batch-size", "128", "--ubatch-size", "128", "--no-slots", "--offline", "--device", "none", "--fit", "off", "--log-colors", "off")
		cmd.Env = append(os.Environ(), "LLAMA_ARG_UI=0", "HOME="+dir)
		return cmd
	}, func(p *process) error {
		resp, err := p.client.Get(p.base + "/health")
		if err != nil {
			return err
		}
		resp.Body.Close()
		if resp.StatusCode != 200 {
			return fmt.Errorf("GET /health answered %d", resp.StatusCode)
		}
		return nil
	})
}

// ollamaServer serves the same weights, imported into a store of its own, under the name chat.
func ollamaServer(t testing.TB) *process {
	program := filepath.Join(piece(t, fixtures.Ollama), "bin", "ollama")
	weights := filepath.Join(piece(t, fixtures.Weights), fixtures.WeightsFile)
	dir, err := os.MkdirTemp("", "bodies")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	imported := false
	return start(t, &http.Client{}, "http://"+address, func() *exec.Cmd {
		cmd := exec.Command(program, "serve")
		cmd.Env = append(os.Environ(), "OLLAMA_HOST="+address, "OLLAMA_MODELS="+dir, "HOME="+dir, "OLLAMA_CONTEXT_LENGTH=4096", "OLLAMA_NUM_PARALLEL=4", "OLLAMA_KEEP_ALIVE=-1", "OLLAMA_NO_CLOUD=1", "OLLAMA_NOPRUNE=1")
		return cmd
	}, func(p *process) error {
		if resp, err := p.client.Get(p.base + "/api/version"); err != nil {
			return err
		} else {
			resp.Body.Close()
		}
		if !imported {
			file, err := os.Open(weights)
			if err != nil {
				return err
			}
			defer file.Close()
			resp, err := p.client.Post(p.base+"/api/blobs/sha256:"+fixtures.WeightsSHA256, "application/octet-stream", file)
			if err != nil {
				return err
			}
			resp.Body.Close()
			body := `{"model":"chat","stream":false,"files":{"m.gguf":"sha256:` + fixtures.WeightsSHA256 + `"}}`
			if status, _, err := p.post(context.Background(), "/api/create", []byte(body)); err != nil || status != 200 {
				return fmt.Errorf("POST /api/create answered %d, %v", status, err)
			}
			imported = true
		}
		status, _, err := p.post(context.Background(), "/v1/completions", []byte(`{"model":"chat","prompt":"a","max_tokens":1}`))
		if err == nil && status != 200 {
			err = fmt.Errorf("the first completion was answered %d", status)
		}
		return err
	})
}
