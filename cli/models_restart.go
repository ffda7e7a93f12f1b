package cli

import (
	ucli "github.com/urfave/cli/v2"
)

func modelsRestart() verb {
	return verb{
		name: "restart", args: "NAME", usage: "start a model's engine anew", complete: []string{"@model"},
		long: "The engine stops, which cuts requests that it is answering, and starts with the weights that are there already. Also the way to try again at once after something was mended.",
		examples: []example{
			{"Restart, and follow until it serves again", "levelrail models restart chat --wait"},
		},
		flags: waitFlags(),
		run: func(s *session, c *ucli.Context) error {
			name := arg(c, 0)
			follow, limit, err := s.waiting(c)
			if err != nil {
				return err
			}
			api, err := s.api()
			if err != nil {
				return err
			}
			g, err := s.restartGoal(api, name)
			if err != nil {
				return err
			}
			answer, err := api.RestartModel(s.ctx, name)
			if err != nil {
				return err
			}
			if !s.json {
				s.say("%s is being restarted.", answer.Model.Name)
			}
			g.revision = answer.Model.Revision
			return s.finish(api, g, follow, limit, &answer.Model, func() any { return answer })
		},
	}
}

// restartGoal is what a restart that is about to be asked for leads to. The engine of before may be reported as ready
// for a while, so the wait is over only when its node tells of one more restart.
func (s *session) restartGoal(api API, name string) (goal, error) {
	before, err := api.Model(s.ctx, name)
	g := goal{model: name, doing: "the restart of " + name}
	for _, r := range before.Replicas {
		g.restarts = max(g.restarts, r.Restarts+1)
	}
	return g, err
}
