package cli

import (
	"time"

	ucli "github.com/urfave/cli/v2"

	"github.com/levelrail/levelrail/client/wire"
)

func keysCreate() verb {
	return verb{
		name: "create", args: "NAME", usage: "make a further key of a model", complete: []string{"@model"},
		long: "Give each client its own key, so that one can be revoked without the others. The key is shown this once.",
		examples: []example{
			{"A key for continuous integration, good for 30 days", "levelrail models keys create chat --name ci --expires-in 30d"},
		},
		flags: []ucli.Flag{
			&ucli.StringFlag{Name: "name", Usage: "whose key it is, for people"},
			&ucli.StringFlag{Name: "expires-in", Usage: "how long it opens the model, such as 12h or 30d (default: until it is revoked)"},
		},
		run: func(s *session, c *ucli.Context) error {
			if c.String("name") == "" {
				return usagef(helpOf(c), "models keys create needs --name, as in: levelrail models keys create %s --name ci", arg(c, 0))
			}
			lasts, err := s.expiry(c)
			if err != nil {
				return err
			}
			api, err := s.api()
			if err != nil {
				return err
			}
			k, err := api.CreateKey(s.ctx, arg(c, 0), wire.CreateKey{Name: c.String("name"), ExpiresInSeconds: int64(lasts / time.Second)})
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

// expiry reads --expires-in; 0 is never.
func (s *session) expiry(c *ucli.Context) (time.Duration, error) {
	if !given(c, "expires-in") {
		return 0, nil
	}
	d, err := parseSpan("expires-in", c.String("expires-in"))
	if err == nil && d < time.Second {
		err = usagef(helpOf(c), "--expires-in %q is over at once; write it like 12h or 30d", c.String("expires-in"))
	}
	return d, err
}
