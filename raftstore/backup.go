package raftstore

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/hashicorp/raft"
	"go.etcd.io/bbolt"

	"github.com/levelrail/levelrail"
)

// A backup is lines of JSON: a header, one line for each record in the order of buckets and ids, and a trailer with the
// SHA-256 of all lines before it. Sealed values stay sealed, and the master key is not in it.
const (
	backupFormat  = "levelrail-backup"
	backupVersion = 1
	backupLineMax = 16 << 20 // bytes
)

// BackupHeader is the first line of a backup.
type BackupHeader struct {
	Format    string    `json:"format"`
	Version   int       `json:"version"`
	ClusterID string    `json:"cluster_id"`
	ServerID  string    `json:"server_id"` // that wrote it
	Lineage   string    `json:"lineage"`
	Index     uint64    `json:"index"` // the last command in it
	Term      uint64    `json:"term"`
	TakenAt   time.Time `json:"taken_at"`
	Software  string    `json:"software"`
}

type backupRecord struct {
	Bucket levelrail.Kind  `json:"bucket"`
	ID     string          `json:"id"`
	Value  json.RawMessage `json:"value"`
}

type backupTrailer struct {
	Records int    `json:"records"`
	SHA256  string `json:"sha256"`
}

// Backup writes everything that the state holds, as of one moment, to w. It waits for nothing but w, and writers do not
// wait for it. On a server that leads it holds every write acknowledged before it began; on another it may be behind, and
// its header says where it stands.
func (s *Store) Backup(ctx context.Context, w io.Writer) error {
	var notLeader *NotLeaderError
	index, err := s.log.current(ctx)
	if err != nil && !errors.As(err, &notLeader) {
		return fmt.Errorf("back up: %w", err)
	}
	if err := s.progress.wait(ctx, index); err != nil {
		return fmt.Errorf("back up: %w", err)
	}
	return s.state.view(func(r stateReader) error {
		m, err := readMeta(r)
		if err != nil {
			return err
		}
		out := &backupWriter{w: bufio.NewWriterSize(w, 1<<16), sum: sha256.New()}
		out.line(BackupHeader{Format: backupFormat, Version: backupVersion, ClusterID: s.ids.ClusterID, ServerID: s.ids.ServerID, Lineage: s.ids.Lineage,
			Index: m.Applied, Term: m.Term, TakenAt: s.clock().UTC(), Software: levelrail.Version})
		records := 0
		for _, bucket := range append([]levelrail.Kind{bucketMeta}, buckets...) {
			r.Each(bucket, "", func(id string, value []byte) bool {
				out.line(backupRecord{bucket, id, value})
				records++
				return out.err == nil && ctx.Err() == nil
			})
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("back up: %w", err)
		}
		out.line(backupTrailer{Records: records, SHA256: hex.EncodeToString(out.sum.Sum(nil))})
		if err := errors.Join(out.err, out.w.Flush()); err != nil {
			return fmt.Errorf("write the backup: %w", err)
		}
		return nil
	})
}

// backupWriter keeps the first error.
type backupWriter struct {
	w   *bufio.Writer
	sum hash.Hash
	err error
}

func (b *backupWriter) line(v any) {
	text, err := json.Marshal(v)
	if b.err = errors.Join(b.err, err); b.err != nil {
		return
	}
	text = append(text, '\n')
	b.sum.Write(text)
	_, b.err = b.w.Write(text)
}

// RestoreBackup makes a store of a backup in a directory that holds none, while no server runs there. The cluster keeps
// its id, and the server, the members and the line of history are new: watches begin anew, and servers of the old history
// must not be started again. Nothing is left in the directory when the backup is not whole. It returns the header.
//
// replaced are the clusters whose place the restored one takes on its server: their agents and gateways become its own.
func RestoreBackup(dir string, r io.Reader, replaced ...string) (BackupHeader, error) {
	h, err := restoreBackup(dir, r, replaced)
	if err != nil {
		return h, fmt.Errorf("restore a backup to %s: %w", dir, err)
	}
	return h, nil
}

func restoreBackup(dir string, r io.Reader, replaced []string) (h BackupHeader, err error) {
	lock, err := takeDirectory(dir)
	if err != nil {
		return h, err
	}
	defer lock.Close()
	log, snapshots, err := truth(dir)
	if err != nil {
		return h, err
	}
	if _, err := os.Stat(filepath.Join(dir, fileID)); err == nil || log || snapshots {
		return h, levelrail.Errorf(levelrail.ErrRefused, "the directory holds a store already").WithNext("set it aside first")
	}
	scratch := filepath.Join(dir, "restore.tmp")
	defer os.Remove(scratch)
	state, err := newBoltState(scratch)
	if err != nil {
		return h, err
	}
	defer state.close()
	if h, err = load(state, r); err != nil {
		return h, err
	}

	ids := identity{ServerID: levelrail.NewID("srv"), ClusterID: h.ClusterID, Lineage: newLineage(), Bootstrapped: true,
		Replaced: slices.DeleteFunc(slices.Clone(replaced), func(id string) bool { return id == h.ClusterID })}
	undo := func() {
		os.RemoveAll(filepath.Join(dir, snapshotsDir))
		os.Remove(filepath.Join(dir, fileLog))
	}
	if err := writeTruth(dir, ids, state, h); err != nil {
		undo()
		return h, err
	}
	if err := ids.save(dir); err != nil { // last: without it the directory is no store
		undo()
		return h, err
	}
	return h, nil
}

