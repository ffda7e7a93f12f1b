package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
	"github.com/levelrail/levelrail/controlplane/ledger"
	"github.com/levelrail/levelrail/controlplane/view"
	"github.com/levelrail/levelrail/raftstore"
)

// watchable says which kinds may be followed by which door.
var watchable = map[Door][]string{
	DoorAPI:     {wire.WatchModel, wire.WatchNode},
	DoorTLS:     {wire.WatchModel, wire.WatchNode},
	DoorGateway: {wire.WatchRoute, wire.WatchRouteKey, wire.WatchQuestion, wire.WatchShare},
	DoorAgent:   {wire.WatchAssignment, wire.WatchLogRequest, wire.WatchWeightsOrder},
}

// WatchQuery is what both ways of watching take. It is exported for huma, which does not look into an embedded type that
// is not.
type WatchQuery struct {
	After string `query:"after" maxLength:"128" doc:"the token of the last line seen; absent: everything, from reset to synced, then changes"`
	Kinds string `query:"kinds" maxLength:"128" required:"true" doc:"model, node: one or both, with a comma between" example:"model"`
	ID    string `query:"id" maxLength:"256" doc:"only the object of this id: a model's name, a node's id or name"`
}

func (s *Server) getWatch(ctx context.Context, in *WatchQuery) (*streamed, error) {
	if door := callerOf(ctx).door; door == DoorAgent || door == DoorGateway {
		return nil, levelrail.Errorf(levelrail.ErrInvalid, "on this socket a watch says who follows").WithNext("POST /api/v1/watch with the id in the body")
	}
	w, err := s.newWatch(ctx, in)
	if err != nil {
		return nil, err
	}
	return w.answer(), nil
}

func (s *Server) postWatch(ctx context.Context, in *struct {
	WatchQuery
	Body struct {
		wire.WatchGateway
		NodeID string `json:"node_id,omitempty"`
	}
}) (*streamed, error) {
	w, err := s.newWatch(ctx, &in.WatchQuery)
	if err != nil {
		return nil, err
	}
	switch w.caller.door {
	case DoorAgent:
		if err := s.knownNode(in.Body.NodeID); err != nil {
			return nil, err
		}
		w.node = in.Body.NodeID
	case DoorGateway:
		if !gatewayID.MatchString(in.Body.GatewayID) {
			return nil, levelrail.Errorf(levelrail.ErrInvalid, "%q is not the id of a gateway: gw_ and letters and digits", clip(in.Body.GatewayID)).WithNext("let the gateway make its id")
		}
		if err := s.sameCluster("the gateway "+in.Body.GatewayID, in.Body.ClusterID); err != nil {
			return nil, err
		}
		w.boot, w.heard = in.Body.Boot, in.Body.Gateways
		w.gateway = &ledger.Gateway{ID: in.Body.GatewayID, URL: strings.TrimRight(in.Body.URL, "/"), Public: in.Body.Public, Version: in.Body.Version}
	}
	return w.answer(), nil
}

// watch is one reader's stream.
type watch struct {
	s       *Server
	caller  caller
	kinds   []string
	id      string
	node    string          // of an agent's watch
	gateway *ledger.Gateway // of a gateway's watch
	boot    string          // of its process
	heard   int             // of how many gateways it heard last
	after   string
	keys    *raftstore.Subscription // of a watch with route_key
}

