package caddymodule

import (
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

// TestSlotsComeBackH2 is case C008 over HTTP/2: streams that are reset in the middle, before the headers, while held for a wake or with half a
// body, and connections that vanish with several open, give back what they held; nothing goes below zero.
func TestSlotsComeBackH2(t *testing.T) {
	h := newHost(t)
	limits := levelrail.KeyLimits{MaxParallel: 3}
	h.limited(limits, nil)
	back := func(what string) {
		t.Helper()
		h.eventually("after "+what+" the slots are free", func() bool { return pooledSlots("chat") == 0 && h.usedOf("max_parallel") == 0 })
		if n := len(h.ask(wire.Question{Ask: wire.AskRequests, Model: "chat"}).Requests); n != 0 {
			t.Errorf("after %s: %d are in flight", what, n)
		}
	}
	fields := []string{"authorization", "Bearer " + h.key, "content-type", "application/json"}
	c := dialH2(t, h.port)
	for range 20 {
		s := newScript()
		h.engine.on(s.serve)
		id := c.begin("POST", chatPath, fields...)
		c.body(id, streamBody, true)
		<-s.started
		s.pieces <- engineChunk
		if !c.until(5*time.Second, func() bool { return len(c.seen[id].data) > 0 }) {
			t.Fatal("the stream does not come")
		}
		c.cancel(id)
		h.engine.leftWithin(t, time.Second)
		back("a reset in mid-stream")
	}
	entered := make(chan struct{}, 8)
	h.engine.on(blockUntil(entered, nil))
	for range 5 {
		id := c.begin("POST", chatPath, fields...)
		c.body(id, chatBody, true)
		<-entered
		c.cancel(id)
		h.engine.leftWithin(t, time.Second)
		back("a reset before the headers")
		id = c.begin("POST", chatPath, fields...)
		c.body(id, chatBody[:9], false)
		h.eventually("its slot is taken", func() bool { return h.usedOf("max_parallel") == 1 && h.inState("reading") == 1 })
		c.cancel(id)
		back("a reset with half a body")
	}
	for range 3 { // three at once, and the connection is gone
		lost := dialH2(t, h.port)
		for range 2 {
			id := lost.begin("POST", chatPath, fields...)
			lost.body(id, chatBody, true)
			<-entered
		}
		lost.begin("POST", chatPath, fields...)
		h.eventually("all slots are taken", func() bool { return pooledSlots("chat") == 2 && h.usedOf("max_parallel") == 3 })
		lost.conn.Close()
		h.engine.leftWithin(t, time.Second)
		h.engine.leftWithin(t, time.Second)
		back("a connection that is lost")
	}
	h.limited(limits, asleep(60))
	for range 5 {
		id := c.begin("POST", chatPath, fields...)
		c.body(id, chatBody, true)
		h.eventually("it is held", func() bool { return h.holds() == 1 })
		c.cancel(id)
		back("a reset while held")
	}
	if c.gone {
		t.Error("the connection has been ended for the resets")
	}
}

// TestCapAsShipped is case C009 with the cap as it is shipped, 32 MiB, and no length said: exactly that passes, with its length told to the engine;
// a byte more does not.
func TestCapAsShipped(t *testing.T) {
	h := newHost(t)
	const frame = `{"model":"chat","x":""}`
	exact := `{"model":"chat","x":"` + strings.Repeat("y", 32<<20-len(frame)) + `"}`
	for body, status := range map[string]int{exact: 200, exact + " ": 413} {
		before := len(h.engine.requests())
		req := h.request("POST", chatPath, body)
		req.ContentLength, req.GetBody = -1, nil
		resp, err := (&http.Client{Transport: httpClient.Transport}).Do(req) // under the race detector this may take long
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		seen := h.engine.requests()[before:]
		if resp.StatusCode != status || len(seen) != map[int]int{200: 1}[status] || status == 200 && (seen[0].length != 32<<20 || string(seen[0].body) != body) {
			t.Errorf("%d bytes: %d, the engine saw %d", len(body), resp.StatusCode, len(seen))
		}
	}
}

// TestBodyMemoryIsBounded: however many clients of a key upload at once, the bodies that wait take no more memory than they
// may, those for which there is none are refused, and another key has room.
func TestBodyMemoryIsBounded(t *testing.T) {
	h := newHost(t)
	const most, own, all, clients = 4 << 20, 20 << 20, 40 << 20, 40
	h.limited(levelrail.KeyLimits{}, func(r *wire.Route) {
		r.Limits.MaxBodyBytes, r.Limits.BodyMemoryKey, r.Limits.BodyMemory = most, own, all
	})
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	held := make(chan struct{})
	statuses := make(chan int, clients)
	for range clients {
		go func() {
			req := h.request("POST", chatPath, "x")
			// All but the end is sent.
			req.Body, req.ContentLength, req.GetBody = io.NopCloser(io.MultiReader(strings.NewReader(`{"model":"chat","x":"`), io.LimitReader(letters{}, most-1000), until{held}, strings.NewReader(`"}`))), -1, nil
			resp, err := httpClient.Do(req)
			if err != nil {
				statuses <- 0
				return
			}
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			statuses <- resp.StatusCode
		}()
	}
	reading := 0
	h.eventually("all are read or refused", func() bool {
		reading = 0
		for _, r := range h.ask(wire.Question{Ask: wire.AskRequests, Model: "chat"}).Requests {
			if r.State == "reading" && r.Received > most-2000 {
				reading++
			}
		}
		return reading+len(statuses) == clients && len(statuses) > 0
	})
	if took := heap() - before; took > own+24<<20 {
		t.Errorf("%d uploads hold %d MiB", clients, took>>20)
	}
	if reading < 2 || reading > own/most {
		t.Errorf("%d are read at once", reading)
	}
	another := h.cp.newKey("key_b", "chat")
	h.eventually("another key is known", func() bool { _, ok := h.table().Key(hashOf(another)); return ok })
	if resp, body := h.do("POST", chatPath, `{"model":"chat","x":"`+strings.Repeat("y", most-1000)+`"}`, "Authorization", "Bearer "+another); resp.StatusCode != 200 {
		t.Errorf("another key: %d %s", resp.StatusCode, body)
	}
	close(held)
	got := map[int]int{}
	for range clients {
		got[<-statuses]++
	}
	// A client that still sends long after its refusal may see the connection's end instead.
	if got[200] != reading || got[429] < clients/2 || got[429]+got[0]+got[200] != clients {
		t.Errorf("statuses %v", got)
	}
	pool.Range(func(_, v any) bool {
		if n := v.(*shared).gateway.Bodies.Held(); n != 0 {
			t.Errorf("%d bytes are still counted", n)
		}
		return true
	})
}

// letters are without an end.
type letters struct{}

func (letters) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'y'
	}
	return len(p), nil
}

