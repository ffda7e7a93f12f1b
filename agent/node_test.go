package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/agent/units"
	"github.com/levelrail/levelrail/engine"
)

// TestReference: the page of settings is what the struct says.
func TestReference(t *testing.T) {
	b, err := os.ReadFile("../docs/reference/settings-agent.md")
	if err != nil {
		t.Fatal(err)
	}
	if string(b) != Reference() {
		t.Error("docs/reference/settings-agent.md is out of date; run: go run ./cmd/levelrail-agent settings > docs/reference/settings-agent.md")
	}
}

// TestSettings: values that mean nothing are refused with what to write; every engine's program has its setting.
func TestSettings(t *testing.T) {
	load := func(env map[string]string) (Settings, error) {
		var s Settings
		err := levelrail.LoadSettings(&s, EnvironmentFile, func(k string) string { return env[k] }, nil)
		if err == nil {
			err = s.check()
		}
		return s, err
	}
	if _, err := load(nil); err != nil {
		t.Errorf("the defaults are refused: %v", err)
	}
	for env, says := range map[string]string{"APP_GPU_ATTACH=cdi": "write auto", "APP_GPU_ATTACH=x": "auto or legacy", "APP_GPU_COLLECT_INTERVAL=1ms": "a second or more", "APP_GPU_COLLECT_INTERVAL=60": "no unit"} {
		k, v, _ := strings.Cut(env, "=")
		if _, err := load(map[string]string{k: v}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: got %v", env, err)
		}
	}
	s, err := load(map[string]string{"APP_MODEL_ENGINE_OLLAMA": "/opt/o", "HTTPS_PROXY": "http://u:p@proxy"})
	if err != nil {
		t.Fatal(err)
	}
	if name, path := s.program("ollama"); name != "APP_MODEL_ENGINE_OLLAMA" || path != "/opt/o" {
		t.Errorf("program: %s, %s", name, path)
	}
	if p := s.proxy(); len(p) != 1 || p["HTTPS_PROXY"] != "http://u:p@proxy" {
		t.Errorf("proxy: %v", p)
	}
	known := map[string]bool{}
	for _, one := range levelrail.Settings(Settings{}) {
		known[one.Name] = true
	}
	for _, name := range engine.Names() {
		if setting, _ := s.program(name); name != "echo" && name != "doored" && name != "local" && !known[setting] {
			t.Errorf("the engine %s has no setting %s", name, setting)
		}
	}
}

// TestProgram: a program that an engine's unit could not run is not found, and the reason is said.
func TestProgram(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	e, err := engine.Get("llamacpp")
	if err != nil {
		t.Fatal(err)
	}
	for path, says := range map[string]string{
		"/usr/bin/true":     "",
		"llama-server":      "not an absolute path",
		"/nonexistent/x":    "there is no such file",
		plain:               "it is not a program",
		"/home/me/bin/x":    "there is no such file",
		"/usr/bin":          "it is not a program",
		link(t, dir, plain): "it is not a program",
		hidden(t, "llama"):  "which engines cannot see",
	} {
		a := &Agent{Config: Config{Settings: Settings{EngineLlamaCpp: path}, Host: Host{Distribution: "debian", Version: "14"}}}
		got, lack := a.program(e)
		switch {
		case says == "":
			if lack != nil || got != path {
				t.Errorf("%s: %s, %+v", path, got, lack)
			}
		case lack == nil || !strings.Contains(lack.Message, says) || !strings.Contains(lack.Message, "APP_MODEL_ENGINE_LLAMACPP") || lack.Reason != levelrail.EngineNotInstalled:
			t.Errorf("%s: %+v, want %q", path, lack, says)
		}
	}
}

