package agent

import (
	"context"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

// deleteWeights carries out an order to delete a set of weights, beside the loop. The next report tells that it is gone. Whoever
// sent it is not believed that nothing uses the set.
func (a *Agent) deleteWeights(s *state, o wire.WeightsOrder) {
	why := ""
	switch {
	case levelrail.CheckModelName(o.Name) != nil:
		why = "it is no name of a model"
	case s.storeLack != nil:
		why = s.storeLack.Message
	case s.fetches[o.Name].There:
		why = "the weights are being fetched"
	}
	for _, as := range s.assignments {
		if as.Model == o.Name {
			why = "the model is assigned to this node"
		}
	}
	for _, h := range s.have {
		if h.Applied != nil && h.Applied.Assignment.Model == o.Name {
			why = "the model's engine is still here"
		}
	}
	if why != "" {
		a.Log.Error("weights are not deleted", "name", clip(o.Name), "why", why)
		return
	}
	a.beside(func() {
		freed, err := a.store().Delete(o.Name)
		if err != nil {
			a.Log.Error("weights are not deleted", "name", o.Name, "error", err)
			return
		}
		a.Log.Info("weights deleted", "name", o.Name, "freed_bytes", freed)
		a.tell(func(*state) {}) // look, and report
	})
}

// ordered reads an order of the watch.
func (a *Agent) ordered(ctx context.Context, o wire.WeightsOrder) {
	a.tell(func(s *state) {
		if ctx.Err() == nil {
			a.deleteWeights(s, o)
		}
	})
}
