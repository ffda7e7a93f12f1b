package agent

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
	"github.com/levelrail/levelrail/engine"
	"github.com/levelrail/levelrail/systemd"
)

// good is an assignment that a server sends.
func good(change ...func(*wire.Assignment)) wire.Assignment {
	a := wire.Assignment{Replica: "chat", Model: "chat", Revision: 1, Run: true, ServedNames: []string{"chat", "org/name-GGUF:Q4_K_M"}, EngineKey: levelrail.NewSecret("lre"),
		Spec: levelrail.ModelSpec{Engine: "llamacpp", Source: "org/name-GGUF:Q4_K_M"}, HubBaseURL: "https://huggingface.co", Term: 7}
	for _, c := range change {
		c(&a)
	}
	return a
}

// TestCheckAssignment: each field is checked as if the server were hostile.
func TestCheckAssignment(t *testing.T) {
	type change = func(*wire.Assignment)
	for name, row := range map[string]struct {
		change change
		says   string // in the error; empty: taken
	}{
		"as a server sends it": {func(*wire.Assignment) {}, ""},
		"a file of the node":   {func(a *wire.Assignment) { a.Spec.Source, a.ServedNames = "/srv/x.gguf", []string{"chat"} }, ""},
		"GPUs": {func(a *wire.Assignment) {
			a.Devices = []string{"GPU-4c5f2a3e-0000-1111-2222-333344445555", "MIG-1-2/3"}
		}, ""},
		"an engine of a newer one": {func(a *wire.Assignment) { a.Spec.Engine = "tensorrt" }, ""}, // a lack of its own
		"a mirror":                 {func(a *wire.Assignment) { a.HubBaseURL = "http://hub.example:8080/mirror" }, ""},
		"no mirror":                {func(a *wire.Assignment) { a.HubBaseURL = "" }, ""},

		"no revision":              {func(a *wire.Assignment) { a.Revision = 0 }, "number of a revision"},
		"a huge revision":          {func(a *wire.Assignment) { a.Revision = 1 << 40 }, "number of a revision"},
		"fewer than no restart":    {func(a *wire.Assignment) { a.Restarts = -1 }, "count of restarts"},
		"no key":                   {func(a *wire.Assignment) { a.EngineKey = "" }, "no key for its engine"},
		"a key of two lines":       {func(a *wire.Assignment) { a.EngineKey += "\nLD_PRELOAD=/tmp/x.so" }, "not of the form"},
		"a key in quotes":          {func(a *wire.Assignment) { a.EngineKey = `"` + a.EngineKey + `"` }, "not of the form"},
		"a long key":               {func(a *wire.Assignment) { a.EngineKey = strings.Repeat("k", 1000) }, "not of the form"},
		"no served name":           {func(a *wire.Assignment) { a.ServedNames = nil }, "served names"},
		"another's name first":     {func(a *wire.Assignment) { a.ServedNames = []string{"other"} }, "served names"},
		"a name that is an option": {func(a *wire.Assignment) { a.ServedNames = []string{"chat", "--api-key"} }, "served name"},
		"a name of two lines":      {func(a *wire.Assignment) { a.ServedNames = []string{"chat", "a\nExecStartPre=+/bin/sh"} }, "served name"},
		"too many names":           {func(a *wire.Assignment) { a.ServedNames = append([]string{"chat"}, make([]string, 100)...) }, "served names"},
		"a GPU that is a path":     {func(a *wire.Assignment) { a.Devices = []string{"/dev/sda"} }, "id of a GPU"},
		"a GPU with a variable":    {func(a *wire.Assignment) { a.Devices = []string{"GPU-1 LD_PRELOAD=/x"} }, "id of a GPU"},
		"a GPU twice":              {func(a *wire.Assignment) { a.Devices = []string{"GPU-1", "GPU-1"} }, "twice"},
		"too many GPUs":            {func(a *wire.Assignment) { a.Devices = make([]string, 200) }, "GPUs"},
		"a Hub on a file":          {func(a *wire.Assignment) { a.HubBaseURL = "file:///etc/shadow" }, "address of a Hub"},
		"a Hub with a password":    {func(a *wire.Assignment) { a.HubBaseURL = "https://user:pass@hub.example" }, "address of a Hub"},
		"a Hub with a query":       {func(a *wire.Assignment) { a.HubBaseURL = "https://hub.example/?a=" }, "address of a Hub"},
		"a Hub without a host":     {func(a *wire.Assignment) { a.HubBaseURL = "https:///x" }, "address of a Hub"},
		"an option of no table":    {func(a *wire.Assignment) { a.Spec.Options = levelrail.Options{"api-key-file": "/dev/null"} }, "no option"},
		"a long option": {func(a *wire.Assignment) {
			a.Spec.Options = levelrail.Options{"tensor-split": strings.Repeat("1,", 5000) + "1"}
		}, "tensor-split"},
		"a path with dots":       {func(a *wire.Assignment) { a.Spec.Source = "/srv/../etc/x.gguf" }, "does not name one place"},
		"a file of another kind": {func(a *wire.Assignment) { a.Spec.Source = "/etc/shadow" }, ".gguf"},
		"a huge context":         {func(a *wire.Assignment) { a.Spec.Context = 1 << 40 }, "context"},
	} {
		a := good(row.change)
		err := checkAssignment(a)
		switch {
		case row.says == "" && err != nil:
			t.Errorf("%s: refused: %v", name, err)
		case row.says != "" && (err == nil || !strings.Contains(err.Error(), row.says)):
			t.Errorf("%s: %v, want %q", name, err, row.says)
		case err != nil && len(err.Error()) > 600:
			t.Errorf("%s: an error of %d bytes", name, len(err.Error()))
		case err != nil && len(a.EngineKey) > 20 && strings.Contains(err.Error(), a.EngineKey[:20]):
			t.Errorf("%s: the key is in the error", name)
		}
		if err == nil {
			continue
		}
		if l := refusal(err); l.Reason != levelrail.AssignmentRefused || l.Next == "" || strings.ContainsAny(l.Message, "\n\x1b") {
			t.Errorf("%s: the reason is %+v", name, l)
		}
	}
}

