package raftstore

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/raftstore/command"
	"github.com/levelrail/levelrail/raftstore/command/commandtest"
)

func hashOf(t testing.TB, s *Store) string {
	t.Helper()
	sum, _, err := s.LogicalHash()
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

// fill writes the samples, some refusals, and repeats under idempotency keys.
func fill(t testing.TB, s *Store) {
	t.Helper()
	for i, c := range commandtest.Samples(s.Status().ClusterID) {
		by := commandtest.By
		by.IdempotencyKey = fmt.Sprint("key-", i)
		for range 2 {
			if _, err := s.Propose(within(t, 20*time.Second), by, c); err != nil {
				t.Fatalf("%s: %v", c.Kind(), err)
			}
		}
		by.IdempotencyKey = ""
		_, _ = s.Propose(within(t, 20*time.Second), by, c) // many are refused now, which is recorded as well
	}
}

// TestReplayIsTheSame: the same log gives the same state in a second machine, whatever the batches, the time zone and the
// number of processors, and in a store that starts again from it in another process.
func TestReplayIsTheSame(t *testing.T) {
	cfg := testConfig(t, t.TempDir())
	s := openTest(t, cfg)
	fill(t, s)
	want := hashOf(t, s)
	var log []entry
	l := s.log.(*raftLog)
	for i := uint64(1); i <= s.Status().Index; i++ {
		var e raft.Log
		must(t, l.logs.GetLog(i, &e))
		one := entry{index: e.Index, term: e.Term}
		if e.Type == raft.LogCommand {
			one.data = e.Data
		}
		log = append(log, one)
	}

	for _, batch := range []int{1, 7, len(log)} {
		other := OpenMemory(cfg)
		other.machine.cluster = s.ids.ClusterID
		for rest := log; len(rest) > 0; {
			n := min(batch, len(rest))
			if _, err := other.machine.apply(rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		if got := hashOf(t, other); got != want {
			t.Errorf("in batches of %d the state has the hash %s, not %s", batch, got, want)
		}
	}
	closeTest(t, s)
	child := exec.Command(os.Args[0], "-test.run=^$")
	child.Env = append(os.Environ(), "RAFTSTORE_TEST_HASH="+cfg.Dir, "GOMAXPROCS=1")
	out, err := child.CombinedOutput()
	if got := strings.TrimSpace(string(out)); err != nil || got != want {
		t.Errorf("in another process the state has the hash %s (%v), not %s", got, err, want)
	}
}

// printHash starts a store far from Greenwich and prints what it holds.
func printHash(dir string) error {
	time.Local = time.FixedZone("far", 11*3600)
	s, err := Open(context.Background(), Config{Dir: dir, Logger: discard, HeartbeatTimeout: 40 * time.Millisecond, MinFreeBytes: 1})
	if err != nil {
		return err
	}
	sum, _, err := s.LogicalHash()
	if err != nil {
		return err
	}
	fmt.Println(sum)
	return s.Close(context.Background())
}

// TestSnapshotHoldsEverything: a start from a snapshot alone gives the same state.
func TestSnapshotHoldsEverything(t *testing.T) {
	cfg := testConfig(t, t.TempDir())
	cfg.TrailingLogs = 1
	s := openTest(t, cfg)
	fill(t, s)
	must(t, s.Snapshot(within(t, 10*time.Second)))
	st := s.Status()
	if st.SnapshotIndex < st.Index || st.FirstIndex < st.LastIndex-1 {
		t.Fatalf("after the snapshot the status is %+v", st)
	}
	want := hashOf(t, s)
	closeTest(t, s)
	s = openTest(t, cfg)
	if got := hashOf(t, s); got != want {
		t.Errorf("from the snapshot the state has the hash %s, not %s", got, want)
	}
	propose(t, s, node("after"))
	must(t, s.Snapshot(within(t, 10*time.Second)))
	must(t, s.Snapshot(within(t, 10*time.Second))) // nothing new
}

// TestSnapshotUnderReaders: restoring a snapshot waits for no reader, and a reader ends on what it began with.
func TestSnapshotUnderReaders(t *testing.T) {
	s := openTest(t, testConfig(t, t.TempDir()))
	propose(t, s, node("a"))
	l := s.log.(*raftLog)
	snap, err := l.fsm.Snapshot()
	must(t, err)
	sink := &bufferSink{}
	must(t, snap.Persist(sink))
	snap.Release()
	propose(t, s, node("b"))
	sub := watch(t, s, "", levelrail.KindNode)
	next(t, sub, 4)

	must(t, s.View(func(tx *Tx) error {
		must(t, l.fsm.Restore(sink))
		nodes, err := List[levelrail.Node](tx, "")
		if len(nodes) != 2 {
			t.Errorf("the reader sees %v", nodes)
		}
		return err
	}))
	if nodes := all[levelrail.Node](t, s, ""); len(nodes) != 1 {
		t.Errorf("after the restore the nodes are %v", nodes)
	}
	propose(t, s, node("c"))
	lines, _ := next(t, sub, 1)
	expect(t, lines, "put node c") // the watch stood at a later index than the snapshot's
}

type bufferSink struct{ bytes.Buffer }

func (*bufferSink) ID() string    { return "test" }
func (*bufferSink) Cancel() error { return nil }
func (*bufferSink) Close() error  { return nil }

// TestBackupAndRestore: a backup makes the same state in a new directory, under a new server and a new history, and an
// incomplete or changed one makes nothing.
func TestBackupAndRestore(t *testing.T) {
	cfg := testConfig(t, t.TempDir())
	s := openTest(t, cfg)
	fill(t, s)
	var backup bytes.Buffer
	must(t, s.Backup(within(t, 10*time.Second), &backup))
	old, want := s.Status(), hashOf(t, s)
	_, token := next(t, watch(t, s, "", levelrail.KindPolicy), 3)

	dir := t.TempDir()
	h, err := RestoreBackup(dir, bytes.NewReader(backup.Bytes()))
	must(t, err)
	if h.ClusterID != old.ClusterID || h.Index != old.Index || h.Lineage != old.Lineage || h.Software != levelrail.Version {
		t.Errorf("the header is %+v", h)
	}
	r := openTest(t, testConfig(t, dir))
	st := r.Status()
	if got := hashOf(t, r); got != want {
		t.Errorf("the restored state has the hash %s, not %s", got, want)
	}
	if st.ClusterID != old.ClusterID || st.ServerID == old.ServerID || st.Lineage == old.Lineage || st.Index < old.Index {
		t.Errorf("the restored store's status is %+v, the old one's %+v", st, old)
	}
	if _, err := r.Watch(context.Background(), token, levelrail.KindPolicy); err != ErrTooOld {
		t.Errorf("a token of the old history gave %v", err)
	}
	if w := propose(t, r, node("new")); w.Index <= old.Index {
		t.Errorf("the restored store writes at %d, the old one stood at %d", w.Index, old.Index)
	}
	closeTest(t, r)
	read[levelrail.Node](t, openTest(t, testConfig(t, dir)), "new")

	if _, err := RestoreBackup(dir, bytes.NewReader(backup.Bytes())); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("restoring over a running store gave %v", err)
	}
	if _, err := RestoreBackup(filled(t, false).Dir, bytes.NewReader(backup.Bytes())); levelrail.KindOf(err) != levelrail.ErrRefused {
		t.Errorf("restoring over a store gave %v", err)
	}
	lines := bytes.SplitAfter(backup.Bytes(), []byte("\n"))
	for name, broken := range map[string][]byte{
		"empty":          {},
		"cut off":        backup.Bytes()[:backup.Len()/2],
		"without end":    bytes.Join(lines[:len(lines)-2], nil),
		"a line missing": bytes.Join(append(append([][]byte{}, lines[:5]...), lines[6:]...), nil),
		"a byte changed": bytes.Replace(backup.Bytes(), []byte("gpu-01"), []byte("gpu-07"), 1),
		"more after it":  append(append([]byte{}, backup.Bytes()...), "{}\n"...),
		"something else": []byte("hello\n"),
	} {
		dir := t.TempDir()
		if _, err := RestoreBackup(dir, bytes.NewReader(broken)); err == nil {
			t.Errorf("a backup that is %s was taken", name)
		}
		s := openTest(t, testConfig(t, dir)) // nothing was left
		if n := all[levelrail.Node](t, s, ""); len(n) != 0 {
			t.Errorf("a backup that is %s left %v", name, n)
		}
	}
}

// TestBackupOfMemory: a store in memory is backed up as one on raft is.
func TestBackupOfMemory(t *testing.T) {
	s := OpenMemory(testConfig(t, ""))
	fill(t, s)
	var backup bytes.Buffer
	must(t, s.Backup(within(t, 10*time.Second), &backup))
	dir := t.TempDir()
	_, err := RestoreBackup(dir, &backup)
	must(t, err)
	if got, want := hashOf(t, openTest(t, testConfig(t, dir))), hashOf(t, s); got != want {
		t.Errorf("the restored state has the hash %s, not %s", got, want)
	}
}

// TestPanicIsARefusal: a fault in a command's own code is refused before it reaches the log, and from the log it is one
// sentence that is the same on every server.
func TestPanicIsARefusal(t *testing.T) {
	s := OpenMemory(testConfig(t, ""))
	s.machine.log = discard
	tx := command.NewTx(nil, 1, time.Unix(0, 0), root, "clu")
	_, refuse, err := s.machine.run(tx, node("a"), 1) // there is no state to read
	if err != nil || refuse == nil || refuse.Kind != levelrail.ErrInternal || strings.Contains(refuse.Message, "0x") {
		t.Errorf("it gave %v, %v", refuse, err)
	}
}

// TestAuditIsBounded: only the newest records stay.
func TestAuditIsBounded(t *testing.T) {
	s := OpenMemory(testConfig(t, ""))
	m := s.machine
	for i := range auditKept + 20 {
		data, err := command.Encode(command.Envelope{ClusterID: s.ids.ClusterID, At: time.Unix(int64(i), 0), By: root, Command: command.TokenRevoke{ID: "tok"}})
		must(t, err)
		if _, err := m.apply([]entry{{index: uint64(i + 1), term: 1, data: data}}); err != nil {
			t.Fatal(err)
		}
	}
	a := all[levelrail.Audit](t, s, "")
	if len(a) != auditKept || a[0].Index != 21 {
		t.Errorf("%d records are there, from index %d", len(a), a[0].Index)
	}
}

// TestIdempotencyIsBounded: keys go after a day of log time and when there are too many, and the count stays right when a
// key is used again.
func TestIdempotencyIsBounded(t *testing.T) {
	s := OpenMemory(testConfig(t, ""))
	index := uint64(0)
	use := func(at time.Time, key string) {
		index++
		by := root
		by.IdempotencyKey = key
		data, err := command.Encode(command.Envelope{ClusterID: s.ids.ClusterID, At: at, By: by, Command: command.TokenRevoke{ID: "tok"}})
		must(t, err)
		if _, err := s.machine.apply([]entry{{index: index, term: 1, data: data}}); err != nil {
			t.Fatal(err)
		}
	}
	count := func() (keys, order, counted int) {
		must(t, s.state.view(func(r stateReader) error {
			m, err := readMeta(r)
			r.Each(bucketIdem, "", func(string, []byte) bool { keys++; return true })
			r.Each(bucketIdemOrder, "", func(string, []byte) bool { order++; return true })
			counted = m.Idems
			return err
		}))
		return keys, order, counted
	}
	day := time.Unix(0, 0)
	for i := range idemKept + 10 {
		use(day, fmt.Sprint("k", i))
	}
	if k, o, c := count(); k != idemKept || o != idemKept || c != idemKept {
		t.Errorf("%d keys, %d in order, counted %d", k, o, c)
	}
	use(day.Add(idemKeptFor), "k15") // expired, used anew
	if k, o, c := count(); k != 1 || o != 1 || c != 1 {
		t.Errorf("a day later %d keys, %d in order, counted %d", k, o, c)
	}
}

func BenchmarkPropose(b *testing.B) {
	for name, open := range map[string]func(b *testing.B) *Store{
		"raft":   func(b *testing.B) *Store { return openTest(b, testConfig(b, b.TempDir())) },
		"memory": func(b *testing.B) *Store { return OpenMemory(testConfig(b, "")) },
	} {
		for _, writers := range []int{1, 64} {
			b.Run(fmt.Sprintf("%s/writers=%d", name, writers), func(b *testing.B) {
				s := open(b)
				work := make(chan int)
				done := make(chan error, writers)
				b.ResetTimer()
				for range writers {
					go func() {
						for i := range work {
							if _, err := s.Propose(context.Background(), root, node(fmt.Sprint("n", i%1000))); err != nil {
								done <- err
								return
							}
						}
						done <- nil
					}()
				}
				for i := range b.N {
					work <- i
				}
				close(work)
				for range writers {
					if err := <-done; err != nil {
						b.Fatal(err)
					}
				}
				b.StopTimer()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commands/s")
			})
		}
	}
}

func BenchmarkViewCurrent(b *testing.B) {
	s := openTest(b, testConfig(b, b.TempDir()))
	propose(b, s, node("a"))
	b.ResetTimer()
	for range b.N {
		if err := s.ViewCurrent(context.Background(), func(tx *Tx) error { _, _, err := Get[levelrail.Node](tx, "a"); return err }); err != nil {
			b.Fatal(err)
		}
	}
}
