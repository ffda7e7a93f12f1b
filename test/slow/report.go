package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
}

type timing struct {
	name    string
	seconds float64
	outer   bool // a test that has subtests: their sum, which would only say everything twice
}

func newReport(out io.Writer, patience time.Duration) *report {
	return &report{out: out, patience: patience, output: map[string][]string{}}
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
	r.timings = append(r.timings, timing{name: short(e.Package) + " " + e.Test, seconds: e.Elapsed})
	took := time.Duration(e.Elapsed * float64(time.Second))
	switch {
	case e.Action == "fail":
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

// end prints figures, the slowest tests and the summary.
func (r *report) end(count int) {
	if len(r.figures) > 0 {
		fmt.Fprintln(r.out, "\nfigures:")
		for _, f := range r.figures {
			fmt.Fprintln(r.out, "    "+f)
		}
	}
	for i := range r.timings {
		r.timings[i].outer = slices.ContainsFunc(r.timings, func(t timing) bool { return strings.HasPrefix(t.name, r.timings[i].name+"/") })
	}
	slowest := slices.DeleteFunc(slices.Clone(r.timings), func(t timing) bool { return t.outer || t.seconds < 0.1 })
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

// short is a package's path within this module.
func short(pkg string) string { return strings.TrimPrefix(pkg, "github.com/levelrail/levelrail/") }
