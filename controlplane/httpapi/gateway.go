package httpapi

import (
	"context"
	"strconv"
	"strings"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
	"github.com/levelrail/levelrail/raftstore"
	"github.com/levelrail/levelrail/raftstore/command"
)

// byGateway says that a gateway asks. Its socket is the gateways' own, so what it says of its id is believed.
func byGateway(ctx context.Context, id string) command.By {
	return command.By{Principal: levelrail.Principal{Kind: "gateway", ID: id}, Ability: callerOf(ctx).ability}
}

func checkGateway(id string) error {
	if gatewayID.MatchString(id) {
		return nil
	}
	return levelrail.Errorf(levelrail.ErrInvalid, "%q is not the id of a gateway: gw_ and letters and digits", clip(id)).WithNext("let the gateway make its id: remove gateway-id in its state directory")
}

// gatewaySeen takes a gateway's word that it has come as far as a token.
func (s *Server) gatewaySeen(_ context.Context, in *struct{ Body wire.Seen }) (*none, error) {
	if err := checkGateway(in.Body.GatewayID); err != nil {
		return nil, err
	}
	index, ok := s.position(in.Body.Token)
	if !ok {
		return nil, levelrail.Errorf(levelrail.ErrInvalid, "%q is no token of this server's watch", clip(in.Body.Token)).WithNext("send the token of the last line that was taken in")
	}
	s.o.Ledger.Seen(in.Body.GatewayID, index)
	return &none{}, nil
}

// position is the index in a token of this server's line of history.
func (s *Server) position(token string) (uint64, bool) {
	lineage, index, ok := strings.Cut(token, ".")
	n, err := strconv.ParseUint(index, 10, 64)
	return n, ok && err == nil && lineage == s.o.Store.Status().Lineage
}

// gatewayWake notes that somebody waits for a sleeping model. For a model that is not asleep nothing has to be done, so it
// is the same however often it is asked.
func (s *Server) gatewayWake(ctx context.Context, in *struct{ Body wire.Wake }) (*none, error) {
	w := in.Body
	if err := checkGateway(w.GatewayID); err != nil {
		return nil, err
	}
	if err := s.knownModel(w.Model); err != nil {
		return nil, err
	}
	var now levelrail.Residency
	err := s.o.Store.View(func(tx *raftstore.Tx) (err error) {
		now, _, err = raftstore.Get[levelrail.Residency](tx, w.Model)
		return err
	})
	if err != nil {
		return nil, s.internal("read whether the model is asleep", err)
	}
	if now.State != "asleep" {
		return &none{}, nil
	}
	now.State = "waking"
	if _, _, err := s.propose(ctx, byGateway(ctx, w.GatewayID), command.ResidencyPut{Residency: now}); err != nil {
		return nil, err
	}
	s.o.Log.Info("a model is woken", "model", w.Model, "gateway", w.GatewayID)
	return &none{}, nil
}

// gatewayActivity takes a gateway's word of which models are used. It is kept in memory: it is said again in seconds.
func (s *Server) gatewayActivity(_ context.Context, in *struct{ Body wire.Activity }) (*none, error) {
	if err := checkGateway(in.Body.GatewayID); err != nil {
		return nil, err
	}
	d, err := s.read()
	if err != nil {
		return nil, err
	}
	a := wire.Activity{GatewayID: in.Body.GatewayID}
	for _, m := range in.Body.Models {
		if _, ok := d.Model(m.Model); ok { // what is heard of models that are gone would be kept for ever
			a.Models = append(a.Models, m)
		}
	}
	s.o.Ledger.Activity(a)
	return &none{}, nil
}
