package cli

import (
	"slices"
	"strings"
	"time"

	ucli "github.com/urfave/cli/v2"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

func tokensCreate() verb {
	return verb{
		name: "create", usage: "make a token for using the server from elsewhere",
		long: "Abilities, each with all before it: read shows; write restarts and deletes; write:sensitive deploys and makes keys; root does everything, tokens included. " +
			"The token is shown this once.",
		examples: []example{
			{"For a dashboard that only looks, good for 90 days", "levelrail tokens create --name dashboard --ability read --expires-in 90d"},
			{"For deploying from a pipeline", "levelrail tokens create --name pipeline --ability write:sensitive"},
		},
		flags: []ucli.Flag{
			&ucli.StringFlag{Name: "name", Usage: "whose token it is, for people"},
			&ucli.StringSliceFlag{Name: "ability", Usage: "read, write, write:sensitive or root; may be repeated"},
			&ucli.StringFlag{Name: "expires-in", Usage: "how long it is good for, such as 12h or 90d (default: until it is revoked)"},
		},
		run: runTokensCreate,
	}
}

func runTokensCreate(s *session, c *ucli.Context) error {
	var missing []string
	for _, f := range []string{"name", "ability"} {
		if !given(c, f) {
			missing = append(missing, "--"+f)
		}
	}
	if len(missing) > 0 {
		return usagef(helpOf(c), "tokens create needs %s, as in: levelrail tokens create --name you --ability read", strings.Join(missing, " and "))
	}
	want := wire.CreateToken{Name: c.String("name")}
	for _, a := range c.StringSlice("ability") {
		if !slices.Contains(levelrail.Abilities, levelrail.Ability(a)) {
			return usagef(helpOf(c), "there is no ability %q; use read, write, write:sensitive or root", a)
		}
		want.Abilities = append(want.Abilities, levelrail.Ability(a))
	}
	lasts, err := s.expiry(c)
	if err != nil {
		return err
	}
	want.ExpiresInSeconds = int64(lasts / time.Second)
	api, err := s.api()
	if err != nil {
		return err
	}
	t, err := api.CreateToken(s.ctx, want)
	if err != nil {
		return err
	}
	if s.json {
		return s.document(t)
	}
	s.say("Token      %s", t.Secret)
	s.say("Name       %s", t.Name)
	s.say("Id         %s", t.ID)
	s.say("Abilities  %s", abilities(t.Abilities))
	if t.ExpiresAt != nil {
		s.say("Expires    %s", s.until(t.ExpiresAt))
	}
	s.note("The token is shown this once: keep it. Where it is used, set LEVELRAIL_URL=https://HOST:7420, LEVELRAIL_TOKEN (or LEVELRAIL_TOKEN_FILE) and\n" +
		"LEVELRAIL_CA_FILE, a copy of what this prints on the server's machine: curl --unix-socket /run/levelrail/api.sock http://localhost/api/v1/ca.pem")
	return nil
}

func abilities(list []levelrail.Ability) string {
	words := make([]string, len(list))
	for i, a := range list {
		words[i] = string(a)
	}
	return strings.Join(words, ", ")
}
