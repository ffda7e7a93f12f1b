package caddymodule

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestXcaddy: a Caddy of one's own, built as `xcaddy build --with github.com/levelrail/levelrail/caddymodule=…` does (a main
// package with blank imports in a module of its own, which replaces ours), has the modules and reads the directive.
func TestXcaddy(t *testing.T) {
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	sum, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	// The same versions as ours, so that nothing is fetched.
	const module = "github.com/levelrail/levelrail"
	write("go.mod", strings.Replace(string(mod), "module "+module, "module caddy", 1)+"\nrequire "+module+" v0.0.0\nreplace "+module+" => "+root+"\n")
	write("go.sum", string(sum))
	write("main.go", `package main

import (
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	_ "github.com/caddyserver/caddy/v2/modules/standard"
	_ "`+module+`/caddymodule"
)

func main() { caddycmd.Main() }
`)
	write("Caddyfile", "{\n\tadmin off\n\tlevelrail {\n\t\tstate_dir "+filepath.Join(dir, "state")+"\n\t}\n}\nhttp://:7421 {\n\tlevelrail\n}\n")
	run := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod -trimpath -buildvcs=false -tags=nobadger,nomysql,nopgx", "GOPROXY=off", "GOWORK=off", "CGO_ENABLED=0", "HOME="+dir,
			"GOCACHE="+goEnv(t, "GOCACHE"), "GOMODCACHE="+goEnv(t, "GOMODCACHE"))
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Run(); err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, &out)
		}
		return out.String()
	}
	run("go", "build", "-o", "caddy", ".")
	modules := run("./caddy", "list-modules")
	for _, want := range []string{"levelrail", "http.handlers.levelrail", "tls.permission.levelrail"} {
		if !strings.Contains(modules, "\n"+want+"\n") {
			t.Errorf("the module %s is missing:\n%s", want, modules)
		}
	}
	run("./caddy", "validate", "--config", "Caddyfile")
}

func goEnv(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.Command("go", "env", name).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}
