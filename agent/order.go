package agent

import (
	"path/filepath"

	"github.com/levelrail/levelrail/agent/fetch"
	"github.com/levelrail/levelrail/engine"
	"github.com/levelrail/levelrail/systemd"
)

// order is what has to be brought for a want, and the unit that brings it. Files of the node that need no import by an
// engine are copied by the agent itself, without a unit.
func (a *Agent) order(want Want, token bool) (unit systemd.Unit, spec fetch.Spec, copied bool, err error) {
	as := want.Assignment
	e, err := engine.Get(as.Spec.Engine)
	if err != nil {
		return unit, spec, false, err
	}
	plan, err := e.Weights(as.Spec)
	if err != nil {
		return unit, spec, false, err
	}
	spec = fetch.Spec{
		Key: want.FetchKey, Model: as.Model, Engine: as.Spec.Engine, Spec: as.Spec, Names: as.ServedNames,
		HubURL: a.hubURL(as), Proxy: a.Settings.proxy(),
	}
	if plan.From == engine.FromFile {
		return unit, spec, true, nil
	}
	if plan.From == engine.FromEngine {
		spec.Program = want.Program
	}
	dir := a.Paths.fetch(as.Model)
	f := systemd.Fetch{
		Marks: systemd.Marks{Hash: want.FetchKey, Replica: as.Replica, Model: as.Model, Engine: as.Spec.Engine, Revision: as.Revision, Restarts: as.Restarts},
		Agent: a.Program, Spec: filepath.Join(dir, fetch.SpecName), Stage: a.store().Stage(as.Model),
		Network: plan.From == engine.FromHub || plan.From == engine.FromEngine && plan.Path == "",
	}
	if plan.From == engine.FromEngine {
		f.Program = want.Program
	}
	if token {
		f.Token = filepath.Join(dir, fetch.TokenName)
	}
	unit, err = f.Unit()
	return unit, spec, false, err
}

// store is the node's store of weights.
func (a *Agent) store() fetch.Store { return fetch.Store{Dir: a.Paths.Weights} }
