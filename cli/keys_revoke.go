package cli

import (
	"strings"

	ucli "github.com/urfave/cli/v2"

	"github.com/levelrail/levelrail"
)

func keysRevoke() verb {
	return verb{
		name: "revoke", args: "NAME KEY", usage: "end a key at once", complete: []string{"@model", "@key"},
		long: "KEY is the id that `levelrail models keys list NAME` shows. New requests with the key are refused. Those that are under way go on to their end, unless --now says to end them too: their streams " +
			"are cut, and what waits for a slot or still sends its body is refused. The server waits up to a second for every " +
			"gateway that is connected to say so. If one does not, it is named and the code is 6: the key is revoked, and that gateway may still take it until it is heard of again. On a terminal it asks first.",
		examples: []example{{"End one key", "levelrail models keys revoke chat key_7f3a…"}, {"End one that has leaked, and all that is done with it", "levelrail models keys revoke chat key_7f3a… --now"}},
		flags:    []ucli.Flag{&ucli.BoolFlag{Name: "now", Usage: "end its requests that are under way, too"}, yesFlag()},
		run: func(s *session, c *ucli.Context) error {
			api, err := s.api()
			if err != nil {
				return err
			}
			if err := s.confirmRevoke(c, "the key "+arg(c, 1)+" of "+arg(c, 0)); err != nil {
				return err
			}
			r, err := api.RevokeKey(s.ctx, arg(c, 0), arg(c, 1), c.Bool("now"))
			if err != nil {
				return err
			}
			if s.json {
				if err := s.document(r); err != nil {
					return err
				}
			} else {
				s.say("The key %s (%s) of %s is revoked.", r.Key.Name, r.Key.ID, arg(c, 0))
				if r.Ended != nil {
					s.say("Its requests that were under way are ended: %d.", *r.Ended)
				}
				switch {
				case len(r.Gateways) > 0:
					s.say("It is refused by %s.", strings.Join(r.Gateways, ", "))
				case len(r.Silent) == 0:
					s.note("No gateway is connected. One that serves without the control plane refuses the key when it is connected again.")
				}
			}
			if len(r.Silent) > 0 {
				again := ""
				if c.Bool("now") {
					again = " --now"
				}
				return levelrail.Errorf(levelrail.ErrTimeout, "%s did not say within a second that it refuses the key, and may still take it", strings.Join(r.Silent, ", ")).
					WithNext("levelrail models keys revoke %s %s%s, which asks again; on the gateway's host: systemctl status levelrail-gateway", arg(c, 0), arg(c, 1), again)
			}
			return nil
		},
	}
}
