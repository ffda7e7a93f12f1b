package cli

import (
	ucli "github.com/urfave/cli/v2"
)

func modelsRotateEngineKey() verb {
	return verb{
		name: "rotate-engine-key", args: "NAME", usage: "give a model's engine a new key, and restart it", complete: []string{"@model"},
		long: "An engine has a key of its own, which the gateway shows it and no client ever sees. An engine takes its key at its start, so this is a restart: " +
			"requests that it is answering are cut, and new ones wait or get 503 until it has loaded. Clients' keys stay as they are: those are replaced by `levelrail models keys rotate`.",
		examples: []example{
			{"A new key, and follow until it serves again", "levelrail models rotate-engine-key chat --wait"},
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
			answer, err := api.RotateEngineKey(s.ctx, name)
			if err != nil {
				return err
			}
			if !s.json {
				s.say("The engine of %s gets a new key and is being restarted.", answer.Model.Name)
			}
			g.revision = answer.Model.Revision
			return s.finish(api, g, follow, limit, &answer.Model, func() any { return answer })
		},
	}
}
