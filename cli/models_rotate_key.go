package cli

import (
	ucli "github.com/urfave/cli/v2"

	"github.com/levelrail/levelrail/client/wire"
)

func modelsRotateKey() verb {
	return verb{
		name: "rotate-key", args: "NAME", usage: "replace a model's key named default", complete: []string{"@model"},
		long: "The key named default, which the deployment made, stops at once and a new one takes its place. It is shown this once. The way back for a key that was lost or seen by others.",
		examples: []example{
			{"A new key", "levelrail models rotate-key chat"},
			{"In a script", "levelrail models rotate-key chat --json | jq -r .secret"},
		},
		run: func(s *session, c *ucli.Context) error {
			api, err := s.api()
			if err != nil {
				return err
			}
			k, err := api.RotateKey(s.ctx, arg(c, 0))
			if err != nil {
				return err
			}
			if s.json {
				return s.document(k)
			}
			s.showKey(k)
			return nil
		},
	}
}

// showKey shows a new key, this once.
func (s *session) showKey(k wire.NewKey) {
	s.say("API key  %s", k.Secret)
	s.say("Name     %s", k.Name)
	s.say("Id       %s", k.ID)
	if k.ExpiresAt != nil {
		s.say("Expires  %s", s.until(k.ExpiresAt))
	}
	if l := limitsText(k.Limits); l != "" {
		s.say("Limits   %s", l)
	}
	if only := scopeText(k.Key); only != "" {
		s.say("Only     %s", only)
	}
	s.note("The key is shown this once: keep it.")
}
