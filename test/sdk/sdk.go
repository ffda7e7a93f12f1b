// Package sdk runs OpenAI's own client libraries, for Go, Node and Python, against the gateway: one suite of checks in
// three languages, over engine stubs that take after each engine.
//
// It owns the suites and where the libraries come from: a cache outside the repository, made once a machine (it needs the
// network that once). The gateway is the real program with the packaged configuration (package rig); what engines say is
// package stub's. The same clients against engines with real weights are in test/e2e.
//
// A suite in another language is a program that gets where to ask in its environment and writes a line of JSON for each
// check: {"name":"chat_stream","error":""}. All suites have the same checks, and a test holds that.
package sdk

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// The libraries, pinned. Node's needs Node 18 or later (its major version 7 wants 22), Python's Python 3.10.
const (
	nodePackage   = "openai@6.49.0"
	pythonPackage = "openai==3.57.0"
)

// cache is where a library is kept once it is installed.
func cache(name string) string {
	dir := os.Getenv("LEVELRAIL_TEST_CACHE")
	if dir == "" {
		dir = "/var/cache/levelrail-test"
	}
	return filepath.Join(dir, "sdk", name)
}

// install returns the directory of a library, which fill fills unless a complete one is there. Processes that come at the
// same time wait for each other.
func install(name string, fill func(dir string) error) (string, error) {
	dir := cache(name)
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", err
	}
	stamp := filepath.Join(dir, ".complete")
	if _, err := os.Stat(stamp); err == nil {
		return dir, nil
	}
	if err := os.RemoveAll(dir); err != nil { // of an installation that was interrupted
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	if err := fill(dir); err != nil {
		return "", fmt.Errorf("install %s into %s (needs the network once): %w", name, dir, err)
	}
	return dir, os.WriteFile(stamp, nil, 0o644)
}

// recipe names a place by what is installed there: the first package, and a sum when there are more.
func recipe(kind string, packages []string) string {
	name := kind + "-" + strings.NewReplacer("/", "-", "[", "-", "]", "").Replace(packages[0])
	if len(packages) > 1 {
		name += fmt.Sprintf("-%x", sha256.Sum256([]byte(strings.Join(packages, " "))))[:9]
	}
	return name
}

// Node returns a directory from which require finds the packages, by default "openai".
func Node(ctx context.Context, root string, packages ...string) (string, error) {
	if len(packages) == 0 {
		packages = []string{nodePackage}
	}
	if _, err := exec.LookPath("npm"); err != nil {
		if err := run(ctx, filepath.Join(root, "test", "need"), "nodejs", "npm"); err != nil {
			return "", err
		}
	}
	return install(recipe("node", packages), func(dir string) error {
		if err := os.WriteFile(filepath.Join(dir, "package.json"), []byte(`{"private":true}`), 0o644); err != nil {
			return err
		}
		return run(ctx, "npm", append([]string{"install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", dir}, packages...)...)
	})
}

// Python returns a Python that has the packages, by default openai; programs that they install lie beside it.
func Python(ctx context.Context, root string, packages ...string) (string, error) {
	if len(packages) == 0 {
		packages = []string{pythonPackage}
	}
	if run(ctx, "python3", "-c", "import venv, ensurepip") != nil {
		if err := run(ctx, filepath.Join(root, "test", "need"), "python3", "python3-venv"); err != nil {
			return "", err
		}
	}
	dir, err := install(recipe("python", packages), func(dir string) error {
		if err := run(ctx, "python3", "-m", "venv", dir); err != nil {
			return err
		}
		return run(ctx, filepath.Join(dir, "bin", "python"), append([]string{"-m", "pip", "install", "-q", "--disable-pip-version-check"}, packages...)...)
	})
	return filepath.Join(dir, "bin", "python"), err
}

// Check is what came of one check of a suite; Error is empty when it passed.
type Check struct{ Name, Error string }

// Suite runs a suite in another language with more in its environment and returns its checks, in order. The error says what
// kept it from ending, and what it said to standard error.
func Suite(ctx context.Context, program, script string, env ...string) ([]Check, error) {
	cmd := exec.CommandContext(ctx, program, script)
	cmd.Env = append(append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1"), env...)
	var talk bytes.Buffer
	cmd.Stderr = &talk
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s %s: %w\n%s", program, script, err, talk.Bytes())
	}
	var checks []Check
	for scan := bufio.NewScanner(bytes.NewReader(out)); scan.Scan(); {
		var c Check
		if e := json.Unmarshal(scan.Bytes(), &c); e != nil || c.Name == "" {
			err = errors.Join(err, fmt.Errorf("the suite says %q", scan.Text()))
			continue
		}
		checks = append(checks, c)
	}
	return checks, err
}

func run(ctx context.Context, program string, args ...string) error {
	out, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %v: %w\n%s", program, args, err, out)
	}
	return nil
}
