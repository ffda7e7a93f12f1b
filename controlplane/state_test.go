package controlplane

import (
	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/controlplane/reconcile"
	"github.com/levelrail/levelrail/controlplane/stored"
	"github.com/levelrail/levelrail/raftstore"
	"github.com/levelrail/levelrail/raftstore/command"
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

// keys are all keys that are stored.
func (r *rig) keys() (keys []levelrail.Key) {
	r.t.Helper()
	if err := r.store.View(func(tx *raftstore.Tx) (err error) { keys, err = raftstore.List[levelrail.Key](tx, ""); return err }); err != nil {
		r.t.Fatal(err)
	}
	return keys
}

// sleep puts a model to sleep, as the one who decides about that does.
func (r *rig) sleep(model string) {
	r.t.Helper()
	by := command.By{Principal: levelrail.Principal{Kind: "server", ID: "test"}, Ability: levelrail.AbilityRoot}
	if _, err := r.store.Propose(r.t.Context(), by, command.ResidencyPut{Residency: levelrail.Residency{Model: model, State: "asleep"}}); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) residency(model string) string {
	r.t.Helper()
	var now levelrail.Residency
	if err := r.store.View(func(tx *raftstore.Tx) (err error) {
		now, _, err = raftstore.Get[levelrail.Residency](tx, model)
		return err
	}); err != nil {
		r.t.Fatal(err)
	}
	return now.State
}