// until is empty, and its end comes when the channel is closed.
type until struct{ done chan struct{} }

func (u until) Read([]byte) (int, error) { <-u.done; return 0, io.EOF }

// TestTrickleH2 is the rest of case C009 over HTTP/2: a body that comes byte by byte is cut.
func TestTrickleH2(t *testing.T) {
	h := newHost(t)
	h.limited(levelrail.KeyLimits{}, func(r *wire.Route) { r.Limits.BodyTimeoutSeconds, r.Limits.BodyMinRate = 1, 64<<10 })
	c := dialH2(t, h.port)
	id := c.begin("POST", chatPath, "authorization", "Bearer "+h.key, "content-length", "100000", "x-request-id", "trickle")
	go func() {
		for range time.Tick(20 * time.Millisecond) { // a trickle is time itself
			if _, err := c.conn.Write([]byte{0, 0, 1, frameData, 0, 0, 0, 0, byte(id), ' '}); err != nil {
				return
			}
		}
	}()
	if _, body, reset := c.answer(id, 5*time.Second); errorCode(body) != "request_timeout" && reset <= 0 {
		t.Errorf("%s, reset %d", body, reset)
	}
	if r := h.recordOf("trickle"); r["status"] != 408.0 && r["end"] != "client_gone" {
		t.Errorf("recorded as %v", r)
	}
	h.eventually("the slot is free", func() bool { return pooledSlots("chat") == 0 })
	if n := len(h.engine.requests()); n != 0 {
		t.Errorf("the engine saw %d", n)
	}
}

