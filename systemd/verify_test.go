package systemd

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// analyze is systemd-analyze where there is one; the host tests run the same checks on every Debian.
func analyze(t *testing.T) string {
	t.Helper()
	p, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("no systemd-analyze on this machine; the host tests have one")
	}
	return p
}

// written puts the units into one directory, with stand-ins for the programs and units they name: verify looks them up.
func written(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	program := filepath.Join(dir, "program")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	execStart := regexp.MustCompile(`(?m)^ExecStart=\S+`)
	for _, u := range units(t) {
		text, err := Render(u)
		if err != nil {
			t.Fatal(err)
		}
		text = execStart.ReplaceAllString(text, "ExecStart="+program)
		if err := os.WriteFile(filepath.Join(dir, u.Name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{
		EnginesTarget: "[Unit]\nDescription=engines\n", EnginesSlice: "[Slice]\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// verify returns what systemd-analyze says of one unit file. It ends with 0 even for unknown keys on 252, so its talk decides.
func verify(t *testing.T, tool, dir, name string) (complaints []string) {
	t.Helper()
	cmd := exec.Command(tool, "verify", "--man=no", "--recursive-errors=no", filepath.Join(dir, name))
	cmd.Env = append(os.Environ(), "SYSTEMD_UNIT_PATH="+dir+":", "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	if err != nil {
		complaints = append(complaints, err.Error())
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, dir) || strings.Contains(line, name) {
			complaints = append(complaints, strings.TrimSpace(line))
		}
	}
	return complaints
}

// TestVerify: systemd knows every key and value.
func TestVerify(t *testing.T) {
	tool, dir := analyze(t), written(t)
	for _, u := range units(t) {
		for _, c := range verify(t, tool, dir, u.Name) {
			t.Errorf("%s: %s", u.Name, c)
		}
	}
	// The check itself must be able to fail.
	if err := os.WriteFile(filepath.Join(dir, "bad.service"), []byte("[Service]\nExecStart=/bin/true\nNoSuchKey=1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if len(verify(t, tool, dir, "bad.service")) == 0 {
		t.Error("systemd-analyze verify does not complain of an unknown key here, so this test proves nothing")
	}
}

// TestExposure: an engine on CPU and a door are at most 0.5 of 10 by systemd's own count, an engine with a GPU and a fetch 1.5.
// The units that the packages ship are looked at as well; the host tests do it on every Debian.
func TestExposure(t *testing.T) {
	tool, dir := analyze(t), written(t)
	overall := regexp.MustCompile(`Overall exposure level for \S+: ([0-9.]+)`)
	ceilings := map[string]float64{
		EngineUnit("chat"): 0.5, EngineUnit("small"): 0.5, EngineUnit("big.1"): 1.5, EngineUnit("legacy"): 0.5,
		DoorService("small"): 0.5, FetchUnit("chat"): 1.5, FetchUnit("file"): 1.5,
		"levelrail-agent.service": 2.8, "levelrail-server.service": 1.2, "levelrail-gateway.service": 1.4,
	}
	for _, shipped := range []string{"agent", "server", "gateway"} {
		name := "levelrail-" + shipped + ".service"
		text, err := os.ReadFile(filepath.Join("units", name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, ceiling := range ceilings {
		cmd := exec.Command(tool, "security", "--offline=true", "--no-pager", filepath.Join(dir, name))
		cmd.Env = append(os.Environ(), "SYSTEMD_UNIT_PATH="+dir+":", "LC_ALL=C")
		out, err := cmd.CombinedOutput()
		m := overall.FindSubmatch(out)
		if m == nil {
			t.Fatalf("%s: %v: %s", name, err, out)
		}
		level, err := strconv.ParseFloat(string(m[1]), 64)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %.1f (at most %.1f)", name, level, ceiling)
		if level > ceiling {
			t.Errorf("%s: exposure %.1f is over %.1f\n%s", name, level, ceiling, out)
		}
	}
}
