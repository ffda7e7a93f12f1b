package meter

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/levelrail/levelrail/caddymodule/dense"
	"github.com/levelrail/levelrail/caddymodule/durable"
	"github.com/levelrail/levelrail/client/wire"
)

// Batches are written as encoding/json writes a wire.UsageBatch, byte for byte, but a row at a time from where it was
// counted: where each request has a row of its own, the library took longer for it than the gateway for the request.

// entry is a row in the order of a batch.
type entry struct {
	*ledger
	at   *rowKey
	sum  *sum
	head uint64 // of the key's id, so that few comparisons look at more
}

// entries are the rows of ledgers by hour, key and model: those that are written together lie together in the store.
func entries(ledgers []*ledger) []entry {
	n := 0
	for _, l := range ledgers {
		n += l.len()
	}
	out := make([]entry, 0, n)
	for _, l := range ledgers {
		if l == nil {
			continue
		}
		l.rows.All(func(r *dense.Record[rowKey, sum]) bool {
			out = append(out, entry{l, &r.Key, &r.Value, head(r.Key.key.Text())})
			return true
		})
	}
	slices.SortFunc(out, func(a, b entry) int {
		if c := cmp.Or(cmp.Compare(a.at.hour, b.at.hour), cmp.Compare(a.head, b.head)); c != 0 {
			return c
		}
		return cmp.Or(slices.Compare(a.at.key.Text(), b.at.key.Text()), strings.Compare(a.models[a.at.model], b.models[b.at.model]))
	})
	return out
}

// head is a text's place among others, as far as eight bytes say.
func head(text []byte) (h uint64) {
	for i := range 8 {
		h <<= 8
		if i < len(text) {
			h |= uint64(text[i])
		}
	}
	return h
}

// appendBatch appends a batch of some entries.
func appendBatch(b []byte, gateway string, sequence uint64, rows []entry, dropped int64) []byte {
	b = durable.AppendText(append(b, `{"gateway_id":`...), gateway)
	b = strconv.AppendUint(append(b, `,"sequence":`...), sequence, 10)
	b = append(b, `,"rows":[`...)
	used := make([]lastUse, 0, len(rows))
	for i := range rows {
		if i > 0 {
			b = append(b, ',')
		}
		e := &rows[i]
		b = append(appendRow(b, e), '}')
		if e.sum.used != 0 {
			used = append(used, lastUse{e.at.key.Text(), e.sum.used})
		}
	}
	b = append(b, ']')
	if len(used) > 0 {
		b = appendUses(append(b, `,"last_used":{`...), used)
	}
	if dropped != 0 {
		b = strconv.AppendInt(append(b, `,"dropped_rows":`...), dropped, 10)
	}
	return append(b, '}')
}

// appendRow appends a row, but for the brace at its end.
func appendRow(b []byte, e *entry) []byte {
	s := e.sum
	b = appendTime(append(b, `{"hour":`...), time.Unix(int64(e.at.hour)*3600, 0))
	b = durable.AppendText(append(b, `,"key_id":`...), e.at.key.Text())
	b = durable.AppendText(append(b, `,"model":`...), e.models[e.at.model])
	for _, n := range [...]struct {
		name string
		n    int64
	}{{`,"requests":`, s.Requests}, {`,"requests_2xx":`, s.OK}, {`,"requests_4xx":`, s.ClientErrors}, {`,"requests_5xx":`, s.ServerErrors},
		{`,"requests_limited":`, s.Limited}, {`,"requests_aborted":`, s.Aborted}, {`,"usage_requests":`, s.WithUsage}, {`,"input_tokens":`, s.InputTokens},
		{`,"output_tokens":`, s.OutputTokens}, {`,"response_bytes":`, s.ResponseBytes}, {`,"duration_ms":`, s.DurationMS}, {`,"first_byte_ms":`, s.FirstByteMS}} {
		b = strconv.AppendInt(append(b, n.name...), n.n, 10)
	}
	o := &e.owners[s.owner]
	b = durable.AppendText(append(b, `,"owner":{"organisation":`...), o.Organisation)
	b = append(durable.AppendText(append(b, `,"project":`...), o.Project), '}')
	for i, tag := range o.tags {
		if i == 0 {
			b = append(b, `,"tags":[`...)
		} else {
			b = append(b, ',')
		}
		b = durable.AppendText(b, tag)
	}
	if len(o.tags) > 0 {
		b = append(b, ']')
	}
	return b
}

// lastUse is when a key was used last.
type lastUse struct {
	key []byte
	at  int64 // Unix nanoseconds
}

// appendUses appends them by key, each once, and the brace.
func appendUses(b []byte, uses []lastUse) []byte {
	slices.SortStableFunc(uses, func(a, b lastUse) int { return cmp.Or(slices.Compare(a.key, b.key), cmp.Compare(b.at, a.at)) })
	for i, u := range uses {
		if i > 0 {
			if slices.Equal(u.key, uses[i-1].key) { // of another hour or model, and earlier
				continue
			}
			b = append(b, ',')
		}
		b = append(durable.AppendText(b, u.key), ':')
		b = appendTime(b, time.Unix(0, u.at))
	}
	return append(b, '}')
}

func appendTime(b []byte, t time.Time) []byte {
	return append(t.UTC().AppendFormat(append(b, '"'), time.RFC3339Nano), '"')
}

// renumbered is a batch under another number.
func renumbered(text json.RawMessage, sequence uint64) (json.RawMessage, error) {
	var b wire.UsageBatch
	if err := json.Unmarshal(text, &b); err != nil {
		return nil, err
	}
	b.Sequence = sequence
	return json.Marshal(b)
}