// TestRefusedIsReportedOnce is the end of case C010: a refusal is one request refused for a limit, in usage and log, and no failure of anybody;
// what an engine refuses is one request too.
func TestRefusedIsReportedOnce(t *testing.T) {
	h := newHost(t)
	h.put("vllm", "asked", levelrail.KeyLimits{RPM: 2})
	h.engine.on(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(400)
		io.WriteString(w, `{"error":{"message":"no","type":"BadRequestError","param":null,"code":400}}`)
	})
	for i := range 5 {
		h.do("POST", chatPath, chatBody, "X-Request-Id", fmt.Sprint("once-", i))
	}
	h.eventually("all are counted", func() bool { return h.cp.sum("key_a").Requests >= 5 })
	got, limited := h.cp.sum("key_a"), int64(0)
	h.cp.mu.Lock()
	for _, b := range h.cp.batches {
		for _, r := range b.Rows {
			limited += r.Limited
		}
	}
	h.cp.mu.Unlock()
	if got.Requests != 5 || limited != 3 || got.ClientErrors != 5 || got.ServerErrors != 0 || got.OK != 0 {
		t.Errorf("%d are limited, usage %+v", limited, got)
	}
	ends := map[any]int{}
	for _, r := range h.records() {
		if r["route"] == chatPath {
			ends[fmt.Sprint(r["end"], r["status"])]++
		}
	}
	if len(ends) != 2 || ends["complete400"] != 2 || ends["refused429"] != 3 {
		t.Errorf("the log has %v", ends)
	}
}

// TestNeverOverTheLimit: of many requests at the same moment exactly as many pass as the key may have a minute, over however many connections.
func TestNeverOverTheLimit(t *testing.T) {
	h := newHost(t)
	const most = 10
	h.limited(levelrail.KeyLimits{RPM: most}, func(r *wire.Route) { r.Limits.MaxInflight = 0 })
	var mu sync.Mutex
	got := map[int]int{}
	var all sync.WaitGroup
	h2 := h2Client(t)
	for i := range 200 {
		all.Go(func() {
			c := httpClient
			if i%2 == 0 {
				c = h2
			}
			resp, err := c.Do(h.request("POST", chatPath, chatBody))
			if err != nil {
				t.Error(err)
				return
			}
			resp.Body.Close()
			mu.Lock()
			defer mu.Unlock()
			got[resp.StatusCode]++
		})
	}
	all.Wait()
	if got[200] != most || got[429] != 200-most || len(h.engine.requests()) != most {
		t.Errorf("%v, the engine saw %d", got, len(h.engine.requests()))
	}
}

