package command

import (
	"slices"

	"github.com/levelrail/levelrail"
)

// ReplicaPlace gives a model a replica: the replica, one reservation a shard, and the sealed key that the gateway shows
// its engine, at the path that the replica names.
type ReplicaPlace struct {
	Replica      levelrail.Replica       `json:"replica"`
	Reservations []levelrail.Reservation `json:"reservations"`
	EngineKey    *levelrail.Secret       `json:"engine_key,omitempty"`
}

func (ReplicaPlace) Kind() string                        { return "replica.place" }
func (c ReplicaPlace) Subject() (levelrail.Kind, string) { return levelrail.KindReplica, c.Replica.ID }

func (c ReplicaPlace) Validate() error {
	if err := checkReplica(c.Replica, c.Reservations); err != nil {
		return err
	}
	for _, s := range c.Replica.Shards {
		if !slices.ContainsFunc(c.Reservations, func(r levelrail.Reservation) bool { return r.ID == s.ReservationID }) {
			return invalid("the shard of the replica %s on the node %s comes without its reservation", c.Replica.ID, s.NodeID)
		}
	}
	if c.EngineKey != nil {
		if c.EngineKey.Path != c.Replica.EngineKey.Path {
			return invalid("the replica %s names the secret %q and brings %q", c.Replica.ID, c.Replica.EngineKey.Path, c.EngineKey.Path)
		}
		return checkSecret(*c.EngineKey)
	}
	return nil
}

func (c ReplicaPlace) Apply(t *Tx) (any, error) {
	if _, there := get[levelrail.Replica](t, c.Replica.ID); there {
		return nil, levelrail.Errorf(levelrail.ErrConflict, "there is a replica %s already", c.Replica.ID)
	}
	if _, err := standing(t, c.Replica.Model); err != nil {
		return nil, err
	}
	if c.EngineKey != nil {
		if err := putSecrets(t, []levelrail.Secret{*c.EngineKey}); err != nil {
			return nil, err
		}
	}
	return nil, putReplica(t, c.Replica, c.Reservations, levelrail.Replica{}, false)
}

func checkReplica(r levelrail.Replica, reservations []levelrail.Reservation) error {
	if err := required("replica id", r.ID, "replica's model", r.Model); err != nil {
		return err
	}
	if want := levelrail.ReplicaID(r.Model, r.Number); r.ID != want {
		return invalid("replica %d of the model %s has the id %s, not %s", r.Number, r.Model, want, r.ID)
	}
	if len(r.Shards) == 0 {
		return invalid("the replica %s has no shard: it would run nowhere", r.ID)
	}
	for _, res := range reservations {
		if err := checkReservation(res); err != nil {
			return err
		}
		if want := "model:" + r.Model; res.For != want {
			return invalid("the reservation %s of the replica %s is for %s, not for %s", res.ID, r.ID, res.For, want)
		}
	}
	return nil
}

// putReplica writes a replica with its new reservations, and gives back those of the old one that it names no more.
func putReplica(t *Tx, r levelrail.Replica, reservations []levelrail.Reservation, old levelrail.Replica, there bool) error {
	if _, ok := get[levelrail.Revision](t, levelrail.RevisionID(r.Model, r.Revision)); !ok {
		return levelrail.Errorf(levelrail.ErrNotFound, "the model %s has no revision %d", r.Model, r.Revision)
	}
	if r.EngineKey.Path != "" {
		if _, ok := get[levelrail.Secret](t, r.EngineKey.Path); !ok {
			return levelrail.Errorf(levelrail.ErrNotFound, "there is no secret at %s, which the replica %s names", r.EngineKey.Path, r.ID)
		}
	}
	for _, s := range old.Shards {
		if !slices.ContainsFunc(r.Shards, func(n levelrail.Shard) bool { return n.ReservationID == s.ReservationID }) {
			drop(t, levelrail.KindReservation, s.ReservationID)
		}
	}
	for _, res := range reservations {
		if err := putReservation(t, res); err != nil {
			return err
		}
	}
	for _, s := range r.Shards {
		res, ok := get[levelrail.Reservation](t, s.ReservationID)
		if !ok || res.NodeID != s.NodeID {
			return levelrail.Errorf(levelrail.ErrNotFound, "the shard of the replica %s on the node %s has no reservation there", r.ID, s.NodeID)
		}
	}
	r.Owner, r.Stamp = orDefault(r.Owner), t.stamp(old.Stamp, there)
	put(t, r)
	return nil
}
