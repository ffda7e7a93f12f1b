package command

import (
	"maps"
	"slices"
	"time"

	"github.com/levelrail/levelrail"
)

// BucketUsageDropped counts by HOUR/GATEWAY the sums that a gateway had to drop, by the hour in which it said so.
const BucketUsageDropped levelrail.Kind = "usage_dropped"

// UsageRecord adds a gateway's sums to the hourly rows. A gateway numbers its batches 1, 2, 3…; one that was counted
// already adds nothing. The answer is UsageRecorded.
type UsageRecord struct {
	GatewayID string               `json:"gateway_id"`
	Sequence  uint64               `json:"sequence"`
	Rows      []levelrail.Usage    `json:"rows"`
	LastUsed  map[string]time.Time `json:"last_used,omitempty"` // by key id; keys that are gone are passed over
	Dropped   int64                `json:"dropped,omitempty"`   // sums that the gateway had no room for
}

// UsageRecorded answers UsageRecord.
type UsageRecorded struct {
	Counted  bool   `json:"counted"`  // false: this batch was a repeat
	Sequence uint64 `json:"sequence"` // the last batch that counts
}

func (UsageRecord) Kind() string                        { return "usage.record" }
func (c UsageRecord) Subject() (levelrail.Kind, string) { return levelrail.KindUsage, c.GatewayID }

// Routine keeps usage out of the audit: gateways report it every few seconds.
func (UsageRecord) Routine() {}

func (c UsageRecord) Validate() error {
	if c.Sequence == 0 {
		return invalid("a gateway's batches of usage are numbered from 1")
	}
	for _, r := range c.Rows {
		if err := required("key id", r.KeyID, "model", r.Model); err != nil {
			return err
		}
		if r.Hour.IsZero() {
			return invalid("the usage of the key %s has no hour", r.KeyID)
		}
	}
	if c.Dropped < 0 {
		return invalid("the gateway %s has dropped %d sums", c.GatewayID, c.Dropped)
	}
	return required("gateway id", c.GatewayID)
}

func (c UsageRecord) Apply(t *Tx) (any, error) {
	var last uint64
	if value := t.raw(BucketUsageSequence, c.GatewayID); value != nil {
		v, _, err := DecodeValue[uint64](BucketUsageSequence, c.GatewayID, value)
		if err != nil {
			panic(err)
		}
		last = v
	}
	if c.Sequence <= last {
		return UsageRecorded{Sequence: last}, nil
	}
	for _, r := range c.Rows {
		r.Hour, r.Owner = r.Hour.UTC().Truncate(time.Hour), orDefault(r.Owner)
		sum, _ := get[levelrail.Usage](t, r.ObjectID())
		put(t, added(sum, r))
	}
	for _, key := range slices.Sorted(maps.Keys(c.LastUsed)) {
		used(t, key, c.LastUsed[key])
	}
	if c.Dropped > 0 {
		id, sum := usageHour(t.now)+"/"+c.GatewayID, int64(0)
		if value := t.raw(BucketUsageDropped, id); value != nil {
			v, _, err := DecodeValue[int64](BucketUsageDropped, id, value)
			if err != nil {
				panic(err)
			}
			sum = v
		}
		t.setObject(BucketUsageDropped, id, sum+c.Dropped)
	}
	t.setObject(BucketUsageSequence, c.GatewayID, c.Sequence)
	return UsageRecorded{Counted: true, Sequence: c.Sequence}, nil
}

// added is the sum of two rows of one hour, key and model; owner and tags are the newer row's.
func added(sum, r levelrail.Usage) levelrail.Usage {
	r.Add(sum.Counts)
	return r
}
