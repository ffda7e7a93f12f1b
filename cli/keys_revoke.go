package cli

import (
	ucli "github.com/urfave/cli/v2"
)

func keysRevoke() verb {
	return verb{
		name: "revoke", args: "NAME KEY", usage: "end a key at once", complete: []string{"@model", "@key"},
		long:     "KEY is the id that `levelrail models keys list NAME` shows. Answers that are under way go on to their end; new requests with the key are refused. On a terminal it asks first.",
		examples: []example{{"End one key", "levelrail models keys revoke chat key_7f3a…"}},
		flags:    []ucli.Flag{yesFlag()},
		run: func(s *session, c *ucli.Context) error {
			api, err := s.api()
			if err != nil {
				return err
			}
			if err := s.confirmRevoke(c, "the key "+arg(c, 1)+" of "+arg(c, 0)); err != nil {
				return err
			}
			k, err := api.RevokeKey(s.ctx, arg(c, 0), arg(c, 1))
			if err != nil {
				return err
			}
			if s.json {
				return s.document(k)
			}
			s.say("The key %s (%s) of %s is revoked.", k.Name, k.ID, arg(c, 0))
			return nil
		},
	}
}
