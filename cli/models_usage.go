package cli

import (
	"fmt"
	"strconv"
	"time"

	ucli "github.com/urfave/cli/v2"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

func modelsUsage() verb {
	return verb{
		name: "usage", args: "NAME", usage: "show what each key of a model used", complete: []string{"@model"},
		long: "Sums of whole hours, as gateways have sent them: one that is counting now sends within the server's APP_MODEL_USAGE_FLUSH_INTERVAL. Tokens are those that the engine itself has counted; " +
			"COUNTED says for how many of the requests it did, and nothing is estimated for the others. Requests that a limit refused are under 429, and under 4XX as well. TIME is the mean of all requests, " +
			"FIRST BYTE the mean of those that succeeded.",
		examples: []example{
			{"The last day, by key", "levelrail models usage chat"},
			{"The last week", "levelrail models usage chat --since 168h"},
			{"Hour by hour", "levelrail models usage chat --since 12h --by hour"},
			{"Output tokens of each key, for a script", "levelrail models usage chat --since 30d --json | jq -r '.keys[] | [.key_name, .usage.output_tokens] | @tsv'"},
		},
		flags: []ucli.Flag{
			&ucli.StringFlag{Name: "since", Value: "24h", Usage: "how far back: a duration such as 168h or 30d, or a time such as 2026-01-31T00:00:00Z"},
			&ucli.StringFlag{Name: "by", Value: "key", Usage: "what each row sums up: key or hour"},
		},
		run: func(s *session, c *ucli.Context) error {
			by := c.String("by")
			if by != "key" && by != "hour" {
				return usagef(helpOf(c), "--by %q is neither key nor hour", by)
			}
			since, err := sinceText(c.String("since"))
			if err != nil {
				return err
			}
			api, err := s.api()
			if err != nil {
				return err
			}
			r, err := api.ModelUsage(s.ctx, arg(c, 0), since)
			if err != nil {
				return err
			}
			if s.json {
				return s.document(r)
			}
			s.showUsage(r, by)
			return nil
		},
	}
}

// sinceText is --since as the API takes it, which knows no days.
func sinceText(text string) (string, error) {
	if _, err := time.Parse(time.RFC3339, text); err == nil {
		return text, nil
	}
	d, err := parseSpan("since", text)
	if err != nil {
		return "", err
	}
	return d.String(), nil
}

func (s *session) showUsage(r wire.UsageReport, by string) {
	if len(r.Items) == 0 {
		s.note("%s was not used since %s.", r.Model, r.Since.UTC().Format("2006-01-02 15:04 UTC"))
	} else {
		head := []string{"REQUESTS", "2XX", "4XX", "5XX", "429", "COUNTED", "TOKENS IN", "TOKENS OUT", "SENT", "TIME", "FIRST BYTE"}
		first := []string{"KEY", "NAME", "ID"}
		if by == "hour" {
			first = []string{"HOUR"}
		}
		t := table{head: append(first, head...)}
		if by == "hour" {
			for _, h := range hours(r.Items) {
				t.row(append([]any{h.Hour.UTC().Format("2006-01-02 15:04")}, usageCells(h)...)...)
			}
		} else {
			for _, k := range r.Keys {
				prefix := k.KeyPrefix
				if prefix != "" {
					prefix += "…"
				}
				t.row(append([]any{prefix, k.KeyName, k.KeyID}, usageCells(k.Usage)...)...)
			}
		}
		total := []any{styled{"total", styleBold}}
		for range len(first) - 1 {
			total = append(total, "")
		}
		t.row(append(total, usageCells(r.Total)...)...)
		t.print(s.stdout)
	}
	if r.DroppedRows > 0 {
		s.note("%d hourly sums are missing, of this model or others: gateways could not send them in time and had no room for more (APP_MODEL_USAGE_MAX_BUFFERED).", r.DroppedRows)
	}
}

// hours sums rows, which come by hour, over the keys of each hour.
func hours(rows []levelrail.Usage) []levelrail.Usage {
	var out []levelrail.Usage
	for _, u := range rows {
		if n := len(out); n > 0 && out[n-1].Hour.Equal(u.Hour) {
			out[n-1].Add(u.Counts)
		} else {
			out = append(out, u)
		}
	}
	return out
}

func usageCells(u levelrail.Usage) []any {
	n := func(i int64) string { return strconv.FormatInt(i, 10) }
	return []any{n(u.Requests), n(u.OK), n(u.ClientErrors), n(u.ServerErrors), n(u.Limited), n(u.WithUsage), n(u.InputTokens), n(u.OutputTokens), size(u.ResponseBytes),
		mean(u.DurationMS, u.Requests), mean(u.FirstByteMS, u.OK)}
}

// mean is a mean time, "" of nothing: 640ms, 1.8s, 75s.
func mean(ms, of int64) string {
	if of <= 0 {
		return ""
	}
	d := time.Duration(ms) * time.Millisecond / time.Duration(of)
	switch {
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", d.Seconds())
	}
	return fmt.Sprintf("%.0fs", d.Seconds())
}
