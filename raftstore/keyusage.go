package raftstore

import (
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/raftstore/command"
)

// UsageOfKey calls fn for each row of a key's usage from one hour up to another, both included, by hour and model. It
// reads no other key's rows.
func UsageOfKey(tx *Tx, key string, from, to time.Time, fn func(levelrail.Usage) error) error {
	for hour := from.UTC().Truncate(time.Hour); !hour.After(to); hour = hour.Add(time.Hour) {
		if err := each(tx, levelrail.KindUsage, hour.Format("2006010215")+"/"+key+"/", fn); err != nil {
			return err
		}
	}
	return nil
}

// UsageByOthers tells whether a gateway other than one has ever reported usage.
func UsageByOthers(tx *Tx, gateway string) (others bool) {
	tx.state.Each(command.BucketUsageSequence, "", func(id string, _ []byte) bool {
		others = id != gateway
		return !others
	})
	return others
}