// TestEndlessStream is the first half of case C011: a generation without an end and without a length is seen by operators, is not ended by the gap
// timeout, and ends when an operator or its client says so.
func TestEndlessStream(t *testing.T) {
	h := newHost(t)
	h.limited(levelrail.KeyLimits{MaxParallel: 1}, func(r *wire.Route) { r.Limits.IdleTimeout = 1 })
	h.engine.on(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		tick := time.NewTicker(100 * time.Millisecond) // the engine's pace
		defer tick.Stop()
		for r.Context().Err() == nil {
			io.WriteString(w, engineChunk)
			http.NewResponseController(w).Flush()
			select {
			case <-tick.C:
			case <-r.Context().Done():
			}
		}
	})
	for _, who := range []string{"operator", "client"} {
		resp, err := httpClient.Do(h.request("POST", chatPath, streamBody, "X-Request-Id", "endless-"+who))
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { _, err := io.Copy(io.Discard, resp.Body); ended <- err }()
		h.eventually("it has gone on for longer than the gap", func() bool {
			select {
			case err := <-ended:
				t.Fatalf("it has ended: %v", err)
			default:
			}
			a := h.ask(wire.Question{Ask: wire.AskRequests, Model: "chat"})
			return len(a.Requests) == 1 && (a.Requests[0].Tokens >= 13 || who == "client" && a.Requests[0].Tokens >= 2) && a.Requests[0].KeyPrefix == h.key[:8]
		})
		end := "client_gone"
		if who == "operator" {
			end = "cancelled"
			h.ask(wire.Question{Ask: wire.AskCancel, Model: "chat", Request: "endless-operator"})
			if err := <-ended; err == nil {
				t.Error("it ends as if it was whole")
			}
		}
		resp.Body.Close()
		h.engine.leftWithin(t, time.Second)
		if r := h.recordOf("endless-" + who); r["end"] != end {
			t.Errorf("recorded as %v", r)
		}
		h.eventually("the slots are free", func() bool { return pooledSlots("chat") == 0 && h.usedOf("max_parallel") == 0 })
	}
}

// TestZeroDisables: 0 or a negative value takes each of the server's limits away.
func TestZeroDisables(t *testing.T) {
	h := newHost(t)
	large := `"n":1000,"max_tokens":1000000,"x":"` + strings.Repeat("y", 200<<10) + `"}`
	h.limited(levelrail.KeyLimits{}, func(r *wire.Route) { r.Limits.MaxBodyBytes = 100 << 10 })
	if resp, _ := h.do("POST", chatPath, `{"model":"chat",`+large); resp.StatusCode != 413 {
		t.Fatalf("with a limit: %d", resp.StatusCode)
	}
	keys := map[string]string{}
	for model, off := range map[string]int64{"zero": 0, "negative": -1} {
		r := h.route(model)
		l := &r.Limits
		for _, limit := range []*int64{&l.MaxBodyBytes, &l.MaxN, &l.MaxGenLen, &l.MaxInflight, &l.DialTimeoutSeconds, &l.HeaderTimeout, &l.IdleTimeout} {
			*limit = off
		}
		h.cp.putRoute(r)
		keys[model] = h.cp.newKey("key_"+model, model)
	}
	h.caughtUp()
	for model, key := range keys {
		if resp, body := h.do("POST", chatPath, `{"model":"`+model+`",`+large, "Authorization", "Bearer "+key); resp.StatusCode != 200 {
			t.Errorf("%s: a large body: %d %s", model, resp.StatusCode, body)
		}
	}
	// Slow to begin, silent in its answer, and many at once: a timeout of nothing would end them.
	h.engine.on(func(w http.ResponseWriter, r *http.Request) {
		pause := func() {
			select {
			case <-time.After(200 * time.Millisecond): // what is tried is time itself
			case <-r.Context().Done():
			}
		}
		pause()
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, engineChunk)
		http.NewResponseController(w).Flush()
		pause()
		io.WriteString(w, engineDone)
	})
	var all sync.WaitGroup
	for model, key := range keys {
		for range 40 {
			all.Go(func() {
				resp, err := httpClient.Do(h.request("POST", chatPath, `{"model":"`+model+`","stream":true}`, "Authorization", "Bearer "+key))
				if err != nil {
					t.Error(err)
					return
				}
				body, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if resp.StatusCode != 200 || string(body) != engineChunk+engineDone || err != nil {
					t.Errorf("%s: %d %q %v", model, resp.StatusCode, body, err)
				}
			})
		}
	}
	all.Wait()
}
