package gateway

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/levelrail/levelrail/caddymodule/route"
)

// TestMembersAreTheRequestsOwn: what one body says is nothing to the next request, which is read into the same memory.
func TestMembersAreTheRequestsOwn(t *testing.T) {
	g, _, _ := newGateway(t, "/nowhere", 1)
	e := g.Table().Edit()
	m, _ := g.Table().Model("chat")
	r := m.Wire()
	r.Limits.MaxN = 4
	if err := e.PutModel(r); err != nil {
		t.Fatal(err)
	}
	table := e.Table()
	g.Table = func() *route.Table { return table }
	x := g.begin(&discard{h: http.Header{}}, request(`{"model":"chat"}`))
	defer x.finish()
	for _, c := range []struct {
		body   string
		status int
	}{
		{`{"model":"chat","n":5}`, 400}, {`{"model":"chat"}`, 0}, {`{"model":"chat","n":4}`, 0}, {`{"n":5,"model":"chat"}`, 400}, {`{"model":"chat","messages":[]}`, 0},
		{`{"model":"ch\u0061t","n":1}`, 0}, {`{"model":"chat\\"}`, 404}, {`{"model":"chat "}`, 404}, {`{"n":1}`, 400}, {`{"model":7}`, 400}, {`{"model":""}`, 404}, {`{"model":"chat"}`, 0},
	} {
		x.r = request(c.body)
		x.r.Body = io.NopCloser(strings.NewReader(c.body))
		status := 0
		for _, check := range []step{(*exchange).findRoute, (*exchange).authorize, (*exchange).ownRoute, (*exchange).readBody, (*exchange).checkBody, (*exchange).checkCost} {
			if refusal := check(x); refusal != nil {
				status = refusal.Status
				break
			}
		}
		if status != c.status {
			t.Errorf("%s gets %d, want %d", c.body, status, c.status)
		}
		if x.body != nil {
			x.body.Release()
			x.body = nil
		}
		x.model = nil
	}
}
