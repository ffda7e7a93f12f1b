package httpapi

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
	"github.com/levelrail/levelrail/controlplane/view"
	"github.com/levelrail/levelrail/raftstore"
	"github.com/levelrail/levelrail/raftstore/command"
)

// gatewayUsage stores a batch of what a gateway has counted: once, however often it is sent. A gateway that counts anew
// from 1 (it lost its state) is told the sequence to go on from.
func (s *Server) gatewayUsage(ctx context.Context, in *struct{ Body wire.UsageBatch }) (*body[wire.UsageAccepted], error) {
	b := in.Body
	if !gatewayID.MatchString(b.GatewayID) {
		return nil, levelrail.Errorf(levelrail.ErrInvalid, "%q is not the id of a gateway: gw_ and letters and digits", clip(b.GatewayID)).WithNext("let the gateway make its id: remove gateway_id in its state directory")
	}
	if b.Dropped > 0 {
		s.o.Log.Warn("a gateway had to drop usage that it could not send in time", "gateway", b.GatewayID, "rows", b.Dropped)
	}
	by := command.By{Principal: levelrail.Principal{Kind: "gateway", ID: b.GatewayID}, Ability: callerOf(ctx).ability}
	res, err := s.o.Store.Propose(ctx, by, command.UsageRecord{GatewayID: b.GatewayID, Sequence: b.Sequence, Rows: b.Rows})
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
	since, err := sinceTime(in.Since, s.o.Clock())
	if err != nil {
		return nil, err
	}
	r := wire.UsageReport{Model: in.Name, Since: since, Items: []levelrail.Usage{}, Keys: []wire.UsageOfKey{}, UpToSeconds: s.o.World(d).Limits.UsageFlushSeconds}
	byKey := map[string]*wire.UsageOfKey{}
	err = s.o.Store.View(func(tx *raftstore.Tx) error {
		return raftstore.Each(tx, "", func(u levelrail.Usage) error {
			if u.Model != in.Name || u.Hour.Before(since) {
				return nil
			}
			r.Items = append(r.Items, u)
			k := byKey[u.KeyID]
			if k == nil {
				k = &wire.UsageOfKey{KeyID: u.KeyID}
				if key, ok := findKey(d, u.KeyID); ok {
					v := view.Key(key)
					k.KeyName, k.KeyPrefix = v.Name, v.Prefix
				}
				byKey[u.KeyID] = k
			}
			k.Usage.Add(u)
			r.Total.Add(u)
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