// load reads a backup into an empty state, and holds it against its checksum.
func load(state *boltState, r io.Reader) (BackupHeader, error) {
	var h BackupHeader
	w, err := state.begin()
	if err != nil {
		return h, err
	}
	defer w.rollback()
	known := map[levelrail.Kind]bool{bucketMeta: true}
	for _, b := range buckets {
		known[b] = true
	}
	sum := sha256.New()
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 1<<16), backupLineMax)
	records, ended := 0, false
	for n := 0; lines.Scan(); n++ {
		line := lines.Bytes()
		if ended {
			return h, fmt.Errorf("the backup goes on after its end, in line %d", n+1)
		}
		if n == 0 {
			if err := json.Unmarshal(line, &h); err != nil || h.Format != backupFormat {
				return h, fmt.Errorf("this is no backup of Levelrail")
			}
			if h.Version != backupVersion {
				return h, fmt.Errorf("the backup is of version %d, and this release knows version %d: use the release that wrote it, %s", h.Version, backupVersion, h.Software)
			}
		} else if bytes.HasPrefix(line, []byte(`{"records":`)) {
			var t backupTrailer
			if err := json.Unmarshal(line, &t); err != nil {
				return h, fmt.Errorf("read the end of the backup: %w", err)
			}
			if have := hex.EncodeToString(sum.Sum(nil)); t.SHA256 != have || t.Records != records {
				return h, fmt.Errorf("the backup is damaged: it has %d records with the checksum %s, and its end speaks of %d with %s", records, have, t.Records, t.SHA256)
			}
			ended = true
			continue
		} else {
			var rec backupRecord
			if err := json.Unmarshal(line, &rec); err != nil {
				return h, fmt.Errorf("read line %d of the backup: %w", n+1, err)
			}
			if !known[rec.Bucket] {
				return h, fmt.Errorf("the backup holds the bucket %q, which this release does not know: use the release that wrote it, %s", rec.Bucket, h.Software)
			}
			if err := w.put(rec.Bucket, rec.ID, bytes.Clone(rec.Value)); err != nil {
				return h, err
			}
			records++
		}
		sum.Write(line)
		sum.Write([]byte{'\n'})
	}
	if err := lines.Err(); err != nil {
		return h, fmt.Errorf("read the backup: %w", err)
	}
	if !ended {
		return h, fmt.Errorf("the backup is cut off after %d records", records)
	}
	if err := indexKeys(w); err != nil {
		return h, err
	}
	m, err := readMeta(w)
	if err != nil {
		return h, err
	}
	if m.Cluster != h.ClusterID || m.Applied != h.Index {
		return h, fmt.Errorf("the backup's header says cluster %s at index %d, and its content cluster %s at index %d", h.ClusterID, h.Index, m.Cluster, m.Applied)
	}
	return h, w.commit()
}

// writeTruth writes what raft starts from: a snapshot of the state with one server as its only member, and a term.
func writeTruth(dir string, ids identity, state *boltState, h BackupHeader) error {
	f := newFaults(func(error) {})
	logger := raftLogger(discard)
	w := newWatchdog(time.Hour, f, discard)
	defer w.close()
	logs, err := openLogStore(filepath.Join(dir, fileLog), f, w)
	if err != nil {
		return err
	}
	defer logs.close()
	term := max(h.Term, 1)
	if err := logs.SetUint64([]byte(keyCurrentTerm), term); err != nil {
		return err
	}
	snapshots, err := openSnapshots(dir, logs, logger)
	if err != nil {
		return err
	}
	self := raft.Configuration{Servers: []raft.Server{{Suffrage: raft.Voter, ID: raft.ServerID(ids.ServerID), Address: raft.ServerAddress(ids.ServerID)}}}
	_, transport := raft.NewInmemTransport(raft.ServerAddress(ids.ServerID))
	index := max(h.Index, 1)
	sink, err := snapshots.Create(1, index, term, self, index, transport)
	if err != nil {
		return err
	}
	tx, end, err := state.open()
	if err != nil {
		return errors.Join(err, sink.Cancel())
	}
	return persist(tx, end, sink)
}

func persist(tx *bbolt.Tx, end func(), sink raft.SnapshotSink) error {
	s := &fsmSnapshot{tx: tx, end: end}
	defer s.Release()
	return s.Persist(sink)
}