func (s *Server) newWatch(ctx context.Context, in *WatchQuery) (*watch, error) {
	w := &watch{s: s, caller: callerOf(ctx), id: in.ID, after: in.After}
	allowed := watchable[w.caller.door]
	for k := range strings.SplitSeq(in.Kinds, ",") {
		if k = strings.TrimSpace(k); !slices.Contains(allowed, k) {
			return nil, levelrail.Errorf(levelrail.ErrInvalid, "the kind %q cannot be watched here", clip(k)).WithNext("use kinds=%s", strings.Join(allowed, ","))
		} else if !slices.Contains(w.kinds, k) {
			w.kinds = append(w.kinds, k)
		}
	}
	if index, ours := s.position(in.After); ours && w.caller.door == DoorGateway {
		if st := s.o.Store.Status(); index > st.LastIndex && index > st.Index {
			return nil, s.refusePutBack("a gateway", fmt.Sprintf("position %d", index), fmt.Sprintf("position %d", st.Index))
		}
	}
	// Tokens count for what is stored; what is worked out from reports is sent whole at every start.
	sub, err := s.o.Store.Watch(ctx, in.After, levelrail.KindKey)
	if errors.Is(err, raftstore.ErrTooOld) {
		fresh := url.Values{"kinds": {strings.Join(w.kinds, ",")}}
		if w.id != "" {
			fresh.Set("id", w.id)
		}
		return nil, &withStatus{http.StatusGone, levelrail.Errorf(levelrail.ErrNotFound, "the token of the watch is too old, or of another history: what came since cannot be told one by one").
			WithNext("watch without a token: /api/v1/watch?%s", fresh.Encode())}
	}
	if err != nil {
		return nil, s.internal("begin the watch", err)
	}
	if slices.Contains(w.kinds, wire.WatchRouteKey) {
		w.keys = sub
	}
	return w, nil
}

func (w *watch) answer() *streamed {
	return &streamed{Body: func(ctx huma.Context) {
		out := startStream(ctx)
		defer out.close()
		if err := w.run(out.ctx, out); err != nil {
			out.fail(err, func(e levelrail.Error) any { return wire.WatchLine{Type: wire.WatchError, Error: &e} })
			w.s.o.Log.Debug("a watch has ended", "door", w.caller.door, "kinds", w.kinds, "error", err)
		}
	}}
}

// keyEvent is one change of a key, or the end of them.
type keyEvent struct {
	raftstore.Event
	err error
}

