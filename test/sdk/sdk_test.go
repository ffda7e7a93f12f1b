package sdk

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
	"github.com/levelrail/levelrail/test/engines/stub"
	"github.com/levelrail/levelrail/test/rig"
)

// site is a gateway with one engine behind it, which three models share: chat as engines come, busy with a single slot,
// loading not served yet.
type site struct {
	url, engine              string
	key, keyBusy, keyLoading string
	keySpent                 string // has used up its tokens of the day
	keyMetered               string // has a limit on tokens that is never reached
	control                  *rig.ControlPlane
	stub                     *stub.Engine
	node                     string // where require("openai") finds the library
}

// env is what a suite in another language is told.
func (s *site) env() []string {
	return []string{"LEVELRAIL_URL=" + s.url, "LEVELRAIL_ENGINE=" + s.engine, "LEVELRAIL_KEY=" + s.key, "LEVELRAIL_KEY_BUSY=" + s.keyBusy,
		"LEVELRAIL_KEY_LOADING=" + s.keyLoading, "LEVELRAIL_KEY_SPENT=" + s.keySpent, "LEVELRAIL_KEY_METERED=" + s.keyMetered, "SDK_DIR=" + s.node}
}

// TestSDKs: OpenAI's own libraries work through the gateway, whichever engine is behind it: answers, streams, tools, JSON,
// embeddings, responses, audio, errors of the right class, retries after Retry-After, and leaving in mid-stream.
func TestSDKs(t *testing.T) {
	root, err := rig.Root()
	if err != nil {
		t.Fatal(err)
	}
	programs := t.TempDir()
	program, err := rig.Build(t.Context(), "./cmd/levelrail-gateway", programs)
	if err != nil {
		t.Fatal(err)
	}
	nodeDir, err := Node(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	python3, err := Python(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	for _, engine := range []string{stub.VLLM, stub.LlamaCpp, stub.Ollama} {
		t.Run(engine, func(t *testing.T) {
			s := newSite(t, engine, program)
			s.node = nodeDir
			checks := map[string][]string{}
			t.Run("go", func(t *testing.T) { checks["go"] = s.goSuite(t) })
			t.Run("node", func(t *testing.T) {
				checks["node"] = s.suite(t, "node", filepath.Join(root, "test", "sdk", "suite.mjs"))
			})
			t.Run("python", func(t *testing.T) {
				checks["python"] = s.suite(t, python3, filepath.Join(root, "test", "sdk", "suite.py"))
			})
			if len(checks) == 3 { // else -run has chosen some
				for language, have := range checks {
					if want := checks["go"]; !slices.Equal(have, want) {
						t.Errorf("the suite in %s has the checks %q, that in Go %q", language, have, want)
					}
				}
			}
			s.idle(t, 4*len(checks))
			s.metered(t, int64(6*len(checks)))
		})
	}
}

// newSite starts the gateway's program before a stub that takes after an engine. What a change changes of the route holds for
// all three models.
func newSite(t *testing.T, engine, program string, changes ...func(*wire.Route)) *site {
	t.Helper()
	dir, err := os.MkdirTemp("", "lr") // short: a socket's path has 107 bytes at most
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &site{engine: engine}
	if s.stub, err = stub.New(stub.Options{Manner: engine, Key: "engine-key", KeepAlive: 5 * time.Second, Keep: 100}); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "engine.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	go s.stub.Serve(l)
	t.Cleanup(func() { s.stub.Close() })
	cp, err := rig.NewControlPlane(filepath.Join(dir, "gateway.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cp.Close() })
	s.control = cp
	cp.Answer(func(path string, body []byte) (int, any) {
		var b wire.UsageBatch
		if path != "/gateway/usage" || json.Unmarshal(body, &b) != nil {
			return 0, nil
		}
		return 200, wire.UsageAccepted{Sequence: b.Sequence}
	})
	route := wire.Route{Model: "chat", Engine: engine, Names: names, Serving: true, Reason: string(levelrail.ModelLoaded),
		Targets: []wire.RouteTarget{{Kind: "replica", ID: "chat", Network: "unix", Address: socket, Weight: 1, Key: "engine-key", Serving: true}},
		Limits: wire.Limits{UnknownFields: "pass", MaxBodyBytes: 32 << 20, MaxN: 8, MaxGenLen: 1 << 17, MaxInflight: 32, RetryAfterSeconds: 1, DialTimeoutSeconds: 5, HeaderTimeout: 300, IdleTimeout: 120,
			UsageFlushSeconds: 1, UsageScanBytes: 16 << 10, UsageStream: "limited"},
		CreatedAt: time.Unix(1700000000, 0), Owner: levelrail.DefaultOwner}
	for _, change := range changes {
		change(&route)
	}
	cp.PutRoute(route)
	busy := route
	busy.Model, busy.Names, busy.Limits.MaxInflight = "busy", []string{"busy"}, 1
	cp.PutRoute(busy)
	loading := route
	loading.Model, loading.Names, loading.Serving, loading.Reason, loading.Targets = "loading", []string{"loading"}, false, string(levelrail.Loading), nil
	cp.PutRoute(loading)
	s.key = cp.NewKey("key_a", levelrail.KeyLimits{}, "chat")
	s.keyBusy = cp.NewKey("key_b", levelrail.KeyLimits{}, "busy")
	s.keyLoading = cp.NewKey("key_c", levelrail.KeyLimits{}, "loading")
	s.keySpent = cp.NewKey("key_d", levelrail.KeyLimits{TPD: 1}, "chat")
	s.keyMetered = cp.NewKey("key_e", levelrail.KeyLimits{TPD: 1 << 40}, "chat")

	port, err := rig.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	g := rig.Gateway{Dir: filepath.Join(dir, "gw"), Port: port, Control: cp.Socket}
	config, err := g.Write()
	if err != nil {
		t.Fatal(err)
	}
	p, err := rig.Start(rig.Options{CPU: -1, Log: filepath.Join(dir, "log")}, program, "run", "--config", config, "--adapter", "caddyfile")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(30 * time.Second); err != nil {
			t.Errorf("stop the gateway: %v", err)
		}
		if t.Failed() {
			t.Logf("the gateway's log ends with:\n%s", p.Tail())
		}
	})
	s.url = g.URL()
	eventually(t, 20*time.Second, "the gateway knows all keys", func() bool {
		for _, key := range []string{s.key, s.keyBusy, s.keyLoading, s.keySpent, s.keyMetered} {
			req, _ := http.NewRequest("GET", s.url+"/v1/models", nil)
			req.Header.Set("Authorization", "Bearer "+key)
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				return false
			}
			resp.Body.Close()
			if resp.StatusCode != 200 {
				return false
			}
		}
		return true
	})
	spend := s.client(s.keySpent, 0)
	if _, err := spend.Chat.Completions.New(t.Context(), hello("chat")); err != nil {
		t.Fatal(err)
	}
	return s
}

// names are what the model chat is served as: ids as they are on the Hub, which libraries have to escape.
var names = []string{"chat", "org/chat-7b", "org/chat-7b:Q4_K_M", "hf.co/org/chat-GGUF:Q4_K_M"}

// metered holds that the control plane knows what all streams of the key with a limit on tokens have cost, although most clients did not ask.
func (s *site) metered(t *testing.T, requests int64) {
	var sum levelrail.Usage
	eventually(t, 20*time.Second, "the usage has arrived", func() bool {
		sum = levelrail.Usage{}
		for _, r := range s.control.Reports("/gateway/usage") {
			var b wire.UsageBatch
			if err := json.Unmarshal(r.Body, &b); err != nil {
				t.Fatal(err)
			}
			for _, row := range b.Rows {
				if row.KeyID == "key_e" {
					sum.Add(row.Counts)
				}
			}
		}
		return sum.Requests >= requests
	})
	if sum.Requests != requests || sum.OK != requests || sum.WithUsage != requests || sum.InputTokens <= 0 || sum.OutputTokens <= 0 {
		t.Errorf("of %d streams the control plane knows %+v", requests, sum)
	}
}

func eventually(t *testing.T, patience time.Duration, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", patience, what)
		}
		time.Sleep(10 * time.Millisecond) // a poll's pause: the condition is asked anew
	}
}

