package gateway

import (
	"slices"

	"github.com/levelrail/levelrail/caddymodule/meter"
	"github.com/levelrail/levelrail/caddymodule/openai"
	"github.com/levelrail/levelrail/caddymodule/proxy"
)

// askUsage makes the engine tell what a stream costs where its client has not asked and the control plane wants it known:
// always, or for keys whose tokens are limited. It returns whether the client is to be spared the answer.
func (x *exchange) askUsage() (hide bool) {
	if x.body == nil || x.match.Multipart || !x.match.AskUsage || !x.wantsUsage() {
		return false
	}
	change, _ := openai.AskUsage(x.body.Bytes(), x.members)
	if change == nil {
		return false
	}
	x.changes = append(x.changes, *change)
	return true
}

// rewrite makes the changes that the checks have found necessary: what the engine gets is what was checked. The members
// of the body are not to be read after it.
func (x *exchange) rewrite() {
	slices.SortStableFunc(x.changes, func(a, b openai.Change) int { return b.From - a.From })
	for _, c := range x.changes {
		x.body.Splice(c.From, c.To, c.Text)
	}
	x.changes = nil
}

func (x *exchange) wantsUsage() bool {
	if x.model.Limits.UsageScanBytes <= 0 {
		return false // nobody would read it
	}
	switch x.model.Limits.UsageStream {
	case "always":
		return true
	case "asked":
		return false
	}
	return x.key.Limits.TPM > 0 || x.key.Limits.TPD > 0
}

// used records what the answer said it cost. An engine that tells the cost of the first of several choices only has not told
// it all: what it told is added up, but the request does not count as one whose usage is known. The same goes for a stream
// that was cut after it had told what the prompt costs, as the messages API does in its first event.
func (x *exchange) used(s proxy.Sent) {
	x.events = s.Seen.Events
	u := s.Seen.Usage
	if u == nil {
		return
	}
	x.record.Input, x.record.Output = u.Input, u.Output
	x.record.Partial = x.match.FirstOnly && !s.Stream && x.parts > 1 || s.Seen.Begun
	x.record.HasUsage = !x.record.Partial
}

// cost is what a request that an engine has seen counts for against the limits on tokens: what the answer said, and where
// it did not come to say it all, an estimate, since an engine has read the prompt however early a client leaves. What an
// engine refuses, or does not answer by its own fault, costs nothing.
func (x *exchange) cost() int64 {
	r := &x.record
	said := r.Input + r.Output
	if r.HasUsage {
		return said
	}
	if limits := &x.key.Limits; limits.TPM <= 0 && limits.TPD <= 0 {
		return said // nobody is charged
	}
	input, output := r.Input, r.Output
	switch {
	case r.Status >= 400 && r.Status != statusGone:
		return said
	case !x.answered && r.End != meter.ClientGone && r.End != meter.Cancelled:
		return said
	}
	if x.body != nil && !x.match.Multipart && input == 0 {
		input = max(input, openai.EstimatePrompt(x.body.Bytes()))
	}
	switch {
	case r.Partial && x.parts > 1 && x.events == 0: // of several answers the first has said what it costs, and the others cost about the same
		input, output = input*x.parts, output*x.parts
	case x.events > 0: // of a stream an event is about a token
		output = max(output, x.events)
	case output == 0 && x.match.Multipart: // a transcription as text
		output = openai.EstimateText(r.Bytes)
	}
	r.Estimated = input + output
	return r.Estimated
}
