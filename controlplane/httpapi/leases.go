package httpapi

import (
	"context"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
	"github.com/levelrail/levelrail/controlplane/lease"
	"github.com/levelrail/levelrail/raftstore"
)

// newLeases is the book of leases over what is stored.
func (s *Server) newLeases() *lease.Book {
	return lease.New(lease.Options{
		Clock: time.Now, // with the monotonic reading: what is compared is how long ago something was
		Log:   s.o.Log,
		Limits: func(key string) (levelrail.KeyLimits, bool, error) {
			k, there, err := s.key(key)
			return k.Limits, there, err
		},
		Tokens: func(key string, since time.Time) (map[int64]int64, error) {
			sums := map[int64]int64{}
			err := s.o.Store.View(func(tx *raftstore.Tx) error {
				return raftstore.UsageOfKey(tx, key, since, time.Now().Add(time.Hour), func(u levelrail.Usage) error {
					sums[u.Hour.Unix()/3600] += u.InputTokens + u.OutputTokens
					return nil
				})
			})
			return sums, err
		},
		Others: func(gateway string) (others bool, err error) {
			err = s.o.Store.View(func(tx *raftstore.Tx) error { others = raftstore.UsageByOthers(tx, gateway); return nil })
			return others, err
		},
	})
}

// leaseTick is how often the book looks for gateways that are lost.
const leaseTick = time.Second

// Run keeps what depends on time alone until ctx ends.
func (s *Server) Run(ctx context.Context) {
	tick := time.NewTicker(leaseTick)
	defer tick.Stop()
	look := time.NewTicker(recheckEvery)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
			s.recheck()
		case <-tick.C:
			s.leases.Tick()
		}
	}
}

// gatewayLeases takes a gateway's word of what it uses of keys, and answers what it may use. The leader alone keeps the
// book; a gateway that gets no answer goes on with what it has.
func (s *Server) gatewayLeases(ctx context.Context, in *struct{ Body wire.LeaseReport }) (*body[wire.Leases], error) {
	if err := checkGateway(in.Body.GatewayID); err != nil {
		return nil, err
	}
	if status := s.o.Store.Status(); status.Role != "leader" {
		return nil, levelrail.Errorf(levelrail.ErrUnavailable, "leases are granted by the leader, and this server is not it").WithNext("go on with the last leases, and ask again in a second")
	}
	out, err := s.leases.Report(ctx, in.Body)
	if err != nil {
		return nil, s.internal("grant leases", err)
	}
	return &body[wire.Leases]{out}, nil
}
