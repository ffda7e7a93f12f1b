package public

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func newSwitch(t *testing.T) (Switch, *int) {
	reloads := new(int)
	return Switch{File: filepath.Join(t.TempDir(), "sites", "public.caddy"), Validate: func() (string, error) { return "", nil },
		Reload: func() error { *reloads++; return nil }}, reloads
}

// TestOnOff: each change is made and told once; saying it again changes nothing.
func TestOnOff(t *testing.T) {
	s, reloads := newSwitch(t)
	for i, step := range []struct {
		do      func() (bool, error)
		changed bool
		there   bool
		reloads int
	}{{s.Off, false, false, 0}, {s.On, true, true, 1}, {s.On, false, true, 1}, {s.Off, true, false, 2}, {s.Off, false, false, 2}} {
		changed, err := step.do()
		_, stat := os.Stat(s.File)
		if err != nil || changed != step.changed || (stat == nil) != step.there || *reloads != step.reloads {
			t.Errorf("step %d: changed %v, there %v, %d reloads, %v", i, changed, stat == nil, *reloads, err)
		}
	}
}

// TestOnRefused: a taken port, an invalid configuration and somebody else's file leave everything as it was.
func TestOnRefused(t *testing.T) {
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for want, change := range map[string]func(*Switch){
		"ss -ltnp": func(s *Switch) { s.Ports = []int{l.Addr().(*net.TCPAddr).Port} },
		"Caddyfile:7": func(s *Switch) {
			s.Validate = func() (string, error) { return "Caddyfile:7: wrong", errors.New("exit status 1") }
		},
		"somebody else": func(s *Switch) { os.MkdirAll(filepath.Dir(s.File), 0o755); os.WriteFile(s.File, []byte("mine"), 0o644) },
	} {
		s, reloads := newSwitch(t)
		change(&s)
		before, _ := os.ReadFile(s.File)
		changed, err := s.On()
		after, _ := os.ReadFile(s.File)
		if changed || err == nil || !strings.Contains(err.Error(), want) || string(before) != string(after) || *reloads != 0 {
			t.Errorf("%s: changed %v, %v, file %q", want, changed, err, after)
		}
	}
}
