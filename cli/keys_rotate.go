package cli

import (
	"time"

	ucli "github.com/urfave/cli/v2"

	"github.com/levelrail/levelrail/client/wire"
)

func keysRotate() verb {
	return verb{
		name: "rotate", args: "NAME KEY", usage: "make a key in place of another, which works on for a while", complete: []string{"@model", "@key"},
		long: "KEY is the id that `levelrail models keys list NAME` shows. The new key has the name, limits, lists and expiry of the old one, and is shown this once. The old one works on for --grace, " +
			"so that a client can change over without an interruption; --grace 0s ends it at once.",
		examples: []example{
			{"Half an hour to change over", "levelrail models keys rotate chat key_7f3a… --grace 30m"},
			{"At once, for a key that others have seen", "levelrail models keys rotate chat key_7f3a… --grace 0s"},
		},
		flags: []ucli.Flag{
			&ucli.StringFlag{Name: "grace", Usage: "how long the old key works on, such as 30m or 2d (default: the server's APP_MODEL_KEY_ROTATION_GRACE, 1h)"},
		},
		run: func(s *session, c *ucli.Context) error {
			var r wire.RotateKey
			if given(c, "grace") {
				grace, err := parseSpan("grace", c.String("grace"))
				if err != nil {
					return err
				}
				seconds := int64((grace + time.Second - 1) / time.Second)
				r.GraceSeconds = &seconds
			}
			api, err := s.api()
			if err != nil {
				return err
			}
			k, err := api.ReplaceKey(s.ctx, arg(c, 0), arg(c, 1), r)
			if err != nil {
				return err
			}
			if s.json {
				return s.document(k)
			}
			s.showKey(k)
			s.note("When the old key ends, and whether it is still used: levelrail models keys list %s", arg(c, 0))
			return nil
		},
	}
}
