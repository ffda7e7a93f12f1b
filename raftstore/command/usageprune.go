package command

import (
	"time"

	"github.com/levelrail/levelrail"
)

// pruneMost is how many rows one UsagePrune takes: a command holds up the others while it is applied.
const pruneMost = 10_000

// UsagePrune removes usage of hours before a time, oldest first, and at most so many rows that nobody waits for it. The
// leader reads the clock and the retention. The answer is UsagePruned.
type UsagePrune struct {
	Before time.Time `json:"before"` // on the hour; that hour stays
}

// UsagePruned answers UsagePrune.
type UsagePruned struct {
	Removed int  `json:"removed"`
	More    bool `json:"more"` // rows of before are left: prune again
}

func (UsagePrune) Kind() string { return "usage.prune" }
func (c UsagePrune) Subject() (levelrail.Kind, string) {
	return levelrail.KindUsage, usageHour(c.Before)
}

func (c UsagePrune) Validate() error {
	if c.Before.IsZero() || !c.Before.Equal(c.Before.Truncate(time.Hour)) {
		return invalid("usage is removed up to a full hour")
	}
	return nil
}

func (c UsagePrune) Apply(t *Tx) (any, error) {
	var out UsagePruned
	limit := usageHour(c.Before)
	for _, bucket := range []levelrail.Kind{levelrail.KindUsage, BucketUsageDropped} {
		var old []string
		t.state.Each(bucket, "", func(id string, _ []byte) bool {
			if id >= limit {
				return false
			}
			if out.More = out.Removed+len(old) == pruneMost; !out.More {
				old = append(old, id)
			}
			return !out.More
		})
		for _, id := range old {
			drop(t, bucket, id)
		}
		if out.Removed += len(old); out.More {
			break
		}
	}
	return out, nil
}

// usageHour is how the ids of usage begin.
func usageHour(at time.Time) string { return at.UTC().Format("2006010215") }
