package hosttest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// debsDir is readable by apt's own user, which unpacks local files without its rights as root.
const debsDir = "/var/cache/levelrail-debs"

// InstallDebs copies packages of this machine into the host and installs them with apt-get, as an operator would, without
// a network: what they depend on must be among them or in the clean root. Configuration files that were changed in the
// host are kept. It returns apt's output; a failure fails the test with it.
func (h *Host) InstallDebs(paths ...string) string {
	if h.tb != nil {
		h.tb.Helper()
	}
	return h.Apt(append([]string{"install", "--no-install-recommends"}, h.CopyDebs(paths...)...)...)
}

// CopyDebs copies packages into the host and returns their paths there, for Apt.
func (h *Host) CopyDebs(paths ...string) []string {
	if h.tb != nil {
		h.tb.Helper()
	}
	h.Run("mkdir -p " + debsDir)
	var inside []string
	for _, path := range paths {
		target := filepath.Join(debsDir, filepath.Base(path))
		if err := h.CopyIn(path, target, 0o644); err != nil {
			h.fatalf("copy %s into the host: %v", path, err)
		}
		inside = append(inside, target)
	}
	return inside
}

// Apt runs apt-get in the host without questions and returns its output; a failure fails the test with it.
func (h *Host) Apt(args ...string) string {
	if h.tb != nil {
		h.tb.Helper()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	words := make([]string, len(args))
	for i, a := range args {
		words[i] = quote(a)
	}
	began := time.Now()
	out, _, err := h.Exec(ctx, "DEBIAN_FRONTEND=noninteractive apt-get -y -o Dpkg::Options::=--force-confold "+strings.Join(words, " ")+" </dev/null 2>&1")
	if err != nil {
		h.fatalf("apt-get %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	h.cfg.logf("host %s: apt-get %s took %.1f s", h.Name, args[0], time.Since(began).Seconds())
	return out
}

// NewerDeb makes a copy of a package with a later version and, where program is given, with another text appended to that
// program, which still runs but is another file. That is what an upgrade looks like to dpkg and to maintainer scripts.
func NewerDeb(t testing.TB, deb, program string) string {
	t.Helper()
	dir := t.TempDir()
	tree := filepath.Join(dir, "tree")
	command(t, "dpkg-deb", "-R", deb, tree)
	control := filepath.Join(tree, "DEBIAN", "control")
	text, err := os.ReadFile(control)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		switch key, value, _ := strings.Cut(line, ": "); key {
		case "Version":
			line = "Version: " + strings.TrimSpace(value) + "+later\n"
		case "Depends", "Recommends":
			// Exact versions among our packages: the others stay as they are.
			line = ""
		}
		lines = append(lines, line)
	}
	if err := os.WriteFile(control, []byte(strings.Join(lines, "")), 0o644); err != nil {
		t.Fatal(err)
	}
	// nfpm leaves an empty list where there is none, which dpkg-deb reads and does not write.
	conffiles := filepath.Join(tree, "DEBIAN", "conffiles")
	if list, err := os.ReadFile(conffiles); err == nil && strings.TrimSpace(string(list)) == "" {
		if err := os.Remove(conffiles); err != nil {
			t.Fatal(err)
		}
	}
	if program != "" {
		f, err := os.OpenFile(filepath.Join(tree, program), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString("another build"); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	out := filepath.Join(dir, strings.TrimSuffix(filepath.Base(deb), ".deb")+"+later.deb")
	command(t, "dpkg-deb", "-Znone", "-b", tree, out)
	return out
}

func command(t testing.TB, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}
