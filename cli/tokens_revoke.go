package cli

import (
	ucli "github.com/urfave/cli/v2"
)

func tokensRevoke() verb {
	return verb{
		name: "revoke", args: "TOKEN", usage: "end a token at once", complete: []string{"@token"},
		long:     "TOKEN is the id that `levelrail tokens list` shows. On a terminal it asks first.",
		examples: []example{{"End one token", "levelrail tokens revoke tok_7f3a…"}},
		flags:    []ucli.Flag{yesFlag()},
		run: func(s *session, c *ucli.Context) error {
			api, err := s.api()
			if err != nil {
				return err
			}
			if err := s.confirmRevoke(c, "the token "+arg(c, 0)); err != nil {
				return err
			}
			t, err := api.RevokeToken(s.ctx, arg(c, 0))
			if err != nil {
				return err
			}
			if s.json {
				return s.document(t)
			}
			s.say("The token %s (%s) is revoked.", t.Name, t.ID)
			return nil
		},
	}
}
