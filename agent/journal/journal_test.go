package journal

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// TestParseForms: a message is found whatever form journalctl gives it.
func TestParseForms(t *testing.T) {
	for name, row := range map[string]struct{ json, want string }{
		"string":               {`{"MESSAGE":"plain"}`, "plain"},
		"bytes with a colour":  {`{"MESSAGE":[27,91,51,49,109,114,101,100,27,91,48,109,33]}`, "red!"},
		"progress bar":         {`{"MESSAGE":[49,48,37,13,53,48,37,13,49,48,48,37]}`, "100%"},
		"not UTF-8":            {`{"MESSAGE":[255,97]}`, "\uFFFDa"},
		"null":                 {`{"MESSAGE":null}`, ""},
		"absent":               {`{}`, ""},
		"repeated":             {`{"MESSAGE":["one","two"]}`, "one\ntwo"},
		"repeated bytes":       {`{"MESSAGE":[[111,110,101],"two"]}`, "one\ntwo"},
		"a lone escape at end": {`{"MESSAGE":"x\u001b"}`, "x"},
		"trailing return":      {`{"MESSAGE":"x\r"}`, "x"},
		"tabs stay":            {`{"MESSAGE":"a\tb"}`, "a\tb"},
	} {
		e, ok := Parse([]byte(row.json))
		if !ok || e.Message != row.want {
			t.Errorf("%s: got %q, %v, want %q", name, e.Message, ok, row.want)
		}
	}
	if _, ok := Parse([]byte("not json")); ok {
		t.Error("a line that is not JSON was taken")
	}
}

// TestParseFields: systemd's own lines belong to the unit that they are about.
func TestParseFields(t *testing.T) {
	e, _ := Parse([]byte(`{"MESSAGE":"Started.","PRIORITY":"5","_PID":"1","_SYSTEMD_UNIT":"init.scope","UNIT":"levelrail-model-a.service","INVOCATION_ID":"abc","__REALTIME_TIMESTAMP":"1700000000000001"}`))
	want := Entry{At: time.UnixMicro(1700000000000001).UTC(), Unit: "levelrail-model-a.service", Invocation: "abc", Priority: 5, Message: "Started.", Manager: true}
	if e != want {
		t.Errorf("got %+v", e)
	}
	e, _ = Parse([]byte(`{"MESSAGE":"x","PRIORITY":3,"_SYSTEMD_UNIT":"a.service","_SYSTEMD_INVOCATION_ID":"def"}`))
	if e.Manager || e.Invocation != "def" || e.Unit != "a.service" {
		t.Errorf("got %+v", e)
	}
}

// fake is a journalctl that prints lines and, asked to follow, waits to be killed. It notes its arguments.
func fake(t *testing.T, script string) Reader {
	t.Helper()
	path := filepath.Join(t.TempDir(), "journalctl")
	if err := os.WriteFile(path, []byte("#!/bin/sh\nprintf '%s\\n' \"$@\" > \"$0.args\"\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	return Reader{Program: path}
}

const runs = `cat <<'END'
{"MESSAGE":"old 1","_SYSTEMD_UNIT":"u","_SYSTEMD_INVOCATION_ID":"r1"}
{"MESSAGE":"failed","UNIT":"u","_PID":"1","_SYSTEMD_UNIT":"init.scope","INVOCATION_ID":"r1"}
{"MESSAGE":"mid 1","_SYSTEMD_UNIT":"u","_SYSTEMD_INVOCATION_ID":"r2"}
{"MESSAGE":"mid 2","_SYSTEMD_UNIT":"u","_SYSTEMD_INVOCATION_ID":"r2"}
{"MESSAGE":"now","_SYSTEMD_UNIT":"u","_SYSTEMD_INVOCATION_ID":"r3"}
END
`

// TestLastRun: the lines of one run are told from those of the runs before and after it.
func TestLastRun(t *testing.T) {
	r := fake(t, runs)
	for _, row := range []struct {
		invocation string
		ended      bool
		run        string
		lines      []string
	}{
		{"r3", false, "r3", []string{"now"}},
		{"r3", true, "r2", []string{"mid 1", "mid 2"}},
		{"r2", false, "r2", []string{"mid 1", "mid 2"}},
		{"", false, "r3", []string{"now"}},
		{"r9", true, "r3", []string{"now"}},
	} {
		run, lines, err := r.LastRun(t.Context(), "u", row.invocation, row.ended)
		if err != nil || run != row.run || !reflect.DeepEqual(lines, row.lines) {
			t.Errorf("%+v: got %q %q %v", row, run, lines, err)
		}
	}
	args, err := os.ReadFile(r.Program + ".args")
	if err != nil || !strings.HasSuffix(string(args), "\n_SYSTEMD_UNIT=u\n+\n_PID=1\nUNIT=u\n") || !strings.Contains(string(args), "--all\n") {
		t.Errorf("journalctl was asked %q, %v", args, err)
	}
}

// TestFollowEnds: following ends with its context, and with the reader of the lines.
func TestFollowEnds(t *testing.T) {
	r := fake(t, runs+"exec sleep 1000\n")
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	if err := r.Each(ctx, Query{Units: []string{"u"}, Follow: true}, func(Entry) error {
		if n++; n == 5 {
			cancel()
		}
		return nil
	}); err != nil || n != 5 {
		t.Errorf("after %d lines: %v", n, err)
	}
	gone := errors.New("reader gone")
	if err := r.Each(t.Context(), Query{Units: []string{"u"}, Follow: true}, func(Entry) error { return gone }); !errors.Is(err, gone) {
		t.Errorf("got %v", err)
	}
}

// TestComplaint: what journalctl says when it fails is part of the error.
func TestComplaint(t *testing.T) {
	r := fake(t, "echo 'Failed to parse timestamp: never' >&2; exit 1\n")
	err := r.Each(t.Context(), Query{Units: []string{"u"}, Since: "never"}, func(Entry) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "Failed to parse timestamp") {
		t.Errorf("got %v", err)
	}
}

// TestForged: a line belongs to the unit that journald saw it come from, whatever its sender wrote into it.
func TestForged(t *testing.T) {
	e, _ := Parse([]byte(`{"MESSAGE":"I am systemd","_PID":"4711","_SYSTEMD_UNIT":"user@1000.service","UNIT":"levelrail-model-chat.service","INVOCATION_ID":"abc"}`))
	if e.Unit != "user@1000.service" || e.Manager || e.Invocation != "" {
		t.Errorf("it counts as %+v", e)
	}
}

// TestNoUnit: a query without a unit reads nothing: it would be the journal of the whole machine.
func TestNoUnit(t *testing.T) {
	for _, units := range [][]string{nil, {}, {""}, {"u", ""}} {
		err := fake(t, runs).Each(t.Context(), Query{Units: units}, func(e Entry) error { t.Errorf("%q: read %+v", units, e); return nil })
		if err == nil || !strings.Contains(err.Error(), "no unit") {
			t.Errorf("%q: %v", units, err)
		}
	}
}
