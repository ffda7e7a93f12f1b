package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// event is one line of go test -json (go doc test2json).
type event struct {
	Action     string
	Package    string
	ImportPath string // of build output
	Test       string
	Output     string
	Elapsed    float64 // seconds
	Key, Value string  // of an attribute
}

// report turns events into text.
type report struct {
	out      io.Writer
	patience time.Duration

	output  map[string][]string // what an unfinished package or test has printed, by package or package and test
	summary []string            // the line of each package that had tests, in the order in which they ended
	figures []string            // attributes of tests
	timings []timing
	running map[string][]string // tests that have begun and not ended, by import path
	failed  map[string][]string // tests that failed, by import path; a package that failed as a whole has none
}

type timing struct {
	name    string
	seconds float64
}

func newReport(out io.Writer, patience time.Duration) *report {
	return &report{out: out, patience: patience, output: map[string][]string{}, running: map[string][]string{}, failed: map[string][]string{}}
}

// read takes events until the input ends. Lines that are no events (a failing go command says things) pass through.
func (r *report) read(in *bufio.Reader) error {
	for {
		line, err := in.ReadString('\n')
		if line != "" {
			var e event
			if json.Unmarshal([]byte(line), &e) != nil || e.Action == "" {
				fmt.Fprint(r.out, line)
			} else {
				r.take(e)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

func (r *report) take(e event) {
	key := e.Package + " " + e.Test
	switch e.Action {
	case "run":
		r.running[e.Package] = append(r.running[e.Package], e.Test)
	case "build-output":
		fmt.Fprint(r.out, e.Output)
	case "output":
		r.output[key] = append(r.output[key], e.Output)
	case "attr":
		r.figures = append(r.figures, fmt.Sprintf("%s: %s %s", e.Test, e.Key, e.Value))
	case "pass", "fail", "skip":
		if e.Test == "" {
			r.endPackage(e)
		} else {
			r.endTest(e)
		}
		delete(r.output, key)
	}
}

func (r *report) endTest(e event) {
	r.running[e.Package] = slices.DeleteFunc(r.running[e.Package], func(test string) bool { return test == e.Test })
	r.timings = append(r.timings, timing{name: short(e.Package) + " " + e.Test, seconds: e.Elapsed})
	took := time.Duration(e.Elapsed * float64(time.Second))
	switch {
	case e.Action == "fail":
		r.failed[e.Package] = append(r.failed[e.Package], e.Test)
		for _, line := range r.output[e.Package+" "+e.Test] {
			if !framing(line) {
				fmt.Fprint(r.out, line)
			}
		}
	case e.Action == "skip":
		fmt.Fprintf(r.out, "    skipped %s %s: %s\n", short(e.Package), e.Test, reason(r.output[e.Package+" "+e.Test]))
	case took >= r.patience:
		fmt.Fprintf(r.out, "    %s %s passed after %.1f s\n", short(e.Package), e.Test, e.Elapsed)
	}
}

// endPackage prints what the package itself said and keeps its summary line.
func (r *report) endPackage(e event) {
	if e.Action == "fail" {
		// Of a process that ended in mid-test (a timeout, a panic elsewhere, an exit), go test says no more than that it
		// ended: what the tests printed that were running then is the reason, and they are what failed.
		for _, test := range slices.Backward(slices.Clone(r.running[e.Package])) {
			r.endTest(event{Action: "fail", Package: e.Package, Test: test})
			delete(r.output, e.Package+" "+test)
		}
		if r.failed[e.Package] == nil { // it does not build, or it ended outside any test
			r.failed[e.Package] = []string{}
		}
	}
	for _, line := range r.output[e.Package+" "] {
		if framing(line) || line == "PASS\n" || strings.HasPrefix(line, "?   \t") {
			continue // packages without tests are not worth a line
		}
		fmt.Fprint(r.out, line)
		if strings.HasPrefix(line, "ok  \t") || strings.HasPrefix(line, "FAIL\t") {
			r.summary = append(r.summary, line)
		}
	}
}

// failures are the lines that name each failed test, with those of its subtests that failed, and how to repeat it: as a
// whole, since subtests often build on one another, and with the variables of the environment that are for tests.
func (r *report) failures(race bool, environment []string) (lines []string) {
	variables := ""
	for _, v := range environment {
		if strings.HasPrefix(v, "LEVELRAIL_TEST_") {
			variables += v + " "
		}
	}
	for _, pkg := range slices.Sorted(maps.Keys(r.failed)) {
		again := variables + "make test-one PACKAGE=./" + strings.TrimPrefix(strings.TrimPrefix(pkg, module), "/")
		if race {
			again += " RACE=1"
		}
		if len(r.failed[pkg]) == 0 {
			lines = append(lines, fmt.Sprintf("    %s, as a whole\n        again: %s\n", short(pkg), again))
		}
		subtests := map[string][]string{}
		for _, test := range r.failed[pkg] {
			top, sub, _ := strings.Cut(test, "/")
			if subtests[top] == nil {
				subtests[top] = []string{}
			}
			if sub != "" && !slices.ContainsFunc(r.failed[pkg], func(other string) bool { return strings.HasPrefix(other, test+"/") }) {
				subtests[top] = append(subtests[top], sub)
			}
		}
		for _, top := range slices.Sorted(maps.Keys(subtests)) {
			which := ""
			if subs := subtests[top]; len(subs) > 0 {
				which = " (" + strings.Join(subs, ", ") + ")"
			}
			lines = append(lines, fmt.Sprintf("    %s %s%s\n        again: %s RUN='^%s$'\n", short(pkg), top, which, again, top))
		}
	}
	return lines
}

// slowLines are the times of the tests that took more than a second, as "seconds name".
func (r *report) slowLines() (lines []string) {
	for _, t := range r.timings {
		if !r.outer(t) && t.seconds >= 1 {
			lines = append(lines, fmt.Sprintf("%.1f %s\n", t.seconds, t.name))
		}
	}
	return lines
}

// outer tells of a test that has subtests: its time is their sum, which would only say everything twice.
func (r *report) outer(t timing) bool {
	return slices.ContainsFunc(r.timings, func(other timing) bool { return strings.HasPrefix(other.name, t.name+"/") })
}

// end prints figures, the slowest tests and the summary.
func (r *report) end(count int) {
	if len(r.figures) > 0 {
		fmt.Fprintln(r.out, "\nfigures:")
		for _, f := range r.figures {
			fmt.Fprintln(r.out, "    "+f)
		}
	}
	slowest := slices.DeleteFunc(slices.Clone(r.timings), func(t timing) bool { return t.seconds < 0.1 || r.outer(t) })
	slices.SortStableFunc(slowest, func(a, b timing) int {
		switch {
		case a.seconds > b.seconds:
			return -1
		case a.seconds < b.seconds:
			return 1
		}
		return 0
	})
	if len(slowest) > 0 {
		fmt.Fprintln(r.out, "\nslowest tests:")
		for _, t := range slowest[:min(count, len(slowest))] {
			fmt.Fprintf(r.out, "    %6.1f s  %s\n", t.seconds, t.name)
		}
	}
	if len(r.summary) > 0 {
		fmt.Fprintln(r.out)
		for _, line := range r.summary {
			fmt.Fprint(r.out, line)
		}
	}
}

// framing tells whether a line is what -v adds around a test's own output.
func framing(line string) bool {
	return strings.HasPrefix(strings.TrimLeft(line, " "), "=== ")
}

// reason is what a skipped test said: its last own line.
func reason(lines []string) string {
	for _, line := range slices.Backward(lines) {
		if text := strings.TrimSpace(line); text != "" && !framing(line) && !strings.HasPrefix(text, "--- ") {
			return text
		}
	}
	return "no reason given"
}

const module = "github.com/levelrail/levelrail"

// short is a package's path within this module.
func short(pkg string) string { return strings.TrimPrefix(pkg, module+"/") }
