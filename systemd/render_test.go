package systemd

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the goldens anew")

func marks(model, engine string) Marks {
	return Marks{Hash: strings.Repeat("5a", 32), Replica: model, Model: model, Engine: engine, Revision: 3, Restarts: 1}
}

// llamacpp is an engine with a socket of its own, on CPU.
func llamacpp() Engine {
	return Engine{
		Marks: marks("chat", "llamacpp"),
		Args: []string{"/usr/bin/llama-server", "--model", "/var/lib/levelrail/weights/chat/SmolLM2-135M-Instruct.Q4_1.gguf",
			"--host", "/run/levelrail/engines/chat/engine.sock", "--alias", "100% $HOME \"chat\"", "--api-key-file", CredentialDir(EngineUnit("chat")) + "/engine-key"},
		Env:         []string{"LLAMA_ARG_NOTE=50% of it", "LC_ALL=C.UTF-8"},
		Credentials: []Credential{{"engine-key", "/var/lib/levelrail/agent/credentials/chat/engine-key"}},
		Weights:     "/var/lib/levelrail/weights/chat",
		Cache:       "levelrail/engines/chat",
		StopSeconds: 30, Memory: "90%", Visible: []string{"/usr/bin/llama-server"},
	}
}

// vllm is an engine on two cards, with compilers, several processes and its key in the environment.
func vllm() Engine {
	e := Engine{
		Marks:           marks("big", "vllm"),
		Args:            []string{"/opt/vllm/bin/vllm", "serve", "/var/lib/levelrail/weights/big", "--uds", "/run/levelrail/engines/big.1/engine.sock"},
		Env:             []string{"CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_VISIBLE_DEVICES=GPU-1,GPU-2"},
		EnvironmentFile: "/var/lib/levelrail/agent/credentials/big.1/engine-env",
		Weights:         "/var/lib/levelrail/weights/big",
		Cache:           "levelrail/engines/big.1",
		Number:          1,
		Loopback:        true, Resources: true, WriteExec: true, SystemCalls: []string{"pidfd_getfd"},
		StopSeconds: 90, KillMode: "mixed",
		Minors: []int{2, 0}, Groups: []int{44},
	}
	e.Marks.Replica = "big.1"
	return e
}

// ollama is an engine behind a door.
func ollama() (Engine, Door) {
	m := marks("small", "ollama")
	return Engine{
			Marks: m, Args: []string{"/usr/local/bin/ollama", "serve"},
			Env:     []string{"OLLAMA_HOST=127.0.0.1:11434", "OLLAMA_MODELS=/var/lib/levelrail/weights/small", "OLLAMA_NOPRUNE=1"},
			Weights: "/var/lib/levelrail/weights/small", Cache: "levelrail/engines/small", Door: true, StopSeconds: 15, Memory: "90%",
		}, Door{
			Marks: m, Socket: SocketPath("small"), Address: "127.0.0.1:11434", Group: "levelrail-gateway",
		}
}

func fetches() []Fetch {
	f := Fetch{Marks: marks("chat", "llamacpp"), Agent: "/usr/bin/levelrail-agent", Spec: "/run/levelrail-agent/fetch-chat/spec.json",
		Stage: "/var/lib/levelrail/weights/.fetch/chat", Token: "/run/levelrail-agent/fetch-chat/token", Network: true}
	g := f
	g.Marks.Model, g.Marks.Replica, g.Token, g.Network = "file", "file", "", false
	g.Spec, g.Stage, g.Program = "/run/levelrail-agent/fetch-file/spec.json", "/var/lib/levelrail/weights/.fetch/file", "/srv/ollama/bin/ollama"
	return []Fetch{f, g}
}

