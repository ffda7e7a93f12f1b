package raftstore

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/raftstore/command"
)

// TestMain runs the writer that TestKillLosesNothing kills, or prints a state's hash, when it is started as that.
func TestMain(m *testing.M) {
	if dir := os.Getenv("RAFTSTORE_TEST_HASH"); dir != "" {
		if err := printHash(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if dir := os.Getenv("RAFTSTORE_TEST_WRITER"); dir != "" {
		if err := writeForever(dir, os.Getenv("RAFTSTORE_TEST_LIFE")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const crashWriters = 8

// writeForever opens the store and writes from several goroutines: nodes of new names, and batches of usage that add one
// request each. It prints a line for each write once it is acknowledged.
func writeForever(dir, life string) error {
	s, err := Open(context.Background(), Config{Dir: dir, HeartbeatTimeout: 40 * time.Millisecond, SnapshotThreshold: 100, SnapshotInterval: 20 * time.Millisecond, TrailingLogs: 50, MinFreeBytes: 1})
	if err != nil {
		return err
	}
	fmt.Println("open")
	failed := make(chan error)
	for w := range crashWriters {
		go func() {
			gateway := fmt.Sprintf("gw_%s_%d", life, w)
			for n := 1; ; n++ {
				id := fmt.Sprintf("node_%s_%d_%d", life, w, n)
				if _, err := s.Propose(context.Background(), root, node(id)); err != nil {
					failed <- err
					return
				}
				fmt.Println("node", id)
				u := command.UsageRecord{GatewayID: gateway, Sequence: uint64(n), Rows: []levelrail.Usage{{Hour: time.Unix(0, 0), KeyID: gateway, Model: "m", Counts: levelrail.Counts{Requests: 1}}}}
				if _, err := s.Propose(context.Background(), root, u); err != nil {
					failed <- err
					return
				}
				fmt.Println("usage", gateway, n)
			}
		}()
	}
	return <-failed
}

// TestKillLosesNothing: a server that is killed at any moment, also while it starts or takes a snapshot, has every write
// that it acknowledged when it is started again, counted once.
func TestKillLosesNothing(t *testing.T) {
	dir := t.TempDir()
	nodes, usage := map[string]bool{}, map[string]int{}
	lives := 12
	if testing.Short() {
		lives = 3
	}
	served := 0
	for life := range lives {
		before := len(nodes)
		runAndKill(t, dir, life, nodes, usage)
		if len(nodes) > before {
			served++
		}
	}
	if served < lives/3 {
		t.Errorf("only %d of %d lives came to write anything", served, lives)
	}

	s := openTest(t, testConfig(t, dir))
	for id := range nodes {
		if _, there := find[levelrail.Node](t, s, id); !there {
			t.Errorf("the acknowledged node %s is lost", id)
		}
	}
	for gateway, n := range usage {
		rows := all[levelrail.Usage](t, s, "1970010100/"+gateway+"/")
		// One more may have been written whose answer nobody saw.
		if len(rows) != 1 || rows[0].Requests < int64(n) || rows[0].Requests > int64(n+1) {
			t.Errorf("%d requests of %s were acknowledged, and the rows are %+v", n, gateway, rows)
		}
	}
	t.Logf("%d lives, %d of them wrote; %d nodes and %d counters acknowledged; last index %d, snapshot %d", lives, served, len(nodes), len(usage), s.Status().Index, s.Status().SnapshotIndex)
	if s.Status().SnapshotIndex == 0 {
		t.Error("no snapshot was ever taken, so none was killed")
	}
}

// runAndKill lets the writer live for a random while, and notes what it acknowledged.
func runAndKill(t *testing.T, dir string, life int, nodes map[string]bool, usage map[string]int) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), "RAFTSTORE_TEST_WRITER="+dir, "RAFTSTORE_TEST_LIFE="+strconv.Itoa(life))
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// Most are killed at some moment after they began to serve, every fourth at any moment after its start.
	pause := time.Duration(rand.Int64N(int64(400 * time.Millisecond)))
	var killed atomic.Bool
	kill := func() {
		time.AfterFunc(pause, func() {
			killed.Store(true)
			_ = cmd.Process.Kill()
		})
	}
	if life%4 == 3 {
		kill()
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		switch {
		case len(f) == 1 && f[0] == "open":
			if life%4 != 3 {
				kill()
			}
		case len(f) == 2 && f[0] == "node":
			nodes[f[1]] = true
		case len(f) == 3 && f[0] == "usage":
			n, err := strconv.Atoi(f[2])
			if err != nil {
				continue // the line that the kill cut off
			}
			usage[f[1]] = max(usage[f[1]], n)
		}
	}
	err = cmd.Wait()
	if !killed.Load() {
		t.Fatalf("life %d ended by itself: %v\n%s", life, err, errs.String())
	}
}
