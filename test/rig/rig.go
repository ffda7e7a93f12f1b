// Package rig runs the real gateway's program beside a control plane that a test says, with an engine stub behind it: what
// benchmarks and clients' suites stand on where booting a whole host would only be in the way.
//
// It owns building the programs, their configuration (the packaged Caddyfile at other addresses), starting and ending
// them, what they use of the machine, and a control plane that speaks the gateway's half of the API over a Unix socket.
// Whole hosts with systemd are package hosttest's.
package rig

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// Tags are the build tags of everything that holds Caddy, as in the Makefile, so that the build cache is shared.
const Tags = "nobadger,nomysql,nopgx"

// Root is the repository's directory, found from this file's place or, in a build that has trimmed it, from the working
// directory upwards.
func Root() (string, error) {
	_, file, _, _ := runtime.Caller(0)
	dir := filepath.Dir(filepath.Dir(filepath.Dir(file)))
	if !filepath.IsAbs(dir) {
		var err error
		if dir, err = os.Getwd(); err != nil {
			return "", err
		}
	}
	for d := dir; ; d = filepath.Dir(d) {
		if b, err := os.ReadFile(filepath.Join(d, "go.mod")); err == nil && strings.HasPrefix(string(b), "module github.com/levelrail/levelrail\n") {
			return d, nil
		}
		if d == filepath.Dir(d) {
			return "", fmt.Errorf("%s is in no copy of the repository; run this from inside it", dir)
		}
	}
}

// Build compiles a program of the repository, such as ./cmd/levelrail-gateway, into dir and returns its path.
func Build(ctx context.Context, pkg, dir string) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	out := filepath.Join(dir, filepath.Base(pkg))
	cmd := exec.CommandContext(ctx, "go", "build", "-tags="+Tags, "-trimpath", "-buildvcs=false", "-o", out, pkg)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build %s: %w\n%s", pkg, err, text)
	}
	return out, nil
}

// FreePort is a TCP port of 127.0.0.1 that nobody listened on a moment ago.
func FreePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// Gateway says how to configure a gateway.
type Gateway struct {
	Dir     string // for its configuration and state; made when missing
	Port    int    // of 127.0.0.1
	Control string // the control plane's socket
	Admin   string // a socket for Caddy's administration, with its profiles; empty: none
}

// URL is where clients reach it.
func (g Gateway) URL() string { return fmt.Sprintf("http://127.0.0.1:%d", g.Port) }

// Write writes the packaged Caddyfile at these addresses and returns its path.
func (g Gateway) Write() (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	b, err := os.ReadFile(filepath.Join(root, "packaging", "caddy", "Caddyfile"))
	if err != nil {
		return "", err
	}
	text := string(b)
	edits := []string{
		"http://:7421 {\n\tbind", fmt.Sprintf("http://:%d {\n\tbind", g.Port),
		"unix//run/levelrail/gateway.sock", "unix/" + g.Control,
		"{$STATE_DIRECTORY:/var/lib/levelrail/gateway}", filepath.Join(g.Dir, "state"),
		"/etc/levelrail/sites", filepath.Join(g.Dir, "sites"),
	}
	if g.Admin != "" {
		edits = append(edits, "\tadmin off\n", "\tadmin unix/"+g.Admin+"|0600\n")
	}
	for i := 0; i < len(edits); i += 2 {
		if !strings.Contains(text, edits[i]) {
			return "", fmt.Errorf("the packaged Caddyfile has no %q any more; change package rig with it", edits[i])
		}
		text = strings.ReplaceAll(text, edits[i], edits[i+1])
	}
	return write(g.Dir, text)
}

// WritePlain writes the Caddyfile of a Caddy that is nothing but a reverse proxy to the engine's socket.
func WritePlain(dir string, port int, engine, admin string) (string, error) {
	option := "off"
	if admin != "" {
		option = "unix/" + admin + "|0600"
	}
	return write(dir, fmt.Sprintf("{\n\tadmin %s\n\tpersist_config off\n}\nhttp://:%d {\n\tbind 127.0.0.1\n\treverse_proxy unix/%s\n}\n", option, port, engine))
}

func write(dir, text string) (string, error) {
	for _, d := range []string{dir, filepath.Join(dir, "state"), filepath.Join(dir, "sites")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return "", err
		}
	}
	path := filepath.Join(dir, "Caddyfile")
	return path, os.WriteFile(path, []byte(text), 0o600)
}
