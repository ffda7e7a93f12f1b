package levelrail

import (
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestModelNames: a name is a host name label of at most 40 characters, and a refusal suggests one that is.
func TestModelNames(t *testing.T) {
	for name, good := range map[string]bool{
		"a": true, "chat": true, "qwen3-32b": true, strings.Repeat("a", 40): true,
		"": false, "-a": false, "a-": false, "Chat": false, "a.b": false, "a_b": false, "a/b": false, "é": false,
		strings.Repeat("a", 41): false, "a\n": false, "../x": false,
	} {
		err := CheckModelName(name)
		if (err == nil) != good {
			t.Errorf("CheckModelName(%q) = %v, want ok %v", name, err, good)
		}
		if err == nil {
			continue
		}
		var e *Error
		if !errors.As(err, &e) || e.Kind != ErrInvalid || e.Next == "" {
			t.Errorf("CheckModelName(%q) = %#v, want invalid with a next step", name, err)
			continue
		}
		if s := suggestName(name); CheckModelName(s) != nil {
			t.Errorf("suggestName(%q) = %q, which is no name itself", name, s)
		}
	}
}

// TestParseGPUs: every arm of the union can be written, and what cannot be read says how to write it.
func TestParseGPUs(t *testing.T) {
	for _, c := range []struct {
		count, devices string
		want           GPURequest
		bad            bool
	}{
		{"", "", GPURequest{}, false},
		{"all", "", GPURequest{Mode: GPUAll}, false},
		{"none", "", GPURequest{Mode: GPUNone}, false},
		{"0", "", GPURequest{Mode: GPUNone}, false},
		{"2", "", GPURequest{Mode: GPUCount, Count: 2}, false},
		{"", "0, GPU-1", GPURequest{Mode: GPUDevices, Devices: []string{"0", "GPU-1"}}, false},
		{"-1", "", GPURequest{}, true},
		{"two", "", GPURequest{}, true},
		{"1", "0", GPURequest{}, true},
	} {
		got, err := ParseGPUs(c.count, c.devices)
		if (err != nil) != c.bad || !c.bad && !reflect.DeepEqual(got, c.want) {
			t.Errorf("ParseGPUs(%q, %q) = %+v, %v", c.count, c.devices, got, err)
		}
		if err != nil && err.(*Error).Next == "" {
			t.Errorf("ParseGPUs(%q, %q): %v has no next step", c.count, c.devices, err)
		}
	}
}

// TestServedNames: the model's own name first, then its source unless that is a path, each once.
func TestServedNames(t *testing.T) {
	for _, c := range []struct {
		spec ModelSpec
		want []string
	}{
		{ModelSpec{Source: "llama3.1:8b"}, []string{"chat", "llama3.1:8b"}},
		{ModelSpec{Source: "org/name-GGUF:Q4_K_M"}, []string{"chat", "org/name-GGUF:Q4_K_M"}},
		{ModelSpec{Source: "/srv/x.gguf", ServedNames: []string{"org/x", "chat"}}, []string{"chat", "org/x"}},
	} {
		if got := ServedNames("chat", c.spec); !slices.Equal(got, c.want) {
			t.Errorf("ServedNames(%+v) = %q, want %q", c.spec, got, c.want)
		}
	}
}

// TestAbilities: each ability covers those before it and none after; an unknown one is covered by nothing.
func TestAbilities(t *testing.T) {
	for i, have := range Abilities {
		for j, want := range Abilities {
			if got := Allows([]Ability{have}, want); got != (i >= j) {
				t.Errorf("%s allows %s = %v", have, want, got)
			}
		}
	}
	if Allows(Abilities, "everything") || Allows(nil, AbilityRead) {
		t.Error("an unknown ability, or no ability, allows something")
	}
}

// TestSettings: the environment wins over the document, which wins over the default; a bad value names where it stands
// and what to write; a secret's value is not repeated.
func TestSettings(t *testing.T) {
	type settings struct {
		TTL   time.Duration `env:"APP_MODEL_IDLE_TTL" default:"15m" doc:"x"`
		Max   int64         `env:"APP_MODEL_GATEWAY_MAX_N" default:"16"`
		Token string        `env:"APP_SECRET" secret:"true"`
		On    bool          `env:"APP_ON" default:"false"`
	}
	env := map[string]string{}
	load := func(doc map[string]string) (settings, error) {
		var s settings
		return s, LoadSettings(&s, "/etc/default/levelrail-server", func(n string) string { return env[n] }, doc)
	}
	var s settings
	if err := LoadSettings(&s, "env", func(string) string { return "" }, map[string]string{"APP_MODEL_GATEWAY_MAX_N": "8"}); err != nil || s.TTL != 15*time.Minute || s.Max != 8 {
		t.Errorf("defaults and document: %+v, %v", s, err)
	}
	env["APP_MODEL_GATEWAY_MAX_N"] = "4"
	if err := LoadSettings(&s, "env", func(n string) string { return env[n] }, map[string]string{"APP_MODEL_GATEWAY_MAX_N": "8"}); err != nil || s.Max != 4 {
		t.Errorf("the environment does not win: %+v, %v", s, err)
	}
	env["APP_MODEL_IDLE_TTL"] = "20"
	_, err := load(nil)
	if want := `/etc/default/levelrail-server: APP_MODEL_IDLE_TTL: "20" has no unit; write 20m or 20s`; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if got := Settings(s); len(got) != 4 || got[2].Name != "APP_SECRET" || !got[2].Secret || got[0].Default != "15m" {
		t.Errorf("Settings = %+v", got)
	}
}

// TestDurationsAreSeconds: a duration stands in JSON as whole seconds and comes back.
func TestDurationsAreSeconds(t *testing.T) {
	b, err := json.Marshal(Duration(90 * time.Second))
	if err != nil || string(b) != "90" {
		t.Fatalf("%s, %v", b, err)
	}
	var d Duration
	if err := json.Unmarshal(b, &d); err != nil || time.Duration(d) != 90*time.Second {
		t.Errorf("%v, %v", d, err)
	}
	if err := json.Unmarshal([]byte(`"90s"`), &d); err == nil {
		t.Error("a text is no number of seconds")
	}
}

// TestIDsSort: ids made of numbers sort by number, and random ids have 128 bits.
func TestIDsSort(t *testing.T) {
	if !(RevisionID("chat", 9) < RevisionID("chat", 10)) || RevisionID("chat", 2) != "chat/0000000002" {
		t.Error(RevisionID("chat", 9), RevisionID("chat", 10))
	}
	if id := NewID("key"); len(id) != len("key_")+26 || id == NewID("key") {
		t.Error(id)
	}
	if s := NewSecret("lr"); len(s) != 3+64 || len(HashSecret(s)) != 64 || SecretPrefix(s) != s[:8] {
		t.Error(s)
	}
}
