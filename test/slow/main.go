// Command slow runs go test and prints what go test would print, plus what a reader of a long run wants to know: which
// test is taking its time while it does, the figures that tests report with t.Attr, and the slowest tests at the end.
//
//	go run ./test/slow [-n 10] -- ./... [any argument of go test]
//
// Its last lines are go test's own summary, one line a package. For a run of several stages it appends to files, where
// these variables name some: the summary to $SUMMARY, each failed test with the command that repeats it to $FAILURES, and
// the time of each slow test to $SLOWEST, as "seconds name". Its exit status is go test's.
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	count := flag.Int("n", 10, "how many of the slowest tests to print")
	patience := flag.Duration("patience", 5*time.Second, "a test that took longer is named as soon as it ends")
	flag.Parse()

	// The interrupt goes to the whole group; go test ends its tests, and what they printed is still shown.
	// Caught and not ignored: a child would inherit that.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGINT)
	cmd := exec.Command("go", append([]string{"test", "-json"}, flag.Args()...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "slow: start go test:", err)
		os.Exit(1)
	}
	r := newReport(os.Stdout, *patience)
	if err := r.read(bufio.NewReaderSize(out, 1<<20)); err != nil {
		fmt.Fprintln(os.Stderr, "slow: read what go test prints:", err)
		io.Copy(io.Discard, out) // let it end
	}
	err = cmd.Wait()
	r.end(*count)
	for variable, lines := range map[string][]string{"SUMMARY": r.summary, "FAILURES": r.failures(slices.Contains(flag.Args(), "-race"), os.Environ()), "SLOWEST": r.slowLines()} {
		if path := os.Getenv(variable); path != "" {
			if err := appendLines(path, lines); err != nil {
				fmt.Fprintf(os.Stderr, "slow: append to $%s: %v\n", variable, err)
				os.Exit(1)
			}
		}
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		os.Exit(max(exit.ExitCode(), 1))
	} else if err != nil {
		fmt.Fprintln(os.Stderr, "slow: go test:", err)
		os.Exit(1)
	}
}

func appendLines(path string, lines []string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(strings.Join(lines, ""))
	return errors.Join(err, f.Close())
}
