package httpapi

import (
	"context"
	"slices"
	"strings"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

func (s *Server) knownModel(name string) error {
	d, err := s.read()
	if err != nil {
		return err
	}
	if _, ok := d.Model(name); !ok {
		return notFoundModel(name)
	}
	return nil
}

// listRequests asks the gateways what they are doing for a model.
func (s *Server) listRequests(ctx context.Context, in *Named) (*body[wire.Requests], error) {
	if err := s.knownModel(in.Name); err != nil {
		return nil, err
	}
	a, err := s.ask(ctx, wire.Question{Ask: wire.AskRequests, Model: in.Name})
	if err != nil {
		return nil, err
	}
	out := wire.Requests{Items: []wire.InFlight{}, Gateways: a.who(), Silent: a.silent}
	for gateway, one := range a.by {
		for _, r := range one.Requests {
			r.GatewayID = gateway
			out.Items = append(out.Items, r)
		}
	}
	slices.SortFunc(out.Items, func(a, b wire.InFlight) int {
		if c := a.StartedAt.Compare(b.StartedAt); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return &body[wire.Requests]{out}, nil
}

// cancelRequest ends one request in flight. Its client gets a visible cut, and the engine stops generating.
func (s *Server) cancelRequest(ctx context.Context, in *struct {
	Named
	ID string `path:"id" maxLength:"256" doc:"the request's id, as the listing and the header X-Request-Id have it"`
}) (*body[wire.CancelledRequest], error) {
	if err := s.knownModel(in.Name); err != nil {
		return nil, err
	}
	a, err := s.ask(ctx, wire.Question{Ask: wire.AskCancel, Model: in.Name, Request: in.ID})
	if err != nil {
		return nil, err
	}
	out := wire.CancelledRequest{ID: in.ID, Gateways: []string{}}
	for _, gateway := range a.who() {
		if a.by[gateway].Cancelled {
			out.Gateways = append(out.Gateways, gateway)
		}
	}
	switch {
	case len(out.Gateways) > 0:
		s.o.Log.Info("a request in flight was cancelled", "model", in.Name, "request", clip(in.ID), "gateways", strings.Join(out.Gateways, ","), "by", callerOf(ctx).principal.String())
		return &body[wire.CancelledRequest]{out}, nil
	case len(a.silent) > 0:
		return nil, levelrail.Errorf(levelrail.ErrUnavailable, "no gateway that answered has the request %q of %s in flight, and %s did not answer", clip(in.ID), in.Name, strings.Join(a.silent, ", ")).
			WithNext("levelrail models requests %s", in.Name)
	}
	return nil, levelrail.Errorf(levelrail.ErrNotFound, "no gateway has the request %q of %s in flight", clip(in.ID), in.Name).WithNext("levelrail models requests %s", in.Name)
}

// explainKey asks the gateways where a key's limits stand: which of them refused last, and when a request passes again.
func (s *Server) explainKey(ctx context.Context, in *struct {
	Named
	Key string `query:"key" required:"true" minLength:"1" maxLength:"64" doc:"the key's id"`
}) (*body[wire.Explanation], error) {
	k, err := s.keyOf(in.Name, in.Key)
	if err != nil {
		return nil, err
	}
	a, err := s.ask(ctx, wire.Question{Ask: wire.AskExplain, Model: in.Name, KeyID: k.ID})
	if err != nil {
		return nil, err
	}
	out := wire.Explanation{Model: in.Name, Key: k.view(), Opens: k.Live(s.o.Clock()), Limits: []wire.LimitState{}, Gateways: a.who(), Silent: a.silent}
	for _, gateway := range out.Gateways {
		for _, l := range a.by[gateway].Limits {
			l.GatewayID = gateway
			out.Limits = append(out.Limits, l)
		}
	}
	out.Total = s.total(k, out.Limits)
	for i, l := range out.Limits {
		if l.RefusedLast != nil && (out.RefusedBy == nil || l.RefusedLast.After(*out.RefusedBy.RefusedLast)) {
			out.RefusedBy = &out.Limits[i]
		}
	}
	return &body[wire.Explanation]{out}, nil
}

// total sums up a key's limits over the gateways that share them; nothing where a limit is one gateway's alone.
func (s *Server) total(k storedKey, all []wire.LimitState) (out []wire.LimitTotal) {
	gone := s.leases.Gone(k.ID)
	for _, l := range []struct {
		limit      string
		most, gone int64
	}{{"rpm", k.Limits.RPM, gone.RPM}, {"tpm", k.Limits.TPM, gone.TPM}, {"tpd", k.Limits.TPD, gone.TPD}, {"max_parallel", k.Limits.MaxParallel, 0}} {
		sum, shared, first := wire.LimitTotal{Limit: l.limit, Most: l.most, Used: l.gone, Gone: l.gone}, false, int64(0)
		for _, one := range all {
			if one.Limit != l.limit {
				continue
			}
			sum.Used += one.Used
			shared = shared || one.Lease != nil
			if one.FreesSeconds > 0 && (first == 0 || one.FreesSeconds < first) {
				first = one.FreesSeconds
			}
		}
		if sum.Used >= sum.Most {
			sum.ResetSeconds = max(first, 1)
		}
		if shared && l.most > 0 {
			out = append(out, sum)
		}
	}
	return out
}
