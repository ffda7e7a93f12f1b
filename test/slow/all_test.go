package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// place is a repository of its own with the scripts of long runs, over targets and fixtures that the test makes.
type place struct {
	t   *testing.T
	dir string
}

func newPlace(t *testing.T, makefile string) *place {
	t.Helper()
	p := &place{t: t, dir: t.TempDir()}
	for _, name := range []string{"all", "stage", "long"} {
		text, err := os.ReadFile(filepath.Join("..", name))
		if err != nil {
			t.Fatal(err)
		}
		p.write("test/"+name, string(text))
	}
	p.write("test/fixtures/get", "#!/bin/bash\necho fixtures are there\n")
	p.write("Makefile", makefile)
	p.git("init", "-q")
	p.commit("first")
	return p
}

func (p *place) write(name, text string) {
	p.t.Helper()
	path := filepath.Join(p.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		p.t.Fatal(err)
	}
}

func (p *place) git(args ...string) {
	p.t.Helper()
	if out, err := p.run(nil, append([]string{"git", "-c", "user.name=t", "-c", "user.email=t@localhost"}, args...)...); err != nil {
		p.t.Fatal(err, out)
	}
}

func (p *place) commit(message string) {
	p.t.Helper()
	p.git("add", "-A")
	p.git("commit", "-q", "-m", message)
}

func (p *place) run(env []string, command ...string) (string, error) {
	cmd := exec.CommandContext(p.t.Context(), command[0], command[1:]...)
	cmd.Dir = p.dir
	for _, v := range os.Environ() { // this may itself be part of such a run
		if name, _, _ := strings.Cut(v, "="); !strings.Contains("STAGES FAILURES SUMMARY SLOWEST BEGAN LONG LONG_SINCE MAKEFLAGS MAKELEVEL MAKEOVERRIDES MFLAGS AGAIN", name) {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

const targets = `check-format:
	@AGAIN='make check-format' test/stage format $(FORMAT)
check-vet:
	@AGAIN='make check-vet' test/stage vet true
check-unit:
	@test/stage unit sh -c 'echo "    agent TestBad" >>$$FAILURES; echo "FAIL	agent	1s" >>$$SUMMARY; echo "2.5 agent TestBad" >>$$SLOWEST; exit 1'
test-race:
	@test/stage race true
	@echo "ok	race	1s" >>$$SUMMARY
deb:
	@AGAIN='make deb' test/stage packages $(DEB)
test-host:
	@test/stage host true
	@echo "ok	host	1s" >>$$SUMMARY
`

// TestAllGoesOn: a stage that fails keeps no other from running but those that need what it makes; the run fails, and its
// end names everything that failed with the way to repeat it, the slow tests, and last go test's own lines.
func TestAllGoesOn(t *testing.T) {
	for _, c := range []struct {
		name, format, deb string
		want              []string
		wantNot           string
	}{
		{"one that others do not need", "false", "true", []string{
			"    format\n        again: make check-format\n", "    agent TestBad\n", "==> vet: done", "==> race: done", "==> host: done", "2.5 s  agent TestBad"}, "not run"},
		{"packages", "true", "false", []string{
			"    packages\n        again: make deb\n", "    host tests: not run, since there are no packages\n        again: make test-host\n", "    agent TestBad\n", "==> race: done"}, "==> host"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPlace(t, "FORMAT="+c.format+"\nDEB="+c.deb+"\n"+targets)
			out, err := p.run(nil, "test/all")
			if err == nil {
				t.Error("it says that all is well")
			}
			for _, want := range c.want {
				if !strings.Contains(out, want) {
					t.Errorf("there is no %q", want)
				}
			}
			if strings.Contains(out, c.wantNot) {
				t.Errorf("it says %q", c.wantNot)
			}
			if _, end, ok := strings.Cut(out, "\nfailed:\n"); !ok || !regexp.MustCompile(`\n\n((ok|FAIL)\t.*\n)+$`).MatchString(end) {
				t.Error("it does not end with what failed and go test's lines")
			}
			if t.Failed() {
				t.Logf("it printed\n%s", out)
			}
		})
	}
}

// TestLongTouched: of the long suites those run whose paths the last commits touched, with their budget, none after the
// time is over; those left are named with the reason. A suite that fails fails the run, and is named with its command.
func TestLongTouched(t *testing.T) {
	p := newPlace(t, "")
	script, err := os.ReadFile(filepath.Join(p.dir, "test/long"))
	if err != nil {
		t.Fatal(err)
	}
	table := regexp.MustCompile(`(?s)(<<'END'\n# name [^\n]*\n).*?\nEND\n`)
	if !table.Match(script) {
		t.Fatal("test/long has no table")
	}
	p.write("test/long", table.ReplaceAllString(string(script), `${1}late | slow one | a | 9 | | echo late runs
bad | fails, and reads what it is given | a b | 1 | N=3 | cat; test "$$N" != 3
other | not touched | c | 1 | | echo other runs
END
`))
	p.write("c/x", "1")
	p.commit("c")
	p.write("a/x", "1")
	p.commit("a")
	out, err := p.run([]string{"LONG_SINCE=HEAD~1", "FAILURES=" + filepath.Join(p.dir, "failures")}, "test/long", "--touched")
	if err == nil || !strings.Contains(out, "late runs") || strings.Contains(out, "other runs") || !strings.Contains(out, "other: nothing that it covers has changed since") || strings.Index(out, "long: bad") > strings.Index(out, "long: late") {
		t.Errorf("%v\n%s", err, out)
	}
	if failures, _ := os.ReadFile(filepath.Join(p.dir, "failures")); string(failures) != "    long: bad\n        again: make test-long SUITE=bad\n" {
		t.Errorf("failures:\n%s", failures)
	}
	out, err = p.run([]string{"LONG_SINCE=HEAD~1"}, "test/long", "--touched", "--until", "1")
	if err != nil || strings.Contains(out, "late runs") || !strings.Contains(out, "late: no time left") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err = p.run(nil, "test/long", "bad"); err != nil {
		t.Errorf("without CI's budget: %v\n%s", err, out)
	}
	if out, err = p.run(nil, "test/long", "nothing"); err == nil || !strings.Contains(out, "no long suite is called nothing") {
		t.Errorf("%v\n%s", err, out)
	}
}
