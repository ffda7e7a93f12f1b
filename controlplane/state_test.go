package controlplane

import (
	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/controlplane/reconcile"
	"github.com/levelrail/levelrail/controlplane/stored"
)

// state is what the server has stored.
func (r *rig) state() *reconcile.Desired {
	r.t.Helper()
	d, err := stored.New(r.store).Read()
	if err != nil {
		r.t.Fatal(err)
	}
	return d
}

func (r *rig) job(id string) levelrail.Job {
	r.t.Helper()
	for _, j := range r.state().Jobs {
		if j.ID == id {
			return j
		}
	}
	return levelrail.Job{}
}
