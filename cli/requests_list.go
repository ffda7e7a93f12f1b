package cli

import (
	"strconv"
	"strings"
	"time"

	ucli "github.com/urfave/cli/v2"
)

func requestsList() verb {
	return verb{
		name: "list", args: "NAME", usage: "list what is in flight for a model", complete: []string{"@model"},
		long: "Asks every gateway that is connected. TOKENS counts the parts of a stream that have come so far, about one token each. A request is `reading` while its body comes (RECEIVED), `queued` until one of the model's slots is free, `waking` while its " +
			"model is started, `waiting` until the engine begins to answer, and then `answering`. `levelrail models requests NAME` is short for it.",
		examples: []example{
			{"What is going on", "levelrail models requests list chat"},
			{"The ids of what takes longer than ten minutes", "levelrail models requests list chat --json | jq -r '.items[] | select(.age_seconds > 600) | .id'"},
		},
		run: func(s *session, c *ucli.Context) error {
			api, err := s.api()
			if err != nil {
				return err
			}
			r, err := api.Requests(s.ctx, arg(c, 0))
			if err != nil {
				return err
			}
			if s.json {
				return s.document(r)
			}
			if len(r.Items) > 0 {
				t := table{head: []string{"ID", "KEY", "ROUTE", "STATE", "AGE", "RECEIVED", "TOKENS", "SENT", "GATEWAY"}}
				for _, q := range r.Items {
					tokens, received := "", ""
					if q.State == "reading" {
						received = size(q.Received)
					}
					if q.Stream {
						tokens = strconv.FormatInt(q.Tokens, 10)
					}
					t.row(q.ID, q.KeyPrefix+"…", q.Route, q.State, span(time.Duration(q.AgeSeconds)*time.Second), received, tokens, size(q.Bytes), q.GatewayID)
				}
				t.print(s.stdout)
			} else if len(r.Gateways) > 0 {
				s.note("Nothing is in flight for %s.", arg(c, 0))
			}
			s.noteSilent(r.Gateways, r.Silent)
			return nil
		},
	}
}

// noteSilent says whose answers are missing.
func (s *session) noteSilent(answered, silent []string) {
	switch {
	case len(silent) > 0:
		s.note("No answer came from %s: what it knows is missing.", strings.Join(silent, ", "))
	case len(answered) == 0:
		s.note("No gateway is connected.")
	}
}
