package link

import (
	"encoding/json"
	"log/slog"
	"slices"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/caddymodule/route"
	"github.com/levelrail/levelrail/client/wire"
)

// state is what the lines of the watch have made so far. It is pure but for its log: a line in, a table out.
type state struct {
	table *route.Table
	token string // where to go on from
	// cluster is whose routes and keys these are; empty: not known, so whoever answers may say.
	cluster string
	log     *slog.Logger

	// While the control plane says everything anew (from reset to synced), it is collected here.
	fresh *route.Edit

	// Routes come whole at the start of each watch; those not said by synced are gone.
	starting bool
	said     map[string]bool

	savedAt time.Time // of a copy from disk
}

// belongs checks whose routes and keys a watch tells. Those of another cluster would take the place of all that is served;
// one that has taken the place of this gateway's, by a restored backup, is followed.
func (s *state) belongs(c wire.WatchCluster) error {
	if s.cluster != "" && c.ID != s.cluster && !slices.Contains(c.Replaced, s.cluster) {
		return levelrail.Errorf(levelrail.ErrRefused, "this gateway belongs to the cluster %s, and the control plane to %s", s.cluster, c.ID).
			WithNext("restore the store of %s (levelrail-server restore BACKUP); to move the gateway: levelrail-gateway leave", s.cluster)
	}
	s.cluster = c.ID
	return nil
}

// begin forgets what a broken watch left unfinished.
func (s *state) begin() {
	s.fresh = nil
	s.starting, s.said = true, map[string]bool{}
}

// apply takes one line and tells whether the table, or the place to go on from, has changed. A line of a kind that this
// gateway does not know, or an object that it cannot use, changes nothing but is logged: it takes down neither the watch
// nor the rest of the table.
func (s *state) apply(line wire.WatchLine) bool {
	switch line.Type {
	case wire.WatchReset:
		s.fresh = new(route.Table).Edit()
		return false
	case wire.WatchPut, wire.WatchDelete:
		if s.fresh != nil { // its token counts only with all the rest
			s.change(s.fresh, line)
			return false
		}
		edit := s.table.Edit()
		s.change(edit, line)
		s.table = edit.Table()
	case wire.WatchSynced:
		s.synced()
	default:
		return false
	}
	if line.Token != "" {
		s.token = line.Token
	}
	return true
}

func (s *state) synced() {
	if s.fresh != nil {
		s.table, s.fresh = s.fresh.Table(), nil
	} else if s.starting {
		edit := s.table.Edit()
		for _, m := range s.table.Models() {
			if !s.said[m.Name] {
				edit.DropModel(m.Name)
			}
		}
		s.table = edit.Table()
	}
	s.starting, s.said = false, nil
}

func (s *state) change(edit *route.Edit, line wire.WatchLine) {
	switch {
	case line.Kind == wire.WatchRoute && line.Type == wire.WatchDelete:
		edit.DropModel(line.ID)
		delete(s.said, line.ID)
	case line.Kind == wire.WatchRoute:
		var r wire.Route
		err := json.Unmarshal(line.Object, &r)
		if err == nil {
			err = edit.PutModel(r)
		}
		if err != nil { // what cannot be understood is not served by what it was before either
			edit.DropModel(line.ID)
			s.log.Error("a model's route cannot be used; the model is not served here", "model", line.ID, "error", err, "next", "upgrade levelrail-gateway to the control plane's version")
			return
		}
		if s.starting {
			s.said[r.Model] = true
		}
	case line.Kind == wire.WatchRouteKey:
		if line.Type == wire.WatchDelete {
			edit.DropKeyByID(line.ID)
			return
		}
		var k wire.RouteKey
		err := json.Unmarshal(line.Object, &k)
		if err == nil {
			k.ID = line.ID // which is what a later line knows it by
			_, err = edit.PutKey(k)
		}
		if err != nil {
			edit.DropKeyByID(line.ID)
			s.log.Error("a key cannot be used; it opens nothing here", "key", line.ID, "error", err)
			return
		}
	}
}
