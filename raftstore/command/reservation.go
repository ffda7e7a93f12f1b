package command

import (
	"slices"

	"github.com/levelrail/levelrail"
)

// ReservationPut promises devices of a node to an owner that is no replica (an app); replicas bring their own with
// ReplicaPlace. It may replace the owner's earlier one of the same id.
type ReservationPut struct {
	Reservation levelrail.Reservation `json:"reservation"`
}

func (ReservationPut) Kind() string { return "reservation.put" }
func (c ReservationPut) Subject() (levelrail.Kind, string) {
	return levelrail.KindReservation, c.Reservation.ID
}
func (c ReservationPut) Validate() error { return checkReservation(c.Reservation) }

func (c ReservationPut) Apply(t *Tx) (any, error) {
	if old, there := get[levelrail.Reservation](t, c.Reservation.ID); there && old.For != c.Reservation.For {
		return nil, levelrail.Errorf(levelrail.ErrConflict, "the reservation %s belongs to %s", old.ID, old.For)
	}
	return nil, putReservation(t, c.Reservation)
}

// ReservationRemove gives the devices back.
type ReservationRemove struct {
	ID string `json:"id"`
}

func (ReservationRemove) Kind() string                        { return "reservation.remove" }
func (c ReservationRemove) Subject() (levelrail.Kind, string) { return levelrail.KindReservation, c.ID }
func (c ReservationRemove) Validate() error                   { return required("reservation id", c.ID) }

func (c ReservationRemove) Apply(t *Tx) (any, error) {
	if _, there := get[levelrail.Reservation](t, c.ID); !there {
		return nil, levelrail.Errorf(levelrail.ErrNotFound, "there is no reservation %s", c.ID)
	}
	for _, r := range list[levelrail.Replica](t, "") {
		for _, s := range r.Shards {
			if s.ReservationID == c.ID {
				return nil, levelrail.Errorf(levelrail.ErrRefused, "the replica %s runs on the reservation %s", r.ID, c.ID).WithNext("remove the replica")
			}
		}
	}
	drop(t, levelrail.KindReservation, c.ID)
	return nil, nil
}

func checkReservation(r levelrail.Reservation) error {
	return required("reservation id", r.ID, "reservation's owner (for)", r.For, "reservation's node", r.NodeID)
}

// putReservation holds that a device is promised once.
func putReservation(t *Tx, r levelrail.Reservation) error {
	node, there := get[levelrail.Node](t, r.NodeID)
	if !there {
		return levelrail.Errorf(levelrail.ErrNotFound, "there is no node %s", r.NodeID).WithNext("levelrail nodes list")
	}
	for _, other := range list[levelrail.Reservation](t, "") {
		if other.ID == r.ID || other.NodeID != r.NodeID {
			continue
		}
		for _, d := range r.Devices {
			if slices.Contains(other.Devices, d) {
				return levelrail.Errorf(levelrail.ErrRefused, "the device %s of the node %s is reserved by %s", d, node.Name, other.For).
					WithNext("levelrail nodes get %s shows which devices are free", node.Name)
			}
		}
	}
	r.Owner, r.CreatedAt = orDefault(r.Owner), t.now
	put(t, r)
	return nil
}