// suite runs a suite in another language and turns its lines into subtests. It returns the names of the checks, in order.
func (s *site) suite(t *testing.T, program, script string, env ...string) []string {
	checks, err := Suite(t.Context(), program, script, append(s.env(), env...)...)
	if err != nil {
		t.Error(err)
	}
	var names []string
	for _, c := range checks {
		names = append(names, c.Name)
		t.Run(c.Name, func(t *testing.T) {
			if c.Error != "" {
				t.Error(c.Error)
			}
		})
	}
	return slices.Sorted(slices.Values(names))
}

// idle holds that nothing is left once all suites have ended: no request at the engine, and no client that left unnoticed;
// and that every request came with the engine's own key and without the client's.
func (s *site) idle(t *testing.T, left int) {
	eventually(t, 5*time.Second, "the engine is idle", func() bool { return s.stub.Counters().Active == 0 })
	n := s.stub.Counters()
	if n.Left < int64(left) { // each suite leaves four times
		t.Errorf("the engine saw %d clients leave, not %d: %+v", n.Left, left, n)
	}
	for _, r := range s.stub.Requests() {
		for name, values := range r.Header {
			for _, v := range values {
				if v == "Bearer "+s.key || name == "X-Stainless-Lang" {
					t.Errorf("the engine was sent %s: %s", name, v)
				}
			}
		}
		if r.Header.Get("Authorization") != "Bearer engine-key" || r.Header.Get("Host") != "localhost" {
			t.Errorf("the engine was sent %v", r.Header)
		}
	}
}
