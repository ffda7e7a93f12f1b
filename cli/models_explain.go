package cli

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	ucli "github.com/urfave/cli/v2"

	"github.com/levelrail/levelrail/client/wire"
)

func modelsExplain() verb {
	return verb{
		name: "explain", args: "NAME", usage: "say which limit refuses a key, and when it passes again", complete: []string{"@model"},
		long: "A client that is over a limit is told 429 and no more. This asks every gateway that is connected where the key's limits and the model's slots stand. Several gateways share a key's limits: each may use a part, and asks for more when that is used up; what counts is the sum.",
		examples: []example{
			{"Why a client gets 429", "levelrail models explain chat --key key_7f3a…"},
			{"The limit that refused last, for a script", "levelrail models explain chat --key key_7f3a… --json | jq -r .refused_by.limit"},
		},
		flags: []ucli.Flag{&ucli.StringFlag{Name: "key", Usage: "the key's id, from `levelrail models keys list NAME`"}},
		run: func(s *session, c *ucli.Context) error {
			if c.String("key") == "" {
				return usagef(helpOf(c), "models explain needs --key, an id from: levelrail models keys list %s", arg(c, 0))
			}
			api, err := s.api()
			if err != nil {
				return err
			}
			e, err := api.Explain(s.ctx, arg(c, 0), c.String("key"))
			if err != nil {
				return err
			}
			if s.json {
				return s.document(e)
			}
			s.explain(e)
			return nil
		},
	}
}

func (s *session) explain(e wire.Explanation) {
	key := fmt.Sprintf("The key %s (%s…)", e.Key.Name, e.Key.Prefix)
	switch {
	case e.Opens:
		if e.RefusedBy != nil {
			r := *e.RefusedBy
			if sum := total(e, r.Limit); sum != nil {
				r.Used, r.ResetSeconds = sum.Used, sum.ResetSeconds
			}
			s.say("%s was last refused by %s: %d %s; that was %s ago, on %s. %s", key, ofWhat(r.Limit), r.Most, limitWords(r.Limit), s.age(*r.RefusedLast), r.GatewayID, capital(resets(r)))
		} else if len(e.Gateways) > 0 {
			s.say("%s has not been refused by a limit lately.", key)
		}
	case e.Key.RevokedAt != nil:
		s.say("%s was revoked %s ago: every request with it gets 401.", key, s.age(*e.Key.RevokedAt))
	default:
		s.say("%s expired %s ago: every request with it gets 401.", key, s.age(*e.Key.ExpiresAt))
	}
	if len(e.Limits) > 0 {
		s.say("")
		t := table{head: []string{"LIMIT", "MOST", "USED", "LAST REFUSED", "NEXT REQUEST", "GATEWAY"}}
		for _, l := range e.Limits {
			refused := "never"
			if l.RefusedLast != nil {
				refused = s.age(*l.RefusedLast) + " ago"
			}
			most := strconv.FormatInt(l.Most, 10)
			if sum := total(e, l.Limit); sum != nil && l.Lease != nil {
				most = fmt.Sprintf("%d of %d", *l.Lease, l.Most)
				t.row(strings.ReplaceAll(l.Limit, "_", "-"), most, strconv.FormatInt(l.Used, 10), refused, nextRequest(l.Limit, sum.Most, sum.Used, sum.ResetSeconds), l.GatewayID)
				continue
			}
			t.row(strings.ReplaceAll(l.Limit, "_", "-"), most, strconv.FormatInt(l.Used, 10), refused, nextRequest(l.Limit, l.Most, l.Used, l.ResetSeconds), l.GatewayID)
		}
		for _, sum := range e.Total {
			who := "all together"
			if sum.Gone > 0 {
				who = fmt.Sprintf("all together, %d by gateways that are gone", sum.Gone)
			}
			t.row(strings.ReplaceAll(sum.Limit, "_", "-"), strconv.FormatInt(sum.Most, 10), strconv.FormatInt(sum.Used, 10), "", nextRequest(sum.Limit, sum.Most, sum.Used, sum.ResetSeconds), who)
		}
		t.print(s.stdout)
	}
	s.noteSilent(e.Gateways, e.Silent)
}

// total is where a limit stands that several gateways share; nil: one gateway has it alone.
func total(e wire.Explanation, limit string) *wire.LimitTotal {
	for i := range e.Total {
		if e.Total[i].Limit == limit {
			return &e.Total[i]
		}
	}
	return nil
}

// nextRequest says when a limit lets a request pass again.
func nextRequest(limit string, most, used, seconds int64) styled {
	switch {
	case waitsForOne(wire.LimitState{Limit: limit, Most: most, Used: used}):
		return styled{"when one ends", styleRed}
	case seconds > 0:
		return styled{"in " + span(time.Duration(seconds)*time.Second), styleRed}
	}
	return styled{"passes now", styleGreen}
}

// waitsForOne tells whether a limit of requests at a time is reached: no clock says when one of them ends.
func waitsForOne(l wire.LimitState) bool {
	return (l.Limit == "max_parallel" || l.Limit == "model_inflight") && l.Used >= l.Most
}

// resets says when a limit lets a request pass again.
func resets(l wire.LimitState) string {
	switch {
	case waitsForOne(l):
		return fmt.Sprintf("%d of %d are in flight, and a request passes when one of them ends.", l.Used, l.Most)
	case l.ResetSeconds > 0:
		return fmt.Sprintf("a request passes again in %s.", span(time.Duration(l.ResetSeconds)*time.Second))
	}
	return "a request passes now."
}

// limitWords says what a limit counts.
func limitWords(l string) string {
	switch l {
	case "rpm":
		return "requests a minute"
	case "tpm":
		return "tokens a minute"
	case "tpd":
		return "tokens in 24 hours"
	case "max_parallel", "model_inflight":
		return "requests at a time"
	case "body_memory":
		return "bytes of bodies that wait for a slot"
	}
	return "at most"
}

// ofWhat names a limit of a key, or the model's slots.
func ofWhat(l string) string {
	switch l {
	case "model_inflight":
		return "the model's slots (APP_MODEL_GATEWAY_MAX_INFLIGHT, or as many as its engine works on)"
	case "body_memory":
		return "the memory for its bodies (APP_MODEL_GATEWAY_BODY_MEMORY_KEY, or _MEMORY for all keys)"
	}
	return "its limit " + strings.ReplaceAll(l, "_", "-")
}
