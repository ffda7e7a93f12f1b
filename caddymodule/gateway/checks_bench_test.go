package gateway

import (
	"io"
	"strings"
	"testing"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/caddymodule/route"
	"github.com/levelrail/levelrail/client/wire"
)

// BenchmarkChecks is all that the gateway does to a request of 1 KiB before it goes to the engine, and the accounts after
// it, for a key with every limit: look-up, slots, the walk of the body, costs, charging, the lists of what is in flight and
// in use.
func BenchmarkChecks(b *testing.B) {
	for _, c := range []struct {
		name   string
		limits levelrail.KeyLimits
	}{{"unlimited", levelrail.KeyLimits{}}, {"limited", levelrail.KeyLimits{RPM: 1 << 40, TPM: 1 << 40, TPD: 1 << 40, MaxParallel: 1 << 20}}} {
		b.Run(c.name, func(b *testing.B) {
			g, _, _ := newGateway(b, "/nowhere", 1000)
			g.Sink = nothing{}
			e := g.Table().Edit()
			m, _ := g.Table().Model("chat")
			r := m.Wire()
			r.Limits.MaxN, r.Limits.MaxGenLen = 16, 32768
			if err := e.PutModel(r); err != nil {
				b.Fatal(err)
			}
			if _, err := e.PutKey(wire.RouteKey{ID: "key_a", SHA256: levelrail.HashSecret(key), Prefix: key[:8], Models: []string{"chat"}, Limits: c.limits}); err != nil {
				b.Fatal(err)
			}
			table := e.Table()
			g.Table = func() *route.Table { return table }
			text := `{"model":"chat","max_tokens":512,"n":1,"messages":[{"role":"user","content":"` + strings.Repeat("word ", 190) + `"}]}`
			r0, w := request(text), &discard{}
			b.ReportAllocs()
			for b.Loop() {
				w.h = make(map[string][]string, 4)
				r0.Body = io.NopCloser(strings.NewReader(text))
				x := g.begin(w, r0)
				for _, check := range order[:len(order)-1] { // without the engine
					if refusal := check(x); refusal != nil {
						b.Fatal(refusal)
					}
				}
				x.reached, x.record.HasUsage, x.record.Input, x.record.Output = true, true, 100, 50
				x.finish()
			}
		})
	}
}
