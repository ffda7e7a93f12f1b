package cli

import (
	"fmt"
	"strings"
	"time"

	ucli "github.com/urfave/cli/v2"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

func keysList() verb {
	return verb{
		name: "list", args: "NAME", usage: "list a model's keys", complete: []string{"@model"},
		long: "Shows the first 8 characters of each key, never the key, with its limits and when it was last used, as gateways last said. A key that is `rotated` has a successor and works on until it expires.",
		examples: []example{
			{"The keys of a model", "levelrail models keys list chat"},
			{"Those that nobody has used", "levelrail models keys list chat --json | jq -r '.items[] | select(.last_used_at == null) | .id'"},
		},
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
			replaced := map[string]bool{}
			for _, k := range keys {
				replaced[k.Replaces] = true
			}
			t := table{head: []string{"ID", "NAME", "KEY", "STATUS", "LIMITS", "ONLY", "LAST USED", "EXPIRES", "AGE", "BY"}}
			for _, k := range keys {
				lives := s.lives(k.RevokedAt, k.ExpiresAt)
				if lives.style == styleGreen && replaced[k.ID] {
					lives = styled{"rotated", styleYellow}
				}
				t.row(k.ID, k.Name, k.Prefix+"…", lives, limitsText(k.Limits), scopeText(k), s.since(k.LastUsedAt), s.until(k.ExpiresAt), s.age(k.CreatedAt), k.CreatedBy)
			}
			t.print(s.stdout)
			return nil
		},
	}
}

// limitsText is a key's limits in a few words, "" for none.
func limitsText(l levelrail.KeyLimits) string {
	var out []string
	for _, x := range []struct {
		name string
		n    int64
	}{{"rpm", l.RPM}, {"tpm", l.TPM}, {"tpd", l.TPD}, {"parallel", l.MaxParallel}, {"weight", l.Weight}} {
		if x.n > 0 {
			out = append(out, fmt.Sprintf("%d %s", x.n, x.name))
		}
	}
	return strings.Join(out, ", ")
}

// scopeText is what a key is kept to, "" for nothing.
func scopeText(k wire.Key) string {
	out := append([]string{}, k.AllowPaths...)
	for _, m := range k.AllowModels {
		out = append(out, "model "+m)
	}
	return strings.Join(out, ", ")
}

// since is how long ago something was, "never" when it never was.
func (s *session) since(at *time.Time) string {
	if at == nil {
		return "never"
	}
	return s.age(*at) + " ago"
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