func link(t *testing.T, dir, to string) string {
	t.Helper()
	path := filepath.Join(dir, "link")
	if err := os.Symlink(to, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// hidden is a program where engines cannot see it: below /tmp.
func hidden(t *testing.T, name string) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "levelrail-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestReadHost: releases in the making have a code name only.
func TestReadHost(t *testing.T) {
	for text, want := range map[string]string{
		"ID=debian\nVERSION_ID=\"12\"\n":                 "debian 12",
		"ID=debian\nVERSION_CODENAME=forky\n":            "debian 14",
		"ID=debian\nVERSION_CODENAME=sid\n":              "debian sid",
		"ID=ubuntu\nVERSION_ID=\"24.04\"\nNAME=Ubuntu\n": "ubuntu 24.04",
		"": "",
	} {
		path := filepath.Join(t.TempDir(), "os-release")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := ReadHost(path).String(); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

// TestFailureText: how an engine ended is said in words, before the cause that its journal told, with what to do where that
// follows from it.
func TestFailureText(t *testing.T) {
	for _, row := range []struct {
		state      units.State
		cause      string
		want, next string
	}{
		{units.State{Active: "failed", ExitCode: 1, ExitStatus: 1}, "no tensor", "the engine ends with status 1: no tensor", ""},
		{units.State{Active: "failed", ExitCode: 1}, "", "the engine ends by itself, with status 0", ""},
		{units.State{Active: "failed", ExitCode: 2, ExitStatus: 9}, "", "the engine is ended by signal 9 (SIGKILL): it was killed from outside, most likely because the machine ran out of memory", "smaller --context"},
		{units.State{Active: "failed", Result: "oom-kill", ExitCode: 2, ExitStatus: 9}, "", "the kernel killed the engine because the machine ran out of memory", "smaller --context"},
		{units.State{Active: "failed", ExitCode: 3, ExitStatus: 4}, "", "the engine is ended by signal 4 (SIGILL): an instruction that this CPU does not have: the program was built for a newer CPU", "APP_MODEL_ENGINE_"},
		{units.State{Active: "failed", ExitCode: 3, ExitStatus: 11}, "ggml fault", "the engine is ended by signal 11 (SIGSEGV): the engine crashed: a fault of the program, of its GPU driver, or of what it was given to load: ggml fault", "another version"},
		{units.State{Active: "failed", ExitCode: 3, ExitStatus: 6}, "GGML_ASSERT", "the engine is ended by signal 6 (SIGABRT): the engine gave up on a fault that it found itself, which its log names: GGML_ASSERT", ""},
		{units.State{Active: "failed", ExitCode: 3, ExitStatus: 7}, "", "the engine is ended by signal 7 (SIGBUS): a file that it had mapped into memory was cut short, or the disk or the memory failed", "journalctl -k"},
		{units.State{Active: "failed", ExitCode: 3, ExitStatus: 8}, "", "the engine is ended by signal 8 (SIGFPE): a fault of arithmetic in the engine, such as a division by zero: often a damaged weights file", "another file"},
		{units.State{Active: "failed", ExitCode: 2, ExitStatus: 15}, "", "the engine is ended by signal 15 (SIGTERM): somebody or another service of this machine ended it", "journal"},
		{units.State{Active: "failed", ExitCode: 1, ExitStatus: 137}, "", "the engine ends with status 137, which stands for signal 9: it was killed from outside, most likely because the machine ran out of memory", "smaller --context"},
		{units.State{Active: "failed", ExitCode: 2, ExitStatus: 63}, "", "the engine is ended by signal 63", ""},
		{units.State{Active: "failed", ExitCode: 1, ExitStatus: 243}, "", "systemd cannot give the engine its key (243/CREDENTIALS)", ""},
		{units.State{Active: "active", Sub: "running"}, "model not found", "the engine runs and does not serve the model: model not found", ""},
	} {
		got, next := failureText(row.state, row.cause)
		if got != row.want || !strings.Contains(next, row.next) || row.next == "" && next != "" {
			t.Errorf("got %q, next %q; want %q, %q", got, next, row.want, row.next)
		}
	}
}

// TestIdentity: damaged memory is an error, never a new node.
func TestIdentity(t *testing.T) {
	dir := t.TempDir()
	first, err := loadIdentity(dir)
	if err != nil {
		t.Fatal(err)
	}
	again, err := loadIdentity(dir)
	if err != nil || again.NodeID != first.NodeID {
		t.Errorf("got %+v, %v", again, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "agent.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := loadIdentity(dir); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("got %v", err)
	}
}

// TestCommand: what it does not know is status 2, with the usage.
func TestCommand(t *testing.T) {
	for _, row := range []struct {
		args   []string
		status int
		out    string
	}{
		{[]string{"version"}, 0, "levelrail-agent " + levelrail.Version},
		{[]string{"--help"}, 0, "levelrail-agent fetch FILE"},
		{[]string{"settings"}, 0, "| `APP_GPU_ATTACH` | `auto` |"},
		{[]string{"dance"}, 2, "Usage:"},
		{[]string{"fetch"}, 2, "Usage:"},
		{[]string{"fetch", "/nonexistent"}, 1, "no such file"},
	} {
		var out, talk strings.Builder
		if status := Main(row.args, &out, &talk); status != row.status || !strings.Contains(out.String()+talk.String(), row.out) {
			t.Errorf("%q: status %d, %s%s", row.args, status, &out, &talk)
		}
		if row.status != 0 && out.Len() > 0 {
			t.Errorf("%q: talk on standard output: %s", row.args, &out)
		}
	}
}
