package client

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

// serve answers on a Unix socket and returns a client of it.
func serve(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	sock := filepath.Join(t.TempDir(), "api.sock")
	l, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(h)
	srv.Listener.Close()
	srv.Listener = l
	srv.Start()
	t.Cleanup(srv.Close)
	c, err := New(Options{Socket: sock, UserAgent: "levelrail-test/1"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// TestRoutes: each method asks for its own method and path, and sends what the API takes.
func TestRoutes(t *testing.T) {
	ctx := WithIdempotencyKey(t.Context(), "once")
	for _, tc := range []struct {
		name string
		call func(*Client) error
		want string
	}{
		{"status", func(c *Client) error { _, err := c.Status(ctx); return err }, "GET /api/v1/status "},
		{"deploy", func(c *Client) error { _, err := c.Deploy(ctx, wire.Deploy{Name: "chat"}); return err }, `POST /api/v1/models {"name":"chat","engine":"","model":""}`},
		{"models", func(c *Client) error { _, err := c.Models(ctx); return err }, "GET /api/v1/models "},
		{"model", func(c *Client) error { _, err := c.Model(ctx, "a/b"); return err }, "GET /api/v1/models/a%2Fb "},
		{"update", func(c *Client) error { _, err := c.UpdateModel(ctx, "chat", wire.Update{}); return err }, "PUT /api/v1/models/chat {}"},
		{"delete", func(c *Client) error { _, err := c.DeleteModel(ctx, "chat"); return err }, "DELETE /api/v1/models/chat "},
		{"restart", func(c *Client) error { _, err := c.RestartModel(ctx, "chat"); return err }, "POST /api/v1/models/chat/restart "},
		{"rotate", func(c *Client) error { _, err := c.RotateKey(ctx, "chat"); return err }, "POST /api/v1/models/chat/rotate-key "},
		{"hub token", func(c *Client) error { _, err := c.SetHubToken(ctx, "chat", "hf_x"); return err }, `PUT /api/v1/models/chat/hf-token {"hf_token":"hf_x"}`},
		{"keys", func(c *Client) error { _, err := c.Keys(ctx, "chat"); return err }, "GET /api/v1/models/chat/keys "},
		{"create key", func(c *Client) error { _, err := c.CreateKey(ctx, "chat", wire.CreateKey{Name: "ci"}); return err }, `POST /api/v1/models/chat/keys {"name":"ci"}`},
		{"revoke key", func(c *Client) error { _, err := c.RevokeKey(ctx, "chat", "key_1", false); return err }, "DELETE /api/v1/models/chat/keys/key_1 "},
		{"revoke key now", func(c *Client) error { _, err := c.RevokeKey(ctx, "chat", "key_1", true); return err }, "DELETE /api/v1/models/chat/keys/key_1?now=true "},
		{"replace key", func(c *Client) error { _, err := c.ReplaceKey(ctx, "chat", "key_1", wire.RotateKey{}); return err }, "POST /api/v1/models/chat/keys/key_1/rotate {}"},
		{"usage", func(c *Client) error { _, err := c.ModelUsage(ctx, "chat", "2026-01-01T00:00:00+01:00"); return err }, "GET /api/v1/models/chat/usage?since=2026-01-01T00%3A00%3A00%2B01%3A00 "},
		{"requests", func(c *Client) error { _, err := c.Requests(ctx, "chat"); return err }, "GET /api/v1/models/chat/requests "},
		{"cancel request", func(c *Client) error { _, err := c.CancelRequest(ctx, "chat", "a/b"); return err }, "DELETE /api/v1/models/chat/requests/a%2Fb "},
		{"explain", func(c *Client) error { _, err := c.Explain(ctx, "chat", "key_1"); return err }, "GET /api/v1/models/chat/explain?key=key_1 "},
		{"nodes", func(c *Client) error { _, err := c.Nodes(ctx); return err }, "GET /api/v1/nodes "},
		{"node", func(c *Client) error { _, err := c.Node(ctx, "node_1"); return err }, "GET /api/v1/nodes/node_1 "},
		{"tokens", func(c *Client) error { _, err := c.Tokens(ctx); return err }, "GET /api/v1/tokens "},
		{"create token", func(c *Client) error { _, err := c.CreateToken(ctx, wire.CreateToken{Name: "ci"}); return err }, `POST /api/v1/tokens {"name":"ci","abilities":null}`},
		{"revoke token", func(c *Client) error { _, err := c.RevokeToken(ctx, "tok_1"); return err }, "DELETE /api/v1/tokens/tok_1 "},
		{"ca", func(c *Client) error { _, err := c.CA(ctx); return err }, "GET /api/v1/ca.pem "},
		{"openapi", func(c *Client) error { _, err := c.OpenAPI(ctx); return err }, "GET /api/v1/openapi.json "},
		{"hello", func(c *Client) error { _, err := c.Hello(ctx, wire.Hello{NodeID: "node_1"}); return err }, `POST /api/v1/agent/hello {"node_id":"node_1","name":"","version":"","os":""}`},
		{"agent's hub token", func(c *Client) error { _, err := c.HubToken(ctx, "node_1", "chat"); return err }, "GET /api/v1/agent/models/chat/hf-token?node_id=node_1 "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got string
			c := serve(t, func(w http.ResponseWriter, r *http.Request) {
				b, _ := io.ReadAll(r.Body)
				got = r.Method + " " + r.URL.RequestURI() + " " + string(b)
				if k := r.Header.Get("Idempotency-Key"); k != "once" {
					t.Errorf("Idempotency-Key is %q", k)
				}
				if ua := r.UserAgent(); ua != "levelrail-test/1" {
					t.Errorf("User-Agent is %q", ua)
				}
				io.WriteString(w, "{}")
			})
			if err := tc.call(c); err != nil {
				t.Fatal(err)
			}
			if got != tc.want {
				t.Errorf("asked %q, want %q", got, tc.want)
			}
		})
	}
}

// TestErrors: every failure is an *levelrail.Error with a kind, and those that a person can mend say how.
func TestErrors(t *testing.T) {
	t.Run("refusal", func(t *testing.T) {
		c := serve(t, func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(404)
			io.WriteString(w, `{"error":{"kind":"not_found","message":"no model","next":"levelrail models list"}}`)
		})
		_, err := c.Model(t.Context(), "x")
		var e *levelrail.Error
		if !errors.As(err, &e) || *e != (levelrail.Error{Kind: levelrail.ErrNotFound, Message: "no model", Next: "levelrail models list"}) {
			t.Errorf("got %#v", err)
		}
	})
	t.Run("not ours", func(t *testing.T) {
		c := serve(t, func(w http.ResponseWriter, r *http.Request) { http.Error(w, "<html>", http.StatusServiceUnavailable) })
		if _, err := c.Status(t.Context()); levelrail.KindOf(err) != levelrail.ErrUnavailable {
			t.Errorf("got %v", err)
		}
	})
	t.Run("no socket", func(t *testing.T) {
		c, err := New(Options{Socket: filepath.Join(t.TempDir(), "none.sock")})
		if err != nil {
			t.Fatal(err)
		}
		if _, err = c.Status(t.Context()); levelrail.KindOf(err) != levelrail.ErrUnavailable || !strings.Contains(err.Error(), "LEVELRAIL_URL") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("nobody listens", func(t *testing.T) {
		sock := filepath.Join(t.TempDir(), "dead.sock")
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: sock})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		l.Close()
		c, _ := New(Options{Socket: sock})
		if _, err := c.Status(t.Context()); levelrail.KindOf(err) != levelrail.ErrUnavailable || !strings.Contains(err.Error(), "systemctl status") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("no permission", func(t *testing.T) {
		c, _ := New(Options{Socket: "/x"})
		err := c.failed(t.Context(), "GET", "/", &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", os.ErrPermission)})
		if levelrail.KindOf(err) != levelrail.ErrForbidden || !strings.Contains(err.Error(), "group levelrail") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		c := serve(t, func(w http.ResponseWriter, r *http.Request) { cancel(); <-r.Context().Done() })
		if _, err := c.Status(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("late write", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		defer cancel()
		c := serve(t, func(w http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body); <-r.Context().Done() })
		_, err := c.Deploy(ctx, wire.Deploy{})
		if levelrail.KindOf(err) != levelrail.ErrTimeout || !strings.Contains(err.Error(), "unknown") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("options", func(t *testing.T) {
		for _, o := range []Options{{}, {Socket: "a", URL: "https://b"}, {URL: "cp.example.com"}, {URL: "http://cp.example.com", Token: "lrt-secret"},
			{URL: "https://cp", CAFile: filepath.Join(t.TempDir(), "none")}} {
			_, err := New(o)
			if levelrail.KindOf(err) != levelrail.ErrInvalid || strings.Contains(err.Error(), "secret") {
				t.Errorf("%+v gives %v", o, err)
			}
		}
	})
}

// TestTLS: a token goes over TLS that the CA file vouches for, and nowhere else.
func TestTLS(t *testing.T) {
	var auth string
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		auth = r.Header.Get("Authorization")
		io.WriteString(w, `{"cluster_id":"clu_1"}`)
	}))
	defer srv.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := New(Options{URL: srv.URL, Token: "lrt-abc", CAFile: ca})
	if err != nil {
		t.Fatal(err)
	}
	if st, err := c.Status(t.Context()); err != nil || st.ClusterID != "clu_1" || auth != "Bearer lrt-abc" {
		t.Errorf("got %v, %v, authorization %q", st, err, auth)
	}
	auth = ""
	stranger, _ := New(Options{URL: srv.URL, Token: "lrt-abc"})
	if _, err := stranger.Status(t.Context()); levelrail.KindOf(err) != levelrail.ErrUnavailable || !strings.Contains(err.Error(), "ca.pem") {
		t.Errorf("without the CA: %v", err)
	}
	if auth != "" {
		t.Error("the token went to a server that nothing vouches for")
	}
}

// TestWatch: lines come in order with their tokens; an error line, a lost connection and 410 end it in ways that the
// caller can tell apart.
func TestWatch(t *testing.T) {
	lines := func(s ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			for _, l := range s {
				fmt.Fprintln(w, l)
			}
		}
	}
	t.Run("order", func(t *testing.T) {
		var uri, body string
		c := serve(t, func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			uri, body = r.Method+" "+r.URL.RequestURI(), string(b)
			lines(`{"type":"reset"}`, `{"type":"put","kind":"route","id":"chat","token":"l.4","object":{"model":"chat"}}`, `{"type":"synced","token":"l.4"}`, `{"type":"heartbeat"}`)(w, r)
		})
		var got []string
		err := c.Watch(t.Context(), WatchOptions{After: "l.3", Kinds: []string{"route", "route_key"}, Body: wire.WatchGateway{GatewayID: "gw_1"}}, func(l wire.WatchLine) error {
			got = append(got, l.Type+l.Token+string(l.Object))
			return nil
		})
		if levelrail.KindOf(err) != levelrail.ErrUnavailable {
			t.Errorf("the end of the stream gives %v", err)
		}
		if want := `[reset putl.4{"model":"chat"} syncedl.4 heartbeat]`; fmt.Sprint(got) != want {
			t.Errorf("got %v, want %v", got, want)
		}
		if uri != "POST /api/v1/watch?after=l.3&kinds=route%2Croute_key" || body != `{"gateway_id":"gw_1","version":""}` {
			t.Errorf("asked %s with %s", uri, body)
		}
	})
	t.Run("error line", func(t *testing.T) {
		c := serve(t, lines(`{"type":"error","error":{"kind":"unavailable","message":"too slow","next":"watch again"}}`))
		err := c.Watch(t.Context(), WatchOptions{Kinds: []string{"model"}}, func(wire.WatchLine) error { t.Error("called"); return nil })
		if err == nil || err.Error() != "too slow (next: watch again)" || IsGone(err) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("gone", func(t *testing.T) {
		c := serve(t, func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(410)
			io.WriteString(w, `{"error":{"kind":"not_found","message":"too old","next":"/api/v1/watch?kinds=model"}}`)
		})
		err := c.Watch(t.Context(), WatchOptions{After: "l.1", Kinds: []string{"model"}}, nil)
		if !IsGone(err) || levelrail.KindOf(err) != levelrail.ErrNotFound {
			t.Errorf("got %v", err)
		}
	})
	t.Run("caller stops", func(t *testing.T) {
		c := serve(t, func(w http.ResponseWriter, r *http.Request) {
			lines(`{"type":"synced"}`)(w, r)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		})
		enough := errors.New("enough")
		if err := c.Watch(t.Context(), WatchOptions{Kinds: []string{"model"}}, func(wire.WatchLine) error { return enough }); err != enough {
			t.Errorf("got %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		if err := c.Watch(ctx, WatchOptions{Kinds: []string{"model"}}, func(wire.WatchLine) error { cancel(); return nil }); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
}

// TestWatchSilence: a watch whose server says nothing for 30 seconds is over, and heartbeats keep it alive.
func TestWatchSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		c, _ := New(Options{Socket: "/unused"})
		c.http.Transport.(*http.Transport).DialContext = func(context.Context, string, string) (net.Conn, error) { return here, nil }
		go func() {
			buf := make([]byte, 4096)
			there.Read(buf)
			io.WriteString(there, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
			for range 6 {
				io.WriteString(there, "15\r\n{\"type\":\"heartbeat\"}\n\r\n")
				time.Sleep(10 * time.Second)
			}
			there.Read(buf) // says nothing more
		}()
		began, beats := time.Now(), 0
		err := c.Watch(t.Context(), WatchOptions{Kinds: []string{"model"}}, func(wire.WatchLine) error { beats++; return nil })
		if levelrail.KindOf(err) != levelrail.ErrUnavailable || !strings.Contains(err.Error(), "silent") {
			t.Errorf("got %v", err)
		}
		if took := time.Since(began); beats != 6 || took != 80*time.Second {
			t.Errorf("%d heartbeats, ended after %s; want 6 and 80s", beats, took)
		}
		there.Close()
		c.Close()
		synctest.Wait()
	})
}

// TestLogs: lines are passed on, and an error at the end of a stream is an error.
func TestLogs(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if q := r.URL.RawQuery; q != "follow=true&lines=5&since=-1h" {
			t.Errorf("asked %q", q)
		}
		io.WriteString(w, `{"at":"2026-01-02T03:04:05Z","unit":"u","priority":6,"message":"hello"}`+"\n"+`{"error":{"kind":"unavailable","message":"the node went away"}}`+"\n")
	})
	var got []wire.LogLine
	err := c.Logs(t.Context(), "chat", LogOptions{Lines: 5, Follow: true, Since: "-1h"}, func(l wire.LogLine) error { got = append(got, l); return nil })
	if err == nil || err.Error() != "the node went away" || len(got) != 1 || got[0].Message != "hello" {
		t.Errorf("got %v, %v", got, err)
	}
}

// TestPostLogs: lines arrive while they are written, and a writer learns at once that its reader has left.
func TestPostLogs(t *testing.T) {
	t.Run("to the end", func(t *testing.T) {
		var body string
		c := serve(t, func(w http.ResponseWriter, r *http.Request) { b, _ := io.ReadAll(r.Body); body = string(b) })
		err := c.PostLogs(t.Context(), "log_1", func(_ context.Context, send func(wire.LogLine) error) error {
			return errors.Join(send(wire.LogLine{Message: "a"}), send(wire.LogLine{Message: "b"}))
		})
		if err != nil || strings.Count(strings.TrimSpace(body), "\n") != 1 || !strings.Contains(body, `"message":"b"`) {
			t.Errorf("got %q, %v", body, err)
		}
	})
	t.Run("reader leaves", func(t *testing.T) {
		c := serve(t, func(w http.ResponseWriter, r *http.Request) {
			r.Body.Read(make([]byte, 10))
			w.Header().Set("Connection", "close")
			io.WriteString(w, "{}")
		})
		err := c.PostLogs(t.Context(), "log_1", func(ctx context.Context, send func(wire.LogLine) error) error {
			if err := send(wire.LogLine{Message: "a"}); err != nil {
				return err
			}
			<-ctx.Done()
			return ctx.Err()
		})
		if err != nil {
			t.Errorf("got %v", err)
		}
	})
	t.Run("unknown request", func(t *testing.T) {
		c := serve(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Connection", "close")
			w.WriteHeader(404)
			io.WriteString(w, `{"error":{"kind":"not_found","message":"nobody asked for these lines"}}`)
		})
		err := c.PostLogs(t.Context(), "log_1", func(ctx context.Context, send func(wire.LogLine) error) error { <-ctx.Done(); return ctx.Err() })
		if levelrail.KindOf(err) != levelrail.ErrNotFound {
			t.Errorf("got %v", err)
		}
	})
	t.Run("writer fails", func(t *testing.T) {
		c := serve(t, func(w http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) })
		broken := errors.New("no journal")
		if err := c.PostLogs(t.Context(), "log_1", func(context.Context, func(wire.LogLine) error) error { return broken }); !errors.Is(err, broken) {
			t.Errorf("got %v", err)
		}
	})
}
