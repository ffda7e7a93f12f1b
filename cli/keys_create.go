package cli

import (
	"strings"
	"time"

	ucli "github.com/urfave/cli/v2"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

func keysCreate() verb {
	return verb{
		name: "create", args: "NAME", usage: "make a further key of a model", complete: []string{"@model"},
		long: "Give each client its own key, so that one can be limited and revoked without the others. The key is shown this once.\n\n" +
			"A request over --rpm or --max-parallel is refused with 429; the answer never says which limit it was, `levelrail models explain` does. --tpm and --tpd count the tokens " +
			"of answers that have ended, so the request that crosses such a limit still gets its answer and later ones are refused until the window moves on: a minute, or the last 24 hours. " +
			"Streams count too: with the server's APP_MODEL_USAGE_STREAM=limited, its default, the gateway asks the engine for a stream's tokens where the key has such a limit. " +
			"Limits hold over all gateways together.\n\n" +
			"--allow-paths takes paths that the model's engine serves; one that ends in / opens everything below it. --allow-models is compared with the model field of a request's body, and a body without " +
			"one is refused then.",
		examples: []example{
			{"A key for continuous integration, good for 30 days", "levelrail models keys create chat --name ci --expires-in 30d"},
			{"One that may chat, once a second and two at a time", "levelrail models keys create chat --name web --rpm 60 --max-parallel 2 --allow-paths /v1/chat/completions"},
			{"One with two million tokens a day", "levelrail models keys create chat --name team-a --tpd 2000000"},
		},
		flags: []ucli.Flag{
			&ucli.StringFlag{Name: "name", Usage: "whose key it is, for people"},
			&ucli.StringFlag{Name: "expires-in", Usage: "how long it opens the model, such as 12h or 30d (default: until it is revoked)"},
			&ucli.Int64Flag{Name: "rpm", Usage: "most requests a minute"},
			&ucli.Int64Flag{Name: "tpm", Usage: "most tokens a minute"},
			&ucli.Int64Flag{Name: "tpd", Usage: "most tokens in any 24 hours"},
			&ucli.Int64Flag{Name: "max-parallel", Usage: "most requests at a time"},
			&ucli.Int64Flag{Name: "weight", Usage: "slots that it gets for each one of another key, when both want more than the model has (default: 1)"},
			&ucli.StringSliceFlag{Name: "allow-paths", Usage: "paths that it opens, with commas between; may be repeated (default: all that the engine serves)"},
			&ucli.StringSliceFlag{Name: "allow-models", Usage: "names that a request's body may ask for, with commas between; may be repeated (default: any)"},
		},
		run: func(s *session, c *ucli.Context) error {
			if c.String("name") == "" {
				return usagef(helpOf(c), "models keys create needs --name, as in: levelrail models keys create %s --name ci", arg(c, 0))
			}
			lasts, err := s.expiry(c)
			if err != nil {
				return err
			}
			k := wire.CreateKey{Name: c.String("name"), ExpiresInSeconds: int64(lasts / time.Second),
				Limits:     levelrail.KeyLimits{RPM: c.Int64("rpm"), TPM: c.Int64("tpm"), TPD: c.Int64("tpd"), MaxParallel: c.Int64("max-parallel"), Weight: c.Int64("weight")},
				AllowPaths: words(c.StringSlice("allow-paths")), AllowModels: words(c.StringSlice("allow-models"))}
			api, err := s.api()
			if err != nil {
				return err
			}
			made, err := api.CreateKey(s.ctx, arg(c, 0), k)
			if err != nil {
				return err
			}
			if s.json {
				return s.document(made)
			}
			s.showKey(made)
			return nil
		},
	}
}

// words are what a repeated flag with commas in it lists.
func words(values []string) []string {
	var out []string
	for _, v := range values {
		for w := range strings.SplitSeq(v, ",") {
			if w = strings.TrimSpace(w); w != "" {
				out = append(out, w)
			}
		}
	}
	return out
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
