// Command gateway measures the gateway against what it stands on: plain Caddy with reverse_proxy, the same program on the
// same machine in the same minute, and the engine stub without anything between.
//
//	go run ./test/bench/gateway -quick     four minutes
//	go run ./test/bench/gateway            less than twenty, ten of them the soak
//
// The gateway runs with the packaged configuration and a server's default settings: it finds each key among a thousand,
// counts it against limits of every kind, reads the usage of every answer, reports it to a control plane (the look-up ends
// with a comparison of what was reported and what was answered), and writes a line of log for every request. Plain Caddy does
// none of that: it has reverse_proxy and no log.
//
// Every proxy has one core to itself, with GOMAXPROCS=1; load and stub have another one. What is compared takes turns, many
// short ones, and what is reported are medians of the ratios of neighbours, so that a busy machine disturbs both sides
// alike; rounds in which other processes had the core are measured again, and what they had of it is taken off the time.
// CPU is the scheduler's own count of the proxy's threads. Everything runs on loopback and Unix sockets, in processes of its
// own that end with it.
//
// The last line on standard output is one JSON object with the ratios, ours over the reference; everything before it is for
// people. The exit status is 1 when something failed, and with -check also when a floor was missed.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/levelrail/levelrail/test/rig"
)

// pinned is set, in the environment, in the process that runs the benchmark: DIR:PROXYCORE.
const pinned = "LEVELRAIL_BENCH"

// scenarios in the order in which they run.
var scenarios = []struct {
	name string
	run  func(*bench) error
}{
	{"1k", (*bench).small}, {"100k", (*bench).large}, {"sse", (*bench).events}, {"memory", (*bench).memory}, {"lookup", (*bench).lookup}, {"soak", (*bench).soak},
}

func main() {
	var b bench
	flag.BoolVar(&b.quick, "quick", false, "few and short rounds, for a look")
	flag.DurationVar(&b.soakFor, "soak", 0, "how long the soak runs; default 10m, with -quick 12s")
	flag.BoolVar(&b.check, "check", false, "exit with status 1 when a floor is missed")
	flag.StringVar(&b.profiles, "profile", "", "a directory for CPU profiles of both sides")
	only := flag.String("only", "", "scenarios to run, with commas between: 1k,100k,sse,memory,lookup,soak; default all")
	keys := flag.Int("keys", 1_000_000, "how many keys the large table of the look-up has")
	flag.Parse()
	b.manyKeys = *keys
	if b.soakFor == 0 {
		if b.soakFor = 10 * time.Minute; b.quick {
			b.soakFor = 12 * time.Second
		}
	}
	if flag.NArg() > 0 {
		fail(errors.New("this takes flags only; -help tells which"))
	}
	var wanted []string
	for _, name := range strings.FieldsFunc(*only, func(r rune) bool { return r == ',' }) {
		if !slices.ContainsFunc(scenarios, func(s struct {
			name string
			run  func(*bench) error
		}) bool {
			return s.name == name
		}) {
			fail(fmt.Errorf("there is no scenario %q", name))
		}
		wanted = append(wanted, name)
	}
	if os.Getenv(pinned) == "" {
		fail(again())
	}
	dir, core, _ := strings.Cut(os.Getenv(pinned), ":")
	b.dir = dir
	var err error
	if b.core, err = strconv.Atoi(core); err != nil {
		fail(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	b.ctx = ctx
	missed, err := b.run(wanted)
	prefer(0) // the session may be somebody's shell
	err = errors.Join(err, os.RemoveAll(dir))
	if err != nil {
		fail(err)
	}
	if b.check && missed > 0 {
		fail(fmt.Errorf("%d floors missed", missed))
	}
}

// priority is the niceness of the programs under test and of the load.
const priority = -15

// prefer sets the niceness of this thread, and of its session against others, where the kernel shares the cores out by
// session (autogroups). Without the right to it nothing changes.
func prefer(nice int) {
	syscall.Setpriority(syscall.PRIO_PROCESS, 0, nice)
	os.WriteFile("/proc/self/autogroup", []byte(strconv.Itoa(nice)), 0)
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// again builds the programs, with all cores, and starts this program anew on a core of its own.
func again() error {
	cpus, err := rig.CPUs()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "lrbench")
	if err != nil {
		return err
	}
	fmt.Println("building levelrail-gateway and the stub …")
	for _, pkg := range []string{"./cmd/levelrail-gateway", "./test/engines/cmd/stub"} {
		if _, err := rig.Build(context.Background(), pkg, dir); err != nil {
			return errors.Join(err, os.RemoveAll(dir))
		}
	}
	proxy, load := cpus[0], cpus[0]
	if len(cpus) > 1 {
		load = cpus[1]
	} else {
		fmt.Println("there is one core only: load and proxies share it, and the ratios say less")
	}
	runtime.LockOSThread()
	if err := rig.Pin(load); err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	// Where that is allowed (root), what is measured goes before what else runs here; else rounds are measured again.
	prefer(priority)
	self, err := os.Executable()
	if err != nil {
		return err
	}
	// The new program's threads all inherit this one's core.
	return syscall.Exec(self, os.Args, append(os.Environ(), "GOMAXPROCS=1", fmt.Sprintf("%s=%s:%d", pinned, dir, proxy)))
}

// run runs the scenarios and prints what they find. It returns how many floors were missed.
func (b *bench) run(wanted []string) (missed int, err error) {
	b.result = map[string]float64{}
	began := time.Now()
	if err := b.start(); err != nil {
		return 0, errors.Join(err, b.end())
	}
	b.heading()
	for _, s := range scenarios {
		if len(wanted) > 0 && !slices.Contains(wanted, s.name) {
			continue
		}
		if err := b.ctx.Err(); err != nil {
			return 0, errors.Join(errors.New("interrupted"), b.end())
		}
		if err := s.run(b); err != nil {
			return 0, errors.Join(fmt.Errorf("scenario %s: %w", s.name, err), b.end())
		}
	}
	if err := b.end(); err != nil {
		return 0, err
	}
	missed = b.verdicts(time.Since(began))
	out, err := json.Marshal(b.result)
	if err != nil {
		return 0, err
	}
	fmt.Println(string(out))
	return missed, nil
}

// path is a file of the benchmark's own directory.
func (b *bench) path(name string) string { return filepath.Join(b.dir, name) }
