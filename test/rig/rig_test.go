package rig

import (
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
	"github.com/levelrail/levelrail/test/engines/stub"
)

// TestGateway: the real program, with the packaged configuration, serves the stub to a key of this control plane, takes
// changes, and ends when it is told to.
func TestGateway(t *testing.T) {
	dir, err := os.MkdirTemp("", "lr") // short: a socket's path has 107 bytes at most
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	program, err := Build(t.Context(), "./cmd/levelrail-gateway", dir)
	if err != nil {
		t.Fatal(err)
	}
	engine, err := stub.New(stub.Options{Key: "engine"})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, "engine.sock"))
	if err != nil {
		t.Fatal(err)
	}
	go engine.Serve(l)
	t.Cleanup(func() { engine.Close() })
	cp, err := NewControlPlane(filepath.Join(dir, "gateway.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cp.Close() })
	cp.PutRoute(wire.Route{Model: "chat", Engine: "llamacpp", Names: []string{"chat"}, Serving: true, Reason: string(levelrail.ModelLoaded),
		Targets: []wire.RouteTarget{{Kind: "replica", ID: "chat", Network: "unix", Address: filepath.Join(dir, "engine.sock"), Weight: 1, Key: "engine", Serving: true}}})
	cp.Many(100, func(i int) wire.RouteKey {
		return wire.RouteKey{ID: levelrail.NewID("key"), SHA256: levelrail.HashSecret(levelrail.NewSecret("lr")), Models: []string{"chat"}}
	})
	key := cp.NewKey("key_a", levelrail.KeyLimits{}, "chat")

	port, err := FreePort()
	if err != nil {
		t.Fatal(err)
	}
	g := Gateway{Dir: filepath.Join(dir, "gw"), Port: port, Control: cp.Socket}
	config, err := g.Write()
	if err != nil {
		t.Fatal(err)
	}
	p, err := Start(Options{CPU: -1, Log: filepath.Join(dir, "log")}, program, "run", "--config", config, "--adapter", "caddyfile")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Stop(20 * time.Second); err != nil {
			t.Errorf("stop: %v", err)
		}
		if t.Failed() {
			t.Log(p.Tail())
		}
	}()
	status := func(key string) int {
		req, _ := http.NewRequest("POST", g.URL()+"/v1/chat/completions", strings.NewReader(`{"model":"chat","messages":[{"role":"user","content":"x"}]}`))
		req.Header.Set("Authorization", "Bearer "+key)
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0
		}
		defer resp.Body.Close()
		io.Copy(io.Discard, resp.Body)
		return resp.StatusCode
	}
	become := func(want int, key string) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); status(key) != want; {
			if time.Now().After(deadline) {
				t.Fatalf("the answer is %d, want %d\n%s", status(key), want, p.Tail())
			}
			time.Sleep(10 * time.Millisecond) // a poll's pause: the condition is asked anew
		}
	}
	become(200, key)
	second := cp.NewKey("key_b", levelrail.KeyLimits{}, "chat")
	become(200, second)
	cp.Revoke("key_a")
	become(401, key)
	if cpu, err := p.CPU(); err != nil || cpu <= 0 {
		t.Errorf("CPU %s, %v", cpu, err)
	}
	if rss, err := p.RSS(); err != nil || rss < 10<<20 {
		t.Errorf("RSS %d, %v", rss, err)
	}
}
