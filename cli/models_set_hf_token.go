package cli

import (
	ucli "github.com/urfave/cli/v2"
)

func modelsSetHubToken() verb {
	return verb{
		name: "set-hf-token", args: "NAME", usage: "give a model another Hugging Face token", complete: []string{"@model"},
		long: "Reads the token from HF_TOKEN of the environment, never from the command line, where every user of the machine could read it. The server seals it, hands it to " +
			"nothing but the download, and restarts the model. --remove takes the token away.",
		examples: []example{
			{"A new token", "HF_TOKEN=hf_… levelrail models set-hf-token llama"},
			{"Without a token", "levelrail models set-hf-token llama --remove"},
		},
		flags: append([]ucli.Flag{&ucli.BoolFlag{Name: "remove", Usage: "take the token away"}}, waitFlags()...),
		run: func(s *session, c *ucli.Context) error {
			follow, limit, err := s.waiting(c)
			if err != nil {
				return err
			}
			token, said := "", "%s has no Hugging Face token any more, and is restarted."
			if !c.Bool("remove") {
				if token, err = s.hubToken(c); err != nil {
					return err
				}
				said = "%s has a new Hugging Face token, and is restarted."
			}
			api, err := s.api()
			if err != nil {
				return err
			}
			g, err := s.restartGoal(api, arg(c, 0))
			if err != nil {
				return err
			}
			answer, err := api.SetHubToken(s.ctx, arg(c, 0), token)
			if err != nil {
				return err
			}
			if !s.json {
				s.say(said, answer.Model.Name)
			}
			g.revision = answer.Model.Revision
			return s.finish(api, g, follow, limit, &answer.Model, func() any { return answer })
		},
	}
}
