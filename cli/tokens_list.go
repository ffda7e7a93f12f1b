package cli

import (
	ucli "github.com/urfave/cli/v2"
)

func tokensList() verb {
	return verb{
		name: "list", usage: "list the API tokens",
		long:     "Shows the first 8 characters of each token, never the token.",
		examples: []example{{"All tokens", "levelrail tokens list"}},
		run: func(s *session, c *ucli.Context) error {
			api, err := s.api()
			if err != nil {
				return err
			}
			tokens, err := api.Tokens(s.ctx)
			if err != nil {
				return err
			}
			if s.json {
				return s.document(items(tokens))
			}
			if len(tokens) == 0 {
				s.note("There are no tokens. Make one with: levelrail tokens create --name you --ability read")
				return nil
			}
			t := table{head: []string{"ID", "NAME", "TOKEN", "ABILITIES", "STATUS", "EXPIRES", "AGE", "BY"}}
			for _, k := range tokens {
				t.row(k.ID, k.Name, k.Prefix+"…", abilities(k.Abilities), s.lives(k.RevokedAt, k.ExpiresAt), s.until(k.ExpiresAt), s.age(k.CreatedAt), k.CreatedBy)
			}
			t.print(s.stdout)
			return nil
		},
	}
}
