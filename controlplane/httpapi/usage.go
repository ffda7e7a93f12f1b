package httpapi

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
	"github.com/levelrail/levelrail/raftstore"
	"github.com/levelrail/levelrail/raftstore/command"
)

// gatewayUsage stores a batch of what a gateway has counted: once, however often it is sent. A gateway that counts anew
// from 1 (it lost its state) is told the sequence to go on from.
func (s *Server) gatewayUsage(ctx context.Context, in *struct{ Body wire.UsageBatch }) (*body[wire.UsageAccepted], error) {
	b := in.Body
	if err := checkGateway(b.GatewayID); err != nil {
		return nil, err
	}
	if b.Dropped > 0 {
		s.o.Log.Warn("a gateway had to drop usage that it could not send in time", "gateway", b.GatewayID, "rows", b.Dropped)
	}
	res, err := s.o.Store.Propose(ctx, byGateway(ctx, b.GatewayID), command.UsageRecord{GatewayID: b.GatewayID, Sequence: b.Sequence, Rows: b.Rows, LastUsed: b.LastUsed, Dropped: b.Dropped})
	if err != nil {
		return nil, s.internal("store the usage", err)
	}
	var recorded command.UsageRecorded
	if err := res.Decode(&recorded); err != nil {
		return nil, s.internal("read what was stored", err)
	}
	return &body[wire.UsageAccepted]{wire.UsageAccepted{Sequence: recorded.Sequence}}, nil
}

// modelUsage reports a model's hourly sums by key. Nothing in it is estimated: usage_requests says how many requests
// carried the engine's own count of tokens.
func (s *Server) modelUsage(_ context.Context, in *struct {
	Named
	Since string `query:"since" maxLength:"64" default:"24h" doc:"how far back: a duration such as 24h or 168h, or a time (RFC 3339); whole hours are reported"`
}) (*body[wire.UsageReport], error) {
	d, err := s.read()
	if err != nil {
		return nil, err
	}
	if _, ok := d.Model(in.Name); !ok {
		return nil, notFoundModel(in.Name)
	}
	now := s.o.Clock()
	since, err := sinceTime(in.Since, now)
	if err != nil {
		return nil, err
	}
	r := wire.UsageReport{Model: in.Name, Since: since, Items: []levelrail.Usage{}, Keys: []wire.UsageOfKey{}, UpToSeconds: s.o.World(d).Limits.UsageFlushSeconds}
	byKey := map[string]*wire.UsageOfKey{}
	err = s.o.Store.View(func(tx *raftstore.Tx) (err error) {
		if r.DroppedRows, err = raftstore.UsageDropped(tx, since); err != nil {
			return err
		}
		// A gateway's clock may be ahead of this one's.
		return raftstore.UsageOf(tx, in.Name, since, now.Add(time.Hour), func(u levelrail.Usage) error {
			r.Items = append(r.Items, u)
			k := byKey[u.KeyID]
			if k == nil {
				k = &wire.UsageOfKey{KeyID: u.KeyID}
				key, _, err := raftstore.Get[levelrail.Key](tx, u.KeyID)
				if err != nil {
					return err
				}
				k.KeyName, k.KeyPrefix = key.Name, key.Prefix // both empty once the key is gone
				byKey[u.KeyID] = k
			}
			k.Usage.Add(u.Counts)
			r.Total.Add(u.Counts)
			return nil
		})
	})
	if err != nil {
		return nil, s.internal("read the usage", err)
	}
	for _, k := range byKey {
		r.Keys = append(r.Keys, *k)
	}
	slices.SortFunc(r.Keys, func(a, b wire.UsageOfKey) int { return strings.Compare(a.KeyName+a.KeyID, b.KeyName+b.KeyID) })
	return &body[wire.UsageReport]{r}, nil
}

// sinceTime reads a duration back from now, or a time, and cuts it to its hour, which is what sums are kept by.
func sinceTime(text string, now time.Time) (time.Time, error) {
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return t.UTC().Truncate(time.Hour), nil
	}
	back, err := time.ParseDuration(text)
	if err != nil || back <= 0 || back > longest {
		return time.Time{}, levelrail.Errorf(levelrail.ErrInvalid, "since=%q is neither a duration back from now nor a time", clip(text)).WithNext("write it like 24h, 168h or 2026-01-31T00:00:00Z")
	}
	return now.Add(-back).UTC().Truncate(time.Hour), nil
}
