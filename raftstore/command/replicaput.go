package command

import "github.com/levelrail/levelrail"

// ReplicaPut changes a replica: the revision and restarts it is given, whether it runs, where. Reservations are those that
// it did not have before; those that its shards name no more are given back.
type ReplicaPut struct {
	Replica      levelrail.Replica       `json:"replica"`
	Reservations []levelrail.Reservation `json:"reservations,omitempty"`
	IfIndex      uint64                  `json:"if_index,omitempty"`
}

func (ReplicaPut) Kind() string                        { return "replica.put" }
func (c ReplicaPut) Subject() (levelrail.Kind, string) { return levelrail.KindReplica, c.Replica.ID }
func (c ReplicaPut) Validate() error                   { return checkReplica(c.Replica, c.Reservations) }

func (c ReplicaPut) Apply(t *Tx) (any, error) {
	old, at, there := getAt[levelrail.Replica](t, c.Replica.ID)
	if !there {
		return nil, levelrail.Errorf(levelrail.ErrNotFound, "there is no replica %s", c.Replica.ID)
	}
	if err := unchanged(levelrail.KindReplica, old.ID, c.IfIndex, at); err != nil {
		return nil, err
	}
	return nil, putReplica(t, c.Replica, c.Reservations, old, true)
}

// ReplicaRemove takes a replica out, with its reservations and its engine's key.
type ReplicaRemove struct {
	ID string `json:"id"`
}

func (ReplicaRemove) Kind() string                        { return "replica.remove" }
func (c ReplicaRemove) Subject() (levelrail.Kind, string) { return levelrail.KindReplica, c.ID }
func (c ReplicaRemove) Validate() error                   { return required("replica id", c.ID) }

func (c ReplicaRemove) Apply(t *Tx) (any, error) {
	r, there := get[levelrail.Replica](t, c.ID)
	if !there {
		return nil, levelrail.Errorf(levelrail.ErrNotFound, "there is no replica %s", c.ID)
	}
	for _, s := range r.Shards {
		drop(t, levelrail.KindReservation, s.ReservationID)
	}
	if r.EngineKey.Path != "" {
		drop(t, levelrail.KindSecret, r.EngineKey.Path)
	}
	drop(t, levelrail.KindReplica, c.ID)
	return nil, nil
}
