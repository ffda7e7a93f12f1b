package cli

import (
	"time"

	ucli "github.com/urfave/cli/v2"
)

func keysList() verb {
	return verb{
		name: "list", args: "NAME", usage: "list a model's keys", complete: []string{"@model"},
		long:     "Shows the first 8 characters of each key, never the key.",
		examples: []example{{"The keys of a model", "levelrail models keys list chat"}},
		run: func(s *session, c *ucli.Context) error {
			api, err := s.api()
			if err != nil {
				return err
			}
			keys, err := api.Keys(s.ctx, arg(c, 0))
			if err != nil {
				return err
			}
			if s.json {
				return s.document(items(keys))
			}
			if len(keys) == 0 {
				s.note("%s has no keys. Make one with: levelrail models keys create %s --name default", arg(c, 0), arg(c, 0))
				return nil
			}
			t := table{head: []string{"ID", "NAME", "KEY", "STATUS", "EXPIRES", "AGE", "BY"}}
			for _, k := range keys {
				t.row(k.ID, k.Name, k.Prefix+"…", s.lives(k.RevokedAt, k.ExpiresAt), s.until(k.ExpiresAt), s.age(k.CreatedAt), k.CreatedBy)
			}
			t.print(s.stdout)
			return nil
		},
	}
}

// lives says whether a key or token opens anything.
func (s *session) lives(revoked, expires *time.Time) styled {
	switch {
	case revoked != nil:
		return styled{"revoked", styleRed}
	case expires != nil && !expires.After(s.now()):
		return styled{"expired", styleRed}
	}
	return styled{"valid", styleGreen}
}
