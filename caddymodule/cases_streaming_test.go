package caddymodule

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

// TestCancelHeld is the rest of case C015: who leaves while held for a wake frees its slot within a second and is recorded as one who left, over
// both protocols; the engine never hears of it; and the usage says aborted for this as for a stream.
func TestCancelHeld(t *testing.T) {
	h := newHost(t)
	left := int64(0)
	h.each(func(t *testing.T, c *http.Client, proto int) {
		h.limited(levelrail.KeyLimits{MaxParallel: 1, RPM: 100}, func(r *wire.Route) { asleep(60)(r); r.Limits.UsageFlushSeconds = 1 })
		ctx, leave := context.WithCancel(t.Context())
		id := fmt.Sprintf("held-%d", proto)
		done := make(chan error, 1)
		go func() {
			resp, err := c.Do(h.request("POST", chatPath, chatBody, "X-Request-Id", id).WithContext(ctx))
			if err == nil {
				resp.Body.Close()
			}
			done <- err
		}()
		h.eventually("it is held", func() bool { return h.holds() == 1 })
		leave()
		began := time.Now()
		if err := <-done; err == nil {
			t.Error("it was answered")
		}
		h.eventually("the slots are free", func() bool { return pooledSlots("chat") == 0 })
		if took := time.Since(began); took > time.Second {
			t.Errorf("the slot came back after %s", took)
		}
		if r := h.recordOf(id); r["end"] != "client_gone" || r["status"] != 499.0 {
			t.Errorf("recorded as %v", r)
		}
		if n := h.usedOf("max_parallel") + h.usedOf("rpm"); n != 0 {
			t.Errorf("%d are still charged", n)
		}
		if n := len(h.engine.requests()); n != 0 {
			t.Errorf("the engine saw %d", n)
		}
		left++
	})
	h.limited(levelrail.KeyLimits{}, func(r *wire.Route) { r.Limits.UsageFlushSeconds = 1 })
	h.each(func(t *testing.T, c *http.Client, proto int) {
		s := newScript()
		h.engine.on(s.serve)
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		resp, err := c.Do(h.request("POST", chatPath, streamBody).WithContext(ctx))
		if err != nil {
			t.Fatal(err)
		}
		s.pieces <- engineChunk
		if _, err := io.ReadFull(resp.Body, make([]byte, len(engineChunk))); err != nil {
			t.Fatal(err)
		}
		leave()
		h.engine.leftWithin(t, time.Second)
		resp.Body.Close()
		left++
	})
	h.eventually("all are counted", func() bool { return h.cp.sum("key_a").Requests >= left })
	if got := h.cp.sum("key_a"); got.Requests != left || got.Aborted != left || got.ServerErrors != 0 || got.WithUsage != 0 {
		t.Errorf("usage: %+v", got)
	}
}

// TestFormsWithHiddenUsage is case C016 where the gateway asks for a stream's usage by itself: comment lines, other line ends, tight fields, long
// lines and a missing last line end pass as they are and at once, only the event that was asked for is taken out, and it is counted.
func TestFormsWithHiddenUsage(t *testing.T) {
	h := newHost(t)
	h.put("vllm", "limited", levelrail.KeyLimits{TPM: 1 << 40})
	usage, total := strings.TrimSuffix(engineUsage, "\n\n"), int64(0)
	h.each(func(t *testing.T, c *http.Client, proto int) {
		for name, events := range map[string][]string{ // the one with the usage is taken out
			"plain":                {engineChunk, usage + "\n\n", engineDone},
			"CRLF":                 {strings.ReplaceAll(engineChunk, "\n", "\r\n"), usage + "\r\n\r\n", "data: [DONE]\r\n\r\n"},
			"CR":                   {strings.ReplaceAll(engineChunk, "\n", "\r"), usage + "\r\r", "data: [DONE]\r\r"},
			"tight":                {strings.Replace(engineChunk, "data: ", "data:", 1), strings.Replace(usage, "data: ", "data:", 1) + "\n\n", "data:[DONE]\n\n"},
			"a comment before":     {": ping\n\n", ":\n\n", engineChunk, usage + "\n\n", engineDone},
			"a comment between":    {engineChunk, usage + "\n\n", ": ping\n\n", ":\r\n\r\n", engineDone},
			"a comment in it":      {engineChunk[:len(engineChunk)-1], ": ping\n", "\n", usage + "\n\n", engineDone},
			"fields":               {"event: x\nid: 7\nretry: 10\n" + engineChunk, usage + "\n\n", engineDone},
			"several data lines":   {"data: a\ndata: b\n\n", usage + "\n\n", engineDone},
			"a long line":          {"data: \"" + strings.Repeat("x", 200<<10) + "\"\n\n", usage + "\n\n", engineDone},
			"a longer line":        {"data: \"" + strings.Repeat("x", 400<<10) + "\"\n\n", usage + "\n\n", engineDone},
			"no last line end":     {engineChunk, usage + "\n\n", "data: [DONE]"},
			"usage without an end": {engineChunk, usage},
			"said in a text":       {`data: {"choices":[{"delta":{"content":"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1}}"}}]}` + "\n\n", usage + "\n\n", engineDone},
			"no words for data":    {"datax: 1\n", "data\n\n", "\n\n", usage + "\n\n", engineDone},
			"a mark at the start":  {"\xef\xbb\xbf" + engineChunk, usage + "\n\n", engineDone},
		} {
			for _, split := range []int{0, 1, 7} {
				s := newScript()
				h.engine.on(s.serve)
				id := strings.NewReplacer(" ", "-").Replace(fmt.Sprint(name, split, proto))
				resp, err := c.Do(h.request("POST", chatPath, streamBody, "X-Request-Id", id))
				if err != nil {
					t.Fatal(err)
				}
				var want strings.Builder
				for _, e := range events {
					if split > 0 && len(e) < 1000 {
						for p := e; p != ""; p = p[min(split, len(p)):] {
							s.pieces <- p[:min(split, len(p))]
						}
					} else {
						s.pieces <- e
					}
					if !strings.Contains(e, `"choices":[],"usage"`) || name == "said in a text" && strings.Contains(e, "delta") {
						want.WriteString(e)
						got := make([]byte, len(e))
						if e == "data: [DONE]" {
							break // it is whole only once the stream has ended
						}
						if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != e {
							t.Fatalf("%s, in pieces of %d: %.60q came as %.60q %v", name, split, e, got, err)
						}
					}
				}
				close(s.pieces)
				rest, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				last := ""
				if name == "no last line end" {
					last = "data: [DONE]"
				}
				if err != nil || string(rest) != last {
					t.Errorf("%s, in pieces of %d: the rest is %q %v", name, split, rest, err)
				}
				if r := h.recordOf(id); r["input_tokens"] != 11.0 || r["output_tokens"] != 22.0 || r["end"] != "complete" || r["bytes"] != float64(want.Len()) {
					t.Errorf("%s, in pieces of %d: recorded %v, want %d bytes", name, split, r, want.Len())
				}
				total++
			}
		}
	})
	h.eventually("all usage has arrived", func() bool { return h.cp.sum("key_a").Requests >= total })
	if got := h.cp.sum("key_a"); got.Requests != total || got.WithUsage != total || got.InputTokens != 11*total {
		t.Errorf("%d streams, usage %+v", total, got)
	}
	seen := h.engine.requests()
	if body := string(seen[len(seen)-1].body); !strings.Contains(body, `"include_usage":true`) {
		t.Errorf("the engine was sent %s", body)
	}
}