// TestCheckName: what becomes a path or a unit's name is a model's name and nothing else.
func TestCheckName(t *testing.T) {
	for _, row := range []struct {
		id, replica, model string
		number             int
		ok                 bool
	}{
		{"chat", "chat", "chat", 0, true},
		{"chat.1", "chat.1", "chat", 1, true},
		{"chat", "chat", "chat", 1, false},
		{"chat", "other", "chat", 0, false},
		{"other", "chat", "chat", 0, false},
		{"chat.-1", "chat.-1", "chat", -1, false},
		{"chat.5000000", "chat.5000000", "chat", 5000000, false},
		{"../x", "../x", "../x", 0, false},
		{"a/b", "a/b", "a/b", 0, false},
		{"", "", "", 0, false},
		{"chat.door", "chat.door", "chat.door", 0, false},
		{"chat\n", "chat\n", "chat\n", 0, false},
		{strings.Repeat("a", 41), strings.Repeat("a", 41), strings.Repeat("a", 41), 0, false},
	} {
		if err := checkName(row.id, wire.Assignment{Replica: row.replica, Model: row.model, Number: row.number}); (err == nil) != row.ok {
			t.Errorf("%+v: %v", row, err)
		}
	}
}

// TestCheckOthers: requests for logs, welcomes and tokens.
func TestCheckOthers(t *testing.T) {
	for _, row := range []struct {
		id string
		q  wire.LogRequest
		ok bool
	}{
		{"log_a1", wire.LogRequest{ID: "log_a1", Model: "chat", Lines: 100, Since: "2026-01-02 03:04:05"}, true},
		{"log_a1", wire.LogRequest{ID: "log_a1", Model: "chat", Follow: true, Since: "-1h"}, true},
		{"log_a1", wire.LogRequest{ID: "log_a1", Model: "", Lines: 100}, false},
		{"log_a1", wire.LogRequest{ID: "log_a1", Model: "*", Lines: 100}, false},
		{"log_a1", wire.LogRequest{ID: "log_b2", Model: "chat", Lines: 100}, false},
		{"../report", wire.LogRequest{ID: "../report", Model: "chat", Lines: 100}, false},
		{"log_a1", wire.LogRequest{ID: "log_a1", Model: "chat", Lines: -1}, false},
		{"log_a1", wire.LogRequest{ID: "log_a1", Model: "chat", Lines: 1 << 40}, false},
		{"log_a1", wire.LogRequest{ID: "log_a1", Model: "chat", Since: "now --file=/etc/shadow\n"}, false},
		{"log_a1", wire.LogRequest{ID: "log_a1", Model: "chat", Since: strings.Repeat("1", 65)}, false},
	} {
		if err := checkLogRequest(row.id, row.q); (err == nil) != row.ok {
			t.Errorf("%+v: %v", row, err)
		}
	}
	for _, row := range []struct {
		w  wire.Welcome
		ok bool
	}{
		{wire.Welcome{ClusterID: levelrail.NewID("clu"), Term: 3}, true},
		{wire.Welcome{ClusterID: "clu_1\n", Term: 3}, false},
		{wire.Welcome{ClusterID: "clu_" + strings.Repeat("a", 1<<20), Term: 3}, false},
		{wire.Welcome{ClusterID: "clu_1", Term: 1 << 63}, false},
		{wire.Welcome{ClusterID: "clu_1", Lineage: "deadbeef01234567", Term: 3}, true},
		{wire.Welcome{ClusterID: "clu_1", Lineage: "dead\nbeef", Term: 3}, false},
	} {
		if err := checkWelcome(row.w); (err == nil) != row.ok {
			t.Errorf("%.80v: %v", row.w, err)
		}
	}
	for token, ok := range map[string]bool{"hf_AbC123": true, "": false, "hf_a\nX: y": false, "hf_a b": false, strings.Repeat("a", 1000): false} {
		err := checkHubToken(token)
		if (err == nil) != ok || err != nil && token != "" && strings.Contains(err.Error(), token) {
			t.Errorf("%.20q: %v", token, err)
		}
	}
}