// units are all the units that the tests look at.
func units(t *testing.T) []Unit {
	t.Helper()
	must := func(u Unit, err error) Unit {
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	engine, door := ollama()
	socket, service, err := door.Units()
	legacy := llamacpp()
	legacy.Marks.Model, legacy.Marks.Replica, legacy.AllGPUs = "legacy", "legacy", true
	all := []Unit{must(llamacpp().Unit()), must(vllm().Unit()), must(engine.Unit()), must(legacy.Unit()), must(socket, err), must(service, err)}
	for _, f := range fetches() {
		all = append(all, must(f.Unit()))
	}
	return all
}

// TestGoldens: equal descriptions give equal text, and every change of the text is seen in a review.
func TestGoldens(t *testing.T) {
	for _, u := range units(t) {
		text, err := Render(u)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join("testdata", u.Name)
		if *update {
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if text != string(want) {
			t.Errorf("%s differs from its golden; run go test ./systemd -update and read the difference.\n%s", u.Name, text)
		}
	}
}

// TestMarksSurvive: what Render marks, Read finds, and any change of the text shows.
func TestMarksSurvive(t *testing.T) {
	for _, u := range units(t) {
		text, err := Render(u)
		if err != nil {
			t.Fatal(err)
		}
		if m, ours, intact := Read(text); m != u.Marks || !ours || !intact {
			t.Errorf("%s: Read gives %+v ours=%v intact=%v", u.Name, m, ours, intact)
		}
		for what, changed := range map[string]string{
			"a line more":    strings.Replace(text, "Restart=", "Nice=1\nRestart=", 1) + "\n",
			"a mark changed": strings.Replace(text, keyRevision+"=3", keyRevision+"=4", 1),
			"a comment":      strings.Replace(text, "# ", "# mine: ", 1),
		} {
			if changed == text {
				t.Fatalf("%s: the test changed nothing", what)
			}
			if _, ours, intact := Read(changed); !ours || intact {
				t.Errorf("%s, %s: ours=%v intact=%v, want ours and not intact", u.Name, what, ours, intact)
			}
		}
	}
	if _, ours, intact := Read("[Unit]\nDescription=levelrail-model-chat\n"); ours || intact {
		t.Error("a file without the marker counts as ours")
	}
}

// TestRefusals: nothing that could add a line, a specifier or a path of somebody else's gets into a unit.
func TestRefusals(t *testing.T) {
	change := func(f func(*Engine)) Engine { e := llamacpp(); f(&e); return e }
	for name, e := range map[string]Engine{
		"newline in an argument":    change(func(e *Engine) { e.Args = append(e.Args, "a\nExecStartPre=/bin/sh") }),
		"carriage return":           change(func(e *Engine) { e.Args = append(e.Args, "a\rb") }),
		"NUL":                       change(func(e *Engine) { e.Env = []string{"A=\x00"} }),
		"newline in the variable":   change(func(e *Engine) { e.Env = []string{"A=1\nUser=root"} }),
		"line separator":            change(func(e *Engine) { e.Args = append(e.Args, "a\u2028b") }),
		"not UTF-8":                 change(func(e *Engine) { e.Args = append(e.Args, "\xff\xfe") }),
		"newline in the model":      change(func(e *Engine) { e.Marks.Model = "a\nb" }),
		"newline in the hash":       change(func(e *Engine) { e.Marks.Hash = "a\nb" }),
		"no hash":                   change(func(e *Engine) { e.Marks.Hash = "" }),
		"replica with a slash":      change(func(e *Engine) { e.Marks.Replica = "../x" }),
		"program is not a path":     change(func(e *Engine) { e.Args = []string{"llama-server"} }),
		"no program":                change(func(e *Engine) { e.Args = nil }),
		"weights outside":           change(func(e *Engine) { e.Weights = "/var/lib/levelrail/weights/../agent" }),
		"weights with options":      change(func(e *Engine) { e.Weights = "/var/lib/levelrail/weights/chat:/etc" }),
		"two paths as one":          change(func(e *Engine) { e.Weights = "/var/lib /etc" }),
		"variable without a name":   change(func(e *Engine) { e.Env = []string{"=x"} }),
		"credential with a newline": change(func(e *Engine) { e.Credentials = []Credential{{"k", "/a\nb"}} }),
	} {
		u, err := e.Unit()
		if err == nil {
			_, err = Render(u)
		}
		if err == nil {
			t.Errorf("%s: was rendered", name)
		}
	}
	if _, _, err := (Door{Marks: marks("a", "b"), Socket: SocketPath("a"), Address: "10.0.0.1:80"}).Units(); err == nil {
		t.Error("a door to an address outside the loopback was rendered")
	}
}

// TestCommandQuotes: each word stands in ExecStart= so that systemd reads exactly the word. That systemd agrees is seen
// by the host test that prints its arguments.
func TestCommandQuotes(t *testing.T) {
	got, err := Command("/usr/bin/a", "plain", "two words", "100%", "$HOME", "${X}", `back\slash`, `end\`, "", ";", "#x", `say "hi"`, "it's")
	if err != nil {
		t.Fatal(err)
	}
	want := `/usr/bin/a plain "two words" 100%% $$HOME $${X} back\\slash "end\\" "" ";" "#x" "say \"hi\"" "it's"`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
