package cli

import (
	"regexp"
	"time"

	ucli "github.com/urfave/cli/v2"

	"github.com/levelrail/levelrail/client"
	"github.com/levelrail/levelrail/client/wire"
)

func modelsLogs() verb {
	return verb{
		name: "logs", args: "NAME", usage: "show what a model's engine and download wrote to the journal", complete: []string{"@model"},
		long: "The lines come from the journal of the model's node, the oldest first. On the node itself `journalctl -u 'levelrail-model-NAME.*' -u levelrail-fetch-NAME` shows the same. A line counts as the model's when it came from one of its units, or from systemd about one; what else claims to be of the model is not shown. With --json each line is one JSON document.",
		examples: []example{
			{"The newest lines", "levelrail models logs chat"},
			{"Go on with new lines", "levelrail models logs chat -f -n 100"},
			{"The warnings of the last hour", "levelrail models logs chat --since -1h --json | jq -r 'select(.priority <= 4) | .message'"},
		},
		flags: []ucli.Flag{
			&ucli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "go on with new lines until Ctrl-C"},
			&ucli.IntFlag{Name: "lines", Aliases: []string{"n"}, Value: 50, Usage: "how many of the newest lines"},
			&ucli.StringFlag{Name: "since", Usage: "not before this time, as journalctl takes it: -1h, today, \"2026-01-02 03:04\""},
		},
		run: func(s *session, c *ucli.Context) error {
			if c.Int("lines") < 1 {
				return usagef(helpOf(c), "--lines %d shows nothing; write a number of 1 or more", c.Int("lines"))
			}
			api, err := s.api()
			if err != nil {
				return err
			}
			enc := oneDocument(s.stdout)
			any := false
			err = api.Logs(s.ctx, arg(c, 0), client.LogOptions{Lines: c.Int("lines"), Follow: c.Bool("follow"), Since: c.String("since")}, func(l wire.LogLine) error {
				any = true
				if s.json {
					return enc.Encode(l)
				}
				s.say("%s %s", l.At.In(s.now().Location()).Format(time.DateTime), plain(withoutColour.ReplaceAllString(l.Message, "")))
				return s.stdout.err
			})
			if err == nil && !any && !s.json {
				s.note("The journal has no line of %s yet.", arg(c, 0))
			}
			return err
		},
	}
}

// withoutColour finds the colour codes that engines write.
var withoutColour = regexp.MustCompile("\x1b\\[[0-9;]*[A-Za-z]")
