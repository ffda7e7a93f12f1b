package controlplane

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client"
	"github.com/levelrail/levelrail/client/wire"
	"github.com/levelrail/levelrail/controlplane/seal"
	"github.com/levelrail/levelrail/raftstore/command"
)

// TestRestart: what was deployed is there after a restart, secrets open, tokens and certificates hold, and the start
// takes less than a second.
func TestRestart(t *testing.T) {
	dir := shortDir(t)
	r := start(t, rigOptions{dir: dir})
	key := r.deploy("chat").Key
	token := r.token("root", levelrail.AbilityRoot)
	ca, err := r.people.CA(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	before, err := r.people.Model(t.Context(), "chat")
	if err != nil {
		t.Fatal(err)
	}
	r.stop()

	began := time.Now()
	r = start(t, rigOptions{dir: dir})
	if took := time.Since(began); took > time.Second {
		t.Errorf("the start took %s", took)
	}
	n := r.join(0)
	if a := n.assigned("chat", anyAssignment); a.EngineKey == "" {
		t.Error("the engine's key does not open")
	}
	after, err := r.people.Model(t.Context(), "chat")
	if err != nil || !after.CreatedAt.Equal(before.CreatedAt) {
		t.Errorf("before %+v\nafter %+v, %v", before, after, err)
	}
	if a := r.ask(token, "GET", "/api/v1/models/chat/keys", ""); a.status != 200 || !strings.Contains(a.body, key.ID) {
		t.Errorf("with the token of before: %d %s", a.status, a.body)
	}
	if again, err := r.people.CA(t.Context()); err != nil || !bytes.Equal(again, ca) {
		t.Errorf("another authority, %v", err)
	}
}

// TestWrongMasterKey: a server with another master key, or without the one that it had, does not start and says what to do.
func TestWrongMasterKey(t *testing.T) {
	dir := shortDir(t)
	start(t, rigOptions{dir: dir}).stop()
	_, err := tryStart(t, rigOptions{dir: dir, env: map[string]string{"APP_MASTER_KEY": strings.Repeat("ab", 32)}})
	if levelrail.KindOf(err) != levelrail.ErrRefused || !strings.Contains(err.Error(), "master key") || !strings.Contains(err.Error(), "APP_MASTER_KEY") || strings.Contains(err.Error(), "abab") {
		t.Errorf("another key: %v", err)
	}
	file := filepath.Join(dir, "master.key")
	kept, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if _, err := tryStart(t, rigOptions{dir: dir}); levelrail.KindOf(err) != levelrail.ErrRefused || !strings.Contains(err.Error(), "no master key") {
		t.Errorf("no key: %v", err)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("a new key was made for an old cluster")
	}
	credentials := shortDir(t)
	writeFile(t, filepath.Join(credentials, seal.Credential), kept)
	start(t, rigOptions{dir: dir, env: map[string]string{"CREDENTIALS_DIRECTORY": credentials}})
}

// TestSockets: own sockets have the modes that keep strangers out, two servers never share one, and one that a crash has
// left is taken over.
func TestSockets(t *testing.T) {
	run := filepath.Join(shortDir(t), "run")
	r := start(t, rigOptions{env: map[string]string{"LEVELRAIL_RUNTIME_DIR": run, "LEVELRAIL_LISTEN": "off"}})
	for file, mode := range map[string]os.FileMode{"api.sock": 0o660, "gateway.sock": 0o660, "agent.sock": 0o600} {
		if info, err := os.Stat(filepath.Join(run, file)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s is %v, %v; want %o", file, info.Mode(), err, mode)
		}
	}
	if r.tls != "" {
		t.Errorf("the TLS port %s is open", r.tls)
	}
	if _, err := tryStart(t, rigOptions{env: map[string]string{"LEVELRAIL_RUNTIME_DIR": run}}); levelrail.KindOf(err) != levelrail.ErrConflict {
		t.Errorf("a second server at the same sockets: %v", err)
	}
	mine, err := client.New(client.Options{Socket: filepath.Join(run, "api.sock")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := mine.Status(t.Context()); err != nil {
		t.Errorf("the first server's sockets are gone: %v", err)
	}
}

// TestSettings: the environment wins over the document, which wins over the default; a document takes effect at once, and
// one that cannot be used leaves the settings as they are and says so.
func TestSettings(t *testing.T) {
	r := start(t, rigOptions{env: map[string]string{"APP_MODEL_GATEWAY_MAX_BODY_BYTES": "3"}})
	r.deploy("chat")
	gw := follow(t, r.gateway, clientWatchGateway(false))
	limits := func() (body, inflight int64) {
		l := get[struct {
			Limits struct {
				MaxBody     int64 `json:"max_body_bytes"`
				MaxInflight int64 `json:"max_inflight"`
			} `json:"limits"`
		}](t, gw, "route/chat").Limits
		return l.MaxBody, l.MaxInflight
	}
	eventually(t, "the limits are told", func() bool { n, inflight := limits(); return n == 3 && inflight == 32 })
	put := func(version int, values map[string]string) {
		t.Helper()
		doc := levelrail.SettingsDocument{Name: "cluster", Version: version, Values: values}
		if _, err := r.store.Propose(t.Context(), command.By{Principal: levelrail.Principal{Kind: "socket", ID: "uid 0"}, Ability: levelrail.AbilityRoot}, command.SettingsPut{Document: doc}); err != nil {
			t.Fatal(err)
		}
	}
	put(1, map[string]string{"APP_MODEL_GATEWAY_MAX_BODY_BYTES": "7", "APP_MODEL_GATEWAY_MAX_INFLIGHT": "5", "LEVELRAIL_LISTEN": "nonsense"})
	eventually(t, "the document is in force", func() bool { n, inflight := limits(); return n == 3 && inflight == 5 })
	put(2, map[string]string{"APP_MODEL_GATEWAY_MAX_INFLIGHT": "many"})
	eventually(t, "the warning is shown", func() bool {
		st, err := r.people.Status(t.Context())
		return err == nil && len(st.Warnings) == 1 && strings.Contains(st.Warnings[0], "APP_MODEL_GATEWAY_MAX_INFLIGHT")
	})
	if _, inflight := limits(); inflight != 5 {
		t.Errorf("a broken document changed the limits to %d", inflight)
	}
	for name, bad := range map[string]map[string]string{
		"a duration without a unit": {"APP_MODEL_GATEWAY_DIAL_TIMEOUT": "5"}, "an address that is none": {"APP_HF_BASE_URL": "huggingface.co"},
		"neither a duration nor exact": {"APP_MODEL_GATEWAY_RETRY_AFTER": "soon"}, "a batch that no command holds": {"APP_MODEL_USAGE_BATCH_SIZE": "401"}, "no batch": {"APP_MODEL_USAGE_BATCH_SIZE": "0"},
		"a flush without a pause": {"APP_MODEL_USAGE_FLUSH_INTERVAL": "10ms"}, "a word of its own": {"APP_MODEL_USAGE_STREAM": "sometimes"}, "a grace in the past": {"APP_MODEL_KEY_ROTATION_GRACE": "-1h"},
	} {
		if _, err := LoadSettings(func(k string) string { return bad[k] }, nil); levelrail.KindOf(err) != levelrail.ErrInvalid || !strings.Contains(err.Error(), "/etc/default/levelrail-server") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestLimitsOfGateways: what gateways are told is what the settings say, with the reference's defaults where they say
// nothing.
func TestLimitsOfGateways(t *testing.T) {
	limits := func(env map[string]string) wire.Limits {
		t.Helper()
		s, err := LoadSettings(func(k string) string { return env[k] }, nil)
		if err != nil {
			t.Fatal(err)
		}
		return s.Limits()
	}
	want := wire.Limits{MaxBodyBytes: 32 << 20, MaxN: 16, MaxPrompts: 256, MaxTextBytes: 2 << 20, OverGenLen: "refuse", MaxGenLen: 32768, MaxInflight: 32, RetryAfterSeconds: 5, DialTimeoutSeconds: 5, HeaderTimeout: 300, IdleTimeout: 120,
		WakeWaitSeconds: 90, WakeRetryAfterSeconds: 15, ActivityTouchSeconds: 10, UsageFlushSeconds: 30, UsageBatchRows: 200, UsageMaxBuffered: 10000, UsageScanBytes: 16384, UsageStream: "limited",
		QueueWaitSeconds: 300, BodyTimeoutSeconds: 60, BodyMinRate: 64 << 10, BodyMemory: 1 << 30, BodyMemoryKey: 256 << 20, KeepAliveSeconds: 15, MaxStaleSeconds: 7 * 24 * 3600}
	if got := limits(nil); got != want {
		t.Errorf("the defaults are\n%+v\nand should be\n%+v", got, want)
	}
	want.RetryAfterExact, want.WakeWaitSeconds, want.UsageStream, want.UsageScanBytes, want.MaxN = true, 0, "always", 0, -1
	if got := limits(map[string]string{"APP_MODEL_GATEWAY_RETRY_AFTER": "exact", "APP_MODEL_WAKE_WAIT": "0", "APP_MODEL_USAGE_STREAM": "always", "APP_MODEL_USAGE_SCAN_BYTES": "0", "APP_MODEL_GATEWAY_MAX_N": "-1"}); got != want {
		t.Errorf("told\n%+v\nand should be\n%+v", got, want)
	}
	if got := limits(map[string]string{"APP_MODEL_GATEWAY_RETRY_AFTER": "1500ms"}); got.RetryAfterSeconds != 2 || got.RetryAfterExact {
		t.Errorf("told %d, exact %v", got.RetryAfterSeconds, got.RetryAfterExact)
	}
}

// TestGenerated: the checked-in OpenAPI document and settings page are those that the program makes.
func TestGenerated(t *testing.T) {
	for file, args := range map[string]string{"openapi.json": "openapi", "settings-server.md": "settings"} {
		var out, errs bytes.Buffer
		if code := run([]string{args}, os.Getenv, strings.NewReader(""), &out, &errs); code != 0 {
			t.Fatalf("levelrail-server %s ended with %d: %s", args, code, errs.String())
		}
		have, err := os.ReadFile(filepath.Join("..", "docs", "reference", file))
		if err != nil || !bytes.Equal(have, out.Bytes()) {
			t.Errorf("docs/reference/%s is not what `levelrail-server %s` prints (%v); write it anew: go run ./cmd/levelrail-server %s > docs/reference/%s", file, args, err, args, file)
		}
	}
}

// TestCommandLine: the small commands answer, and wrong ones are a usage error.
func TestCommandLine(t *testing.T) {
	for _, tc := range []struct {
		args string
		code int
		out  string
	}{
		{"version", 0, "levelrail-server " + levelrail.Version}, {"--version", 0, levelrail.Version}, {"--help", 0, "levelrail-server settings"},
		{"nonsense", 2, "nonsense"}, {"version now", 2, "no arguments"},
	} {
		var out bytes.Buffer
		if code := run(strings.Fields(tc.args), os.Getenv, strings.NewReader(""), &out, &out); code != tc.code || !strings.Contains(out.String(), tc.out) {
			t.Errorf("%s: %d %s", tc.args, code, out.String())
		}
	}
	var out bytes.Buffer
	if code := run(nil, func(k string) string { return map[string]string{"APP_MODEL_MAX_KEYS": "x"}[k] }, strings.NewReader(""), &out, &out); code != 1 || !strings.Contains(out.String(), "APP_MODEL_MAX_KEYS") {
		t.Errorf("a broken setting: %d %s", code, out.String())
	}
}