// run sends lines until the reader leaves, is too slow or may no longer read, or the server stops.
func (w *watch) run(ctx context.Context, out *stream) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if w.gateway != nil {
		seen, _ := w.s.position(w.after) // who comes back with a token has everything up to it
		defer w.s.o.Ledger.Connect(*w.gateway, seen)()
		if slices.Contains(w.kinds, wire.WatchShare) {
			defer w.s.leases.Connect(w.gateway.ID, w.boot, w.heard)()
		}
	}
	stopping := levelrail.Errorf(levelrail.ErrUnavailable, "the server is stopping").WithNext("watch again in a few seconds")

	// What was stored when the watch began is in its first lines: who deploys and then watches must not hear that there is
	// no such model. Before anything was worked out at all, a heartbeat says that somebody is there.
	d, err := w.s.read()
	if err != nil {
		return err
	}
	var views *view.Views
	for views == nil {
		wait, enough := context.WithTimeout(ctx, w.s.o.Heartbeat)
		go func() {
			select {
			case <-w.s.stopping:
				enough()
			case <-wait.Done():
			}
		}()
		views, _ = w.s.o.Board.Reach(wait, d.Index)
		enough()
		select {
		case <-w.s.stopping:
			return stopping
		default:
		}
		if ctx.Err() != nil {
			return ended(ctx)
		}
		if views == nil {
			if err := out.send(true, wire.WatchLine{Type: wire.WatchHeartbeat}); err != nil {
				return err
			}
		}
	}
	var events <-chan keyEvent
	if w.keys != nil {
		events = pump(ctx, w.keys)
	}
	sent := sentLines{}
	told := newExpiries() // of the keys that the reader knows
	orders := w.s.orders.changed(w.node)
	requests, questions, shares := w.s.logs.changed(w.node), w.s.questions.changed(w.gatewayID()), w.s.leases.Changed(w.gatewayID())

	begin := func() error { // everything anew
		sent, told = sentLines{}, newExpiries()
		return out.send(false, wire.WatchLine{Type: wire.WatchReset, Cluster: w.cluster()})
	}
	token := w.after
	if w.keys == nil {
		token = ""
	}
	if token == "" {
		if err := begin(); err != nil {
			return err
		}
	}
	if err := w.sendViews(out, sent, views); err != nil {
		return err
	}
	switch {
	case w.keys == nil:
		if err := out.send(true, wire.WatchLine{Type: wire.WatchSynced, Token: w.token(views.Index)}); err != nil {
			return err
		}
	case token == "":
		// The subscription begins with everything, up to its synced.
		if err := out.send(true); err != nil {
			return err
		}
	default:
		if err := w.deadKeys(out); err != nil {
			return err
		}
		if err := out.send(true, wire.WatchLine{Type: wire.WatchSynced, Token: token, Cluster: w.cluster()}); err != nil {
			return err
		}
	}
	fresh := w.keys != nil && token == "" // the reset has been sent

	beat := time.NewTicker(w.s.o.Heartbeat)
	defer beat.Stop()
	for {
		select {
		case <-ctx.Done():
			return ended(ctx)
		case <-w.s.stopping:
			return stopping
		case <-views.Next():
			views = w.s.o.Board.Views()
			if err := w.sendViews(out, sent, views); err != nil {
				return err
			}
		case <-requests:
			requests = w.s.logs.changed(w.node)
			if err := w.sendViews(out, sent, views); err != nil {
				return err
			}
		case <-orders:
			orders = w.s.orders.changed(w.node)
			if err := w.sendViews(out, sent, views); err != nil {
				return err
			}
		case <-questions:
			questions = w.s.questions.changed(w.gatewayID())
			if err := w.sendViews(out, sent, views); err != nil {
				return err
			}
		case <-shares:
			shares = w.s.leases.Changed(w.gatewayID())
			if err := w.sendViews(out, sent, views); err != nil {
				return err
			}
		case e := <-events:
			if e.err != nil {
				if errors.Is(e.err, raftstore.ErrClosed) {
					return stopping
				}
				return fmt.Errorf("follow the keys: %w", e.err)
			}
			if e.Type == raftstore.EventReset {
				if !fresh { // this reader was too slow for the changes: everything anew
					if err := begin(); err != nil {
						return err
					}
					if err := w.sendViews(out, sent, views); err != nil {
						return err
					}
				}
				fresh = false
				continue
			}
			if err := w.sendKey(out, told, e.Event); err != nil {
				return err
			}
		case <-beat.C:
			if err := w.expire(out, told); err != nil {
				return err
			}
			if err := out.send(true, wire.WatchLine{Type: wire.WatchHeartbeat}); err != nil {
				return err
			}
		}
	}
}

func (w *watch) token(index uint64) string {
	return fmt.Sprintf("%s.%d", w.s.o.Store.Status().Lineage, index)
}

