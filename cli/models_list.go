package cli

import (
	"fmt"
	"slices"

	ucli "github.com/urfave/cli/v2"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

func modelsList() verb {
	return verb{
		name: "list", usage: "list the models and how they stand",
		examples: []example{
			{"All models", "levelrail models list"},
			{"The names of those that serve", "levelrail models list --json | jq -r '.items[] | select(.condition.ready) | .name'"},
		},
		run: func(s *session, c *ucli.Context) error {
			api, err := s.api()
			if err != nil {
				return err
			}
			models, err := api.Models(s.ctx)
			if err != nil {
				return err
			}
			if s.json {
				return s.document(items(models))
			}
			if len(models) == 0 {
				s.note("There are no models yet. Begin with: levelrail engines list (what is installed), then levelrail models deploy --help (examples for each engine)")
				return nil
			}
			t := table{head: []string{"NAME", "ENGINE", "MODEL", "NODE", "GPUS", "STATUS", "AGE"}}
			for _, m := range models {
				t.row(m.Name, m.Engine, m.Model, m.NodeName, gpusOf(m), standing(m.Condition), s.age(m.CreatedAt))
			}
			t.print(s.stdout)
			for _, m := range models {
				if slices.ContainsFunc(m.Replicas, func(r wire.ReplicaStatus) bool { return len(r.NotIsolated) > 0 }) {
					s.say("%s %s: levelrail models get %s says by what", s.stdout.paint(styled{"NOT ISOLATED:", styleRed}), m.Name, m.Name)
				}
			}
			return nil
		},
	}
}

// standing is a condition in one cell: "ready", "Downloading 45%", "EngineFailed".
func standing(c levelrail.Condition) styled {
	switch {
	case c.Ready:
		return styled{"ready", styleGreen}
	case c.Reason.NeedsPerson():
		return styled{string(c.Reason), styleRed}
	}
	text := phaseOf(c)
	if n := percent(c.Progress); n >= 0 {
		text += fmt.Sprintf(" %d%%", n)
	}
	return styled{text, styleYellow}
}

// gpusOf is how many GPUs a model has, or has asked for while it has none.
func gpusOf(m wire.Model) string {
	if len(m.Devices) > 0 {
		return itoa(len(m.Devices))
	}
	switch m.Spec.GPUs.Mode {
	case levelrail.GPUUnset:
		return "all"
	case levelrail.GPUDevices:
		return itoa(len(m.Spec.GPUs.Devices))
	}
	return m.Spec.GPUs.String()
}
