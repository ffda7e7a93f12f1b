package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/engine"
)

// fromEngine lets the engine make its own store: a short-lived server of the engine writes it, and an engine unit later
// sees it read-only. Such a store has its files by content (sha256-HEX), so they are shared with other models like any.
func (j *job) fromEngine(ctx context.Context, plan engine.WeightsPlan) error {
	dir := filepath.Join(j.spec.Stage, engineDir)
	want := engine.ImportWant{Tag: plan.Tag, Path: plan.Path, Names: j.spec.Names}
	if plan.Path != "" {
		if j.spec.Local == nil {
			return errors.New("the file to import is not in the order")
		}
		want.SHA256 = j.spec.LocalSHA256
		want.Open = func() (io.ReadCloser, int64, error) {
			f, err := os.Open(filepath.Join(dir, "blobs", "sha256-"+want.SHA256))
			return f, j.spec.Local.Bytes, err
		}
	} else if err := room(j.spec.Stage, 1); err != nil { // how much a pull brings, the engine learns only while pulling
		return err
	}
	return j.serve(ctx, plan, dir, func(ctx context.Context, c *http.Client) error {
		return plan.Import(ctx, c, want, func(p levelrail.Progress) { j.rec.tell(p) })
	})
}

// seed links into the store that an engine's import makes the content files of the set in use, and of other models' sets
// from the same source, so that the engine finds what it would bring again. They were verified when they came; what the
// new store does not name does not become part of the set.
func (s Store) seed(o Spec, to string) error {
	sets, err := s.Sets()
	if err != nil {
		return err
	}
	for model, m := range sets {
		if m.Engine != o.Engine || model != o.Model && m.Source != o.Spec.Source {
			continue
		}
		for _, f := range m.Files {
			base := filepath.Base(f.Path)
			if filepath.Dir(f.Path) != "blobs" || !contentName.MatchString(base) {
				continue
			}
			err := os.Link(filepath.Join(s.Set(model), f.Path), filepath.Join(to, base))
			if err != nil && !errors.Is(err, fs.ErrExist) && !errors.Is(err, fs.ErrNotExist) { // gone: that model was just updated
				return err
			}
		}
	}
	return nil
}

// serve runs the engine's server on dir while use works with it. The port is whatever is free; the client dials it
// whatever host a request names.
func (j *job) serve(ctx context.Context, plan engine.WeightsPlan, dir string, use func(context.Context, *http.Client) error) error {
	if j.spec.Program == "" {
		return &Failure{Reason: levelrail.EngineNotInstalled, Message: "the engine " + j.spec.Engine + ", which has to import the weights, is not on this node"}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("find a free port for the import: %w", err)
	}
	address := l.Addr().String()
	l.Close()
	launch := plan.Serve(j.spec.Program, dir, address)
	cmd := exec.Command(launch.Args[0], launch.Args[1:]...)
	cmd.Env = append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, launch.Env...)
	for name, value := range j.spec.Proxy {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	tail := &lastLines{}
	cmd.Stdout, cmd.Stderr = tail, tail
	// The server must not outlive this process, whatever ends it; and its children go with its group.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return &Failure{Reason: levelrail.EngineFailed, Message: fmt.Sprintf("start %s for the import: %v", launch.Args[0], err), Next: "run it by hand to see what it misses"}
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()

	useCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	dialer := &net.Dialer{}
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return dialer.DialContext(ctx, "tcp", address)
	}}}
	used := make(chan error, 1)
	go func() { used <- use(useCtx, client) }()
	select {
	case err = <-used:
	case exit := <-ended:
		ended <- exit
		cancel()
		<-used
		err = &Failure{Reason: levelrail.EngineFailed, Message: fmt.Sprintf("%s ended during the import (%v): %s", launch.Args[0], exit, tail), Next: "run it by hand to see what it misses"}
	case <-ctx.Done():
		err = ctx.Err()
	}
	client.CloseIdleConnections()
	syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
	select {
	case <-ended:
	case <-time.After(time.Duration(max(launch.StopSeconds, 5)) * time.Second):
	}
	syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // whatever the group still has
	return err
}

var (
	contentName = regexp.MustCompile(`^sha256-[0-9a-f]{64}$`)
	contentRef  = regexp.MustCompile(`sha256:[0-9a-f]{64}`)
	// fetchKeyName are the names that key gives.
	fetchKeyName = regexp.MustCompile(`^(sha256|from)-[0-9a-f]{64}$`)
)

// lastLines passes what a program says on to the journal and keeps the end for an error text.
type lastLines struct{ tail []byte }

func (l *lastLines) Write(b []byte) (int, error) {
	os.Stderr.Write(b)
	l.tail = append(l.tail, b...)
	if len(l.tail) > 2000 {
		l.tail = l.tail[len(l.tail)-2000:]
	}
	return len(b), nil
}

func (l *lastLines) String() string {
	lines := strings.Split(strings.TrimSpace(string(l.tail)), "\n")
	return strings.Join(lines[max(0, len(lines)-3):], " | ")
}