// sandbox are the lines of a replica's units without those that are the model's own: its command, environment and marks.
func sandbox(t *testing.T, units []Text) []string {
	t.Helper()
	var out []string
	for _, u := range units {
		for line := range strings.Lines(u.Text) {
			key, _, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
			if !ok || strings.HasPrefix(line, "#") || strings.HasPrefix(key, "X-Levelrail-") || key == "ExecStart" || key == "Environment" {
				continue
			}
			out = append(out, u.Name+": "+line)
		}
	}
	return out
}

// FuzzAssignment: whatever a server sends, what the agent takes changes neither its sandbox nor its files: the units hold
// the lines that every model of the engine has, one command of the engine's program, and one key.
func FuzzAssignment(f *testing.F) {
	for _, a := range []wire.Assignment{good(), good(func(a *wire.Assignment) { a.EngineKey += "\nA=b" }),
		good(func(a *wire.Assignment) {
			a.Spec = levelrail.ModelSpec{Engine: "ollama", Source: "llama3.1:8b"}
			a.ServedNames = []string{"chat", "llama3.1:8b"}
		}),
		good(func(a *wire.Assignment) {
			a.Spec = levelrail.ModelSpec{Engine: "vllm", Source: "org/name", Options: levelrail.Options{"max-num-seqs": "4"}}
			a.ServedNames = []string{"chat", "org/name"}
		}),
		good(func(a *wire.Assignment) {
			a.Spec.Options = levelrail.Options{"chat-template-kwargs": `{"a":"b\nc"}`, "parallel": "2"}
		}),
		good(func(a *wire.Assignment) { a.Model, a.Replica = "../x", "../x" }),
		good(func(a *wire.Assignment) { a.Spec.Source = "/srv/%i $HOME/x.gguf"; a.ServedNames = []string{"chat"} }),
		good(func(a *wire.Assignment) { a.Spec.Source = "/srv/a\nb.gguf"; a.ServedNames = []string{"chat"} }),
	} {
		b, err := json.Marshal(a)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(a.Replica, b)
	}
	agent := &Agent{Config: Config{Paths: DefaultPaths, Program: "/usr/bin/levelrail-agent"}}
	const program = "/usr/bin/engine"
	render := func(as wire.Assignment) ([]Text, error) {
		w := Want{Assignment: as, Hash: specHash(as), Program: program, Files: []levelrail.WeightsFile{{Path: "model.gguf", Role: levelrail.RoleModel}}}
		e, err := engine.Get(as.Spec.Engine)
		if err != nil {
			return nil, err
		}
		if err := agent.render(e, &w, attach{}); err != nil {
			return nil, err
		}
		w.FetchKey = fetchKey(as, agent.hubURL(as), program)
		unit, _, copied, err := agent.order(w, false)
		if err != nil || copied { // a file of the node is copied without a unit
			return w.Units, err
		}
		text, err := systemd.Render(unit)
		return append(w.Units, Text{unit.Name, text}), err
	}
	plain := map[string]wire.Assignment{
		"llamacpp": good(), "echo": good(func(a *wire.Assignment) { a.Spec = levelrail.ModelSpec{Engine: "echo", Source: "/srv/x"} }),
		"ollama": good(func(a *wire.Assignment) { a.Spec = levelrail.ModelSpec{Engine: "ollama", Source: "llama3.1:8b"} }),
		"vllm":   good(func(a *wire.Assignment) { a.Spec = levelrail.ModelSpec{Engine: "vllm", Source: "org/name"} }),
	}
	f.Fuzz(func(t *testing.T, id string, b []byte) {
		var as wire.Assignment
		if json.Unmarshal(b, &as) != nil || checkName(id, as) != nil {
			return
		}
		if err := checkAssignment(as); err != nil {
			if l := refusal(err); len(l.Message) > 2000 || strings.ContainsAny(l.Message, "\n\x1b") {
				t.Errorf("the reason: %q", l.Message)
			}
			return
		}
		base, known := plain[as.Spec.Engine]
		if !known || as.Number != 0 {
			return
		}
		if strings.ContainsAny(as.EngineKey, "\n\r\"'\\ ") {
			t.Fatalf("the key %q", as.EngineKey)
		}
		base.Model, base.Replica, base.ServedNames = as.Model, as.Replica, []string{as.Model}
		base.Spec.Source = cmpSource(base.Spec.Source, as.Spec.Source)
		units, err := render(as)
		if err != nil {
			return // the reason of the replica
		}
		want, err := render(base)
		if err != nil {
			t.Fatal(err)
		}
		got, usual := sandbox(t, units), sandbox(t, want)
		if !slices.Equal(got, usual) {
			t.Errorf("%s\nthe sandbox differs:\n%s\nusual:\n%s", b, strings.Join(got, ""), strings.Join(usual, ""))
		}
		for _, u := range units {
			for line := range strings.Lines(u.Text) {
				if c, ok := strings.CutPrefix(line, "ExecStart="); ok && strings.HasPrefix(u.Name, "levelrail-model-") && !strings.Contains(u.Name, ".door.") && !strings.Contains(c, program) {
					t.Errorf("the command %q", c)
				}
			}
		}
	})
}

// cmpSource is a source of the same kind as another: whether a download needs the network depends on it.
func cmpSource(usual, source string) string {
	if levelrail.IsPath(source) {
		return "/srv/x.gguf"
	}
	return usual
}
