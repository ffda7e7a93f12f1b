package gateway

import (
	"slices"

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
// it all: what it told is added up, but the request does not count as one whose usage is known.
func (x *exchange) used(s proxy.Sent) {
	u := s.Seen.Usage
	if u == nil {
		return
	}
	x.record.Input, x.record.Output = u.Input, u.Output
	x.record.Partial = x.match.FirstOnly && !s.Stream && x.parts > 1
	x.record.HasUsage = !x.record.Partial
}
