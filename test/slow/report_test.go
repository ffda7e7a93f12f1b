package main

import (
	"bufio"
	"strings"
	"testing"
	"time"
)

// TestReport: a failing test's output is printed, a passing one's is not; figures, the slowest tests and the packages'
// own lines come at the end, and a test's time is not told twice through its parent.
func TestReport(t *testing.T) {
	const in = `go: something that is no event
{"Action":"start","Package":"m/a"}
{"Action":"run","Package":"m/a","Test":"TestGood"}
{"Action":"output","Package":"m/a","Test":"TestGood","Output":"=== RUN   TestGood\n"}
{"Action":"output","Package":"m/a","Test":"TestGood","Output":"    a_test.go:1: noise\n"}
{"Action":"attr","Package":"m/a","Test":"TestGood","Key":"ratio","Value":"1.04 of plain"}
{"Action":"pass","Package":"m/a","Test":"TestGood/sub","Elapsed":6}
{"Action":"pass","Package":"m/a","Test":"TestGood","Elapsed":6.5}
{"Action":"output","Package":"m/a","Test":"TestBad","Output":"=== RUN   TestBad\n"}
{"Action":"output","Package":"m/a","Test":"TestBad","Output":"    a_test.go:9: want 1\n"}
{"Action":"output","Package":"m/a","Test":"TestBad","Output":"--- FAIL: TestBad (0.20s)\n"}
{"Action":"fail","Package":"m/a","Test":"TestBad","Elapsed":0.2}
{"Action":"output","Package":"m/a","Test":"TestNot","Output":"    a_test.go:12: needs root\n"}
{"Action":"output","Package":"m/a","Test":"TestNot","Output":"--- SKIP: TestNot (0.00s)\n"}
{"Action":"skip","Package":"m/a","Test":"TestNot","Elapsed":0}
{"Action":"output","Package":"m/a","Output":"FAIL\n"}
{"Action":"output","Package":"m/a","Output":"FAIL\tm/a\t6.700s\n"}
{"Action":"fail","Package":"m/a","Elapsed":6.7}
{"Action":"output","Package":"m/b","Output":"PASS\n"}
{"Action":"output","Package":"m/b","Output":"ok  \tm/b\t0.100s\n"}
{"Action":"pass","Package":"m/b","Elapsed":0.1}
`
	const want = `go: something that is no event
    m/a TestGood/sub passed after 6.0 s
    m/a TestGood passed after 6.5 s
    a_test.go:9: want 1
--- FAIL: TestBad (0.20s)
    skipped m/a TestNot: a_test.go:12: needs root
FAIL
FAIL	m/a	6.700s
ok  	m/b	0.100s

figures:
    TestGood: ratio 1.04 of plain

slowest tests:
       6.0 s  m/a TestGood/sub
       0.2 s  m/a TestBad

FAIL	m/a	6.700s
ok  	m/b	0.100s
`
	var out strings.Builder
	r := newReport(&out, 5*time.Second)
	if err := r.read(bufio.NewReader(strings.NewReader(in))); err != nil {
		t.Fatal(err)
	}
	r.end(10)
	if out.String() != want {
		t.Errorf("printed:\n%s\nwant:\n%s", out.String(), want)
	}
}

// TestFailures: each failed test is named with what of it failed and the command that repeats it; so is a test that was
// running when its process ended, whose output is shown, and a package that failed outside any test.
func TestFailures(t *testing.T) {
	const in = `{"Action":"run","Package":"github.com/levelrail/levelrail/agent","Test":"TestBad"}
{"Action":"run","Package":"github.com/levelrail/levelrail/agent","Test":"TestBad/a_b"}
{"Action":"run","Package":"github.com/levelrail/levelrail/agent","Test":"TestBad/a_b/c"}
{"Action":"fail","Package":"github.com/levelrail/levelrail/agent","Test":"TestBad/a_b/c"}
{"Action":"fail","Package":"github.com/levelrail/levelrail/agent","Test":"TestBad/a_b"}
{"Action":"fail","Package":"github.com/levelrail/levelrail/agent","Test":"TestBad"}
{"Action":"run","Package":"github.com/levelrail/levelrail/agent","Test":"TestGood"}
{"Action":"pass","Package":"github.com/levelrail/levelrail/agent","Test":"TestGood"}
{"Action":"run","Package":"github.com/levelrail/levelrail/agent","Test":"TestHangs"}
{"Action":"output","Package":"github.com/levelrail/levelrail/agent","Test":"TestHangs","Output":"panic: test timed out after 2s\n"}
{"Action":"fail","Package":"github.com/levelrail/levelrail/agent","Elapsed":2.021}
{"Action":"fail","Package":"github.com/levelrail/levelrail","Elapsed":0.021}
`
	var out strings.Builder
	r := newReport(&out, 5*time.Second)
	if err := r.read(bufio.NewReader(strings.NewReader(in))); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); got != "panic: test timed out after 2s\n" {
		t.Errorf("printed %q", got)
	}
	const want = `    github.com/levelrail/levelrail, as a whole
        again: make test-one PACKAGE=./
    agent TestBad (a_b/c)
        again: make test-one PACKAGE=./agent RUN='^TestBad$'
    agent TestHangs
        again: make test-one PACKAGE=./agent RUN='^TestHangs$'
`
	if got := strings.Join(r.failures(false, nil), ""); got != want {
		t.Errorf("failures:\n%s\nwant:\n%s", got, want)
	}
	if got := strings.Join(r.failures(true, []string{"HOME=/root", "LEVELRAIL_TEST_CLIENTS=all"}), ""); !strings.Contains(got, "again: LEVELRAIL_TEST_CLIENTS=all make test-one PACKAGE=./agent RACE=1 RUN='^TestBad$'") {
		t.Errorf("failures under the race detector:\n%s", got)
	}
}
