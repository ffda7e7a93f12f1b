package hosttest

import (
	"context"
	"path/filepath"
	"strings"
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