func pump(ctx context.Context, sub *raftstore.Subscription) <-chan keyEvent {
	events := make(chan keyEvent)
	go func() {
		for {
			e, err := sub.Next(ctx)
			select {
			case events <- keyEvent{e, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return events
}

// sentLines is what a reader has, by kind and id.
type sentLines map[string]view.Lines

// sendViews brings a reader from what it has to what there is.
func (w *watch) sendViews(out *stream, sent sentLines, v *view.Views) error {
	some := false
	for _, kind := range w.kinds {
		var now view.Lines
		switch kind {
		case wire.WatchModel:
			now = w.only(v.Models, w.id)
		case wire.WatchNode:
			now = w.only(v.Nodes, w.nodeByName())
		case wire.WatchRoute:
			now = v.Routes
		case wire.WatchAssignment:
			now = v.Assignments[w.node]
		case wire.WatchLogRequest:
			now = w.s.logs.lines(w.node)
		case wire.WatchWeightsOrder:
			now = w.s.orders.lines(w.node)
		case wire.WatchQuestion:
			now = w.s.questions.lines(w.gatewayID())
		case wire.WatchShare:
			now = w.s.leases.Lines(w.gatewayID())
		default:
			continue
		}
		have := sent[kind]
		for _, id := range slices.Sorted(maps.Keys(now)) {
			if was, ok := have[id]; ok && same(was, now[id]) {
				continue
			}
			if err := out.send(false, wire.WatchLine{Type: wire.WatchPut, Kind: kind, ID: id, Object: now[id]}); err != nil {
				return err
			}
			some = true
		}
		for _, id := range slices.Sorted(maps.Keys(have)) {
			if _, still := now[id]; still {
				continue
			}
			if err := out.send(false, wire.WatchLine{Type: wire.WatchDelete, Kind: kind, ID: id}); err != nil {
				return err
			}
			some = true
		}
		sent[kind] = now
	}
	if !some {
		return nil
	}
	return out.send(true)
}

// same tells whether two lines are the same bytes: an unchanged object keeps its own.
func same(a, b json.RawMessage) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

func (w *watch) only(lines view.Lines, id string) view.Lines {
	if id == "" {
		return lines
	}
	if line, ok := lines[id]; ok {
		return view.Lines{id: line}
	}
	return nil
}

// nodeByName is the id that a watch on a node's name means at the moment.
func (w *watch) nodeByName() string {
	if w.id == "" {
		return ""
	}
	if d, err := w.s.o.Reader.Read(); err == nil {
		if n, ok := d.FindNode(w.id); ok {
			return n.ID
		}
	}
	return w.id
}

// sendKey sends one change of a key. A key that opens nothing any more is a deletion.
func (w *watch) sendKey(out *stream, told *expiries, e raftstore.Event) error {
	line := wire.WatchLine{Type: wire.WatchDelete, Kind: wire.WatchRouteKey, ID: e.ID, Token: e.Token}
	switch e.Type {
	case raftstore.EventSynced:
		return out.send(true, wire.WatchLine{Type: wire.WatchSynced, Token: e.Token, Cluster: w.cluster()})
	case raftstore.EventPut:
		var k levelrail.Key
		if err := json.Unmarshal(e.Object, &k); err != nil {
			return fmt.Errorf("read the key %s: %w", e.ID, err)
		}
		if k.Live(w.s.o.Clock()) {
			text, err := json.Marshal(view.RouteKey(k))
			if err != nil {
				return fmt.Errorf("write the key %s: %w", e.ID, err)
			}
			line.Type, line.Object = wire.WatchPut, text
			told.set(k.ID, k.ExpiresAt)
		} else if e.Token == "" {
			return nil // never told, in a start anew
		}
	}
	if line.Type == wire.WatchDelete {
		told.set(e.ID, nil)
	}
	return out.send(e.Token != "", line)
}

// expire takes keys back whose time has come.
func (w *watch) expire(out *stream, told *expiries) error {
	for _, id := range told.due(w.s.o.Clock()) {
		if err := out.send(false, wire.WatchLine{Type: wire.WatchDelete, Kind: wire.WatchRouteKey, ID: id}); err != nil {
			return err
		}
	}
	return nil
}

// deadKeys tells a reader that comes back of every key that has expired: that is no change in the store. Those that were
// revoked are among the changes.
func (w *watch) deadKeys(out *stream) error {
	return w.s.o.Store.View(func(tx *raftstore.Tx) error {
		return raftstore.ExpiredKeys(tx, w.s.o.Clock(), func(id string) error {
			return out.send(false, wire.WatchLine{Type: wire.WatchDelete, Kind: wire.WatchRouteKey, ID: id})
		})
	})
}

// cluster is for lines to a gateway.
func (w *watch) cluster() *wire.WatchCluster {
	if w.gateway == nil {
		return nil
	}
	st := w.s.o.Store.Status()
	return &wire.WatchCluster{ID: st.ClusterID, Replaced: st.Replaced}
}

// gatewayID is whose watch this is, empty for that of anybody but a gateway.
func (w *watch) gatewayID() string {
	if w.gateway == nil {
		return ""
	}
	return w.gateway.ID
}
