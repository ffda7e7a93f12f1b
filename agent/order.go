package agent

import (
	"path/filepath"

	"github.com/levelrail/levelrail/agent/fetch"
	"github.com/levelrail/levelrail/engine"
	"github.com/levelrail/levelrail/systemd"
)

// order is the fetch unit of a want and the spec that it reads.
func (a *Agent) order(want Want, token bool, partials []string) (systemd.Unit, fetch.Spec, error) {
	as := want.Assignment
	e, err := engine.Get(as.Spec.Engine)
	if err != nil {
		return systemd.Unit{}, fetch.Spec{}, err
	}
	plan, err := e.Weights(as.Spec)
	if err != nil {
		return systemd.Unit{}, fetch.Spec{}, err
	}
	spec := fetch.Spec{
		Key: want.FetchKey, Model: as.Model, Engine: as.Spec.Engine, Spec: as.Spec, Names: as.ServedNames,
		Store: a.Paths.Weights, HubURL: a.hubURL(as), Proxy: a.Settings.proxy(), Partials: partials,
	}
	if plan.From == engine.FromEngine {
		spec.Program = want.Program
	}
	dir := a.Paths.fetch(as.Model)
	f := systemd.Fetch{
		Marks: systemd.Marks{Hash: want.FetchKey, Replica: as.Replica, Model: as.Model, Engine: as.Spec.Engine, Revision: as.Revision, Restarts: as.Restarts},
		Agent: a.Program, Dir: dir, Weights: a.Paths.Weights,
		Network: plan.From == engine.FromHub || plan.From == engine.FromEngine && plan.Path == "",
	}
	if token {
		f.Token = filepath.Join(dir, fetch.TokenName)
	}
	unit, err := f.Unit()
	return unit, spec, err
}
