package httpapi

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

// gatewayAnswers is how long gateways have to answer and to say that they refuse a key. One that has not by then is named.
const gatewayAnswers = time.Second

// said is what gateways said, and who of them said nothing in time.
type said struct {
	by     map[string]wire.Answer
	silent []string
}

// who lists the gateways that answered.
func (a said) who() []string {
	out := slices.Sorted(maps.Keys(a.by))
	if out == nil {
		out = []string{}
	}
	return out
}

// ask asks every connected gateway the same and waits for all of them, but not for long.
func (s *Server) ask(ctx context.Context, q wire.Question) (said, error) {
	out := said{by: map[string]wire.Answer{}}
	open := map[string]chan wire.Answer{} // each holds the one answer
	for _, gateway := range s.connected() {
		q.ID, open[gateway] = levelrail.NewID("q"), make(chan wire.Answer, 1)
		takeBack, err := s.questions.put(gateway, q.ID, q, open[gateway])
		if err != nil {
			return out, s.internal("ask the gateways", err)
		}
		defer takeBack()
	}
	late := time.NewTimer(s.o.GatewayAnswers)
	defer late.Stop()
	for _, gateway := range slices.Sorted(maps.Keys(open)) {
		select {
		case out.by[gateway] = <-open[gateway]:
			continue
		default:
		}
		select {
		case out.by[gateway] = <-open[gateway]:
		case <-late.C:
			late.Reset(0) // for those that follow
			out.silent = append(out.silent, gateway)
		case <-s.stopping:
			return out, levelrail.Errorf(levelrail.ErrUnavailable, "the server is stopping").WithNext("ask again in a few seconds")
		case <-ctx.Done():
			return out, ended(ctx)
		}
	}
	return out, nil
}

// gatewayAnswer takes a gateway's answer to whoever waits for it.
func (s *Server) gatewayAnswer(_ context.Context, in *struct {
	ID   string `path:"id" maxLength:"64"`
	Body wire.Answer
}) (*none, error) {
	q := s.questions.find(in.ID)
	if q == nil || q.of != in.Body.GatewayID {
		return nil, levelrail.Errorf(levelrail.ErrNotFound, "nobody waits for the answer %q of %s", clip(in.ID), clip(in.Body.GatewayID)).WithNext("nothing has to be done")
	}
	if s.questions.take(in.ID) {
		q.answer <- in.Body
	}
	return &none{}, nil
}

// connected are the ids of the gateways that follow this server.
func (s *Server) connected() []string {
	var out []string
	for _, g := range s.o.Ledger.Snapshot().Gateways {
		out = append(out, g.ID)
	}
	return out
}

// awaitSeen waits until gateways have come as far as an index, those that were connected when the change was asked for and
// those that are now. It returns who has and who has not said so in time.
func (s *Server) awaitSeen(ctx context.Context, before []string, index uint64) (seen, silent []string) {
	all := append(before, s.connected()...)
	slices.Sort(all)
	all = slices.Compact(all)
	late := time.NewTimer(s.o.GatewayAnswers)
	defer late.Stop()
	for {
		more := s.o.Ledger.SawMore()
		seen, silent = []string{}, nil
		for _, g := range all {
			if s.o.Ledger.HasSeen(g, index) {
				seen = append(seen, g)
			} else {
				silent = append(silent, g)
			}
		}
		if len(silent) == 0 {
			return seen, silent
		}
		select {
		case <-more:
		case <-late.C:
			return seen, silent
		case <-s.stopping:
			return seen, silent
		case <-ctx.Done():
			return seen, silent
		}
	}
}
