package raftstore

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/raftstore/command"
)

// state is what the applied commands have made: buckets of ids and values. boltState keeps it in a file, memState in
// memory.
type state interface {
	// view calls fn with the state as of the last commit; later commits do not show.
	view(fn func(stateReader) error) error
	// begin opens the one change that may be open at a time.
	begin() (stateWriter, error)
}

type stateReader interface {
	command.Reader
	// first returns the bucket's first id and its value, "" for an empty bucket.
	first(bucket levelrail.Kind) (string, []byte)
}

// stateWriter is a change of the state. It sees what it has put itself. An error is a failure of the disk, never a refusal.
type stateWriter interface {
	stateReader
	put(bucket levelrail.Kind, id string, value []byte) error
	remove(bucket levelrail.Kind, id string) error
	commit() error
	rollback()
}

// The buckets that the machine keeps for itself, beside levelrail's kinds and command's.
const (
	bucketMeta      levelrail.Kind = "meta"
	bucketIdem      levelrail.Kind = "idem"       // PRINCIPAL key → idemRecord
	bucketIdemOrder levelrail.Kind = "idem_order" // INDEX → id in idem, oldest first
)

// kindsWatched are the kinds whose changes Watch gives. Usage and audit are read when they are wanted.
var kindsWatched = []levelrail.Kind{
	levelrail.KindCluster, levelrail.KindNode, levelrail.KindModel, levelrail.KindRevision, levelrail.KindReplica,
	levelrail.KindReservation, levelrail.KindWeights, levelrail.KindKey, levelrail.KindToken, levelrail.KindSecret,
	levelrail.KindSettings, levelrail.KindResidency, levelrail.KindJob, levelrail.KindCertificate, levelrail.KindPolicy,
}

// buckets lists all buckets in the order in which backups and hashes go through them.
var buckets = append(append([]levelrail.Kind{}, kindsWatched...),
	levelrail.KindUsage, levelrail.KindAudit,
	command.BucketSettingsHistory, command.BucketUsageSequence, bucketIdem, bucketIdemOrder,
	command.BucketUsageDropped, command.BucketKeyByModel, command.BucketKeyByHash, command.BucketKeyByExpiry, command.BucketKeyUsed)

const schema = 1

// meta is the state's one record about itself, written with every commit.
type meta struct {
	Schema  int       `json:"schema"`
	Cluster string    `json:"cluster"`
	Applied uint64    `json:"applied"` // the last entry of the log that the state holds
	Term    uint64    `json:"term"`    // and its term
	LogTime time.Time `json:"log_time"`
	Audits  int       `json:"audits"`
	Idems   int       `json:"idems"`
}

const metaID = "state"

func readMeta(r stateReader) (meta, error) {
	m := meta{Schema: schema}
	value := r.Get(bucketMeta, metaID)
	if value == nil {
		return m, nil
	}
	if err := json.Unmarshal(value, &m); err != nil {
		return m, &command.Corrupt{Bucket: bucketMeta, ID: metaID, Err: err}
	}
	if m.Schema != schema {
		return m, fmt.Errorf("the state is of schema %d, and this release knows schema %d: install the newer release that wrote it", m.Schema, schema)
	}
	return m, nil
}

func writeMeta(w stateWriter, m meta) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return w.put(bucketMeta, metaID, text)
}
