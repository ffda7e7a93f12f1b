package authority

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func leafOf(t *testing.T, a *Authority) *x509.Certificate {
	t.Helper()
	c, err := a.current()
	if err != nil {
		t.Fatal(err)
	}
	return c.Leaf
}

// memory is a keeper that may fail, or lose the answer to what it did.
type memory struct {
	bundle []byte
	err    error
}

func (m *memory) Load() ([]byte, bool, error) { return m.bundle, m.bundle != nil, nil }
func (m *memory) Store(b []byte) error {
	if m.err == nil {
		m.bundle = b
	}
	return m.err
}

// TestAuthority: the authority and its certificate outlive restarts; the certificate is valid for every name of the
// server, and is renewed before it ends and when the names change.
func TestAuthority(t *testing.T) {
	dir, now := filepath.Join(t.TempDir(), "tls"), time.Now()
	clock := func() time.Time { return now }
	kept := &memory{}
	a, err := Open(dir, []string{"gpu-01", "192.0.2.7", "0.0.0.0", "localhost"}, clock, kept)
	if err != nil {
		t.Fatal(err)
	}
	first := leafOf(t, a)
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(a.PEM()) {
		t.Fatal("the authority's certificate is no PEM")
	}
	for _, name := range []string{"localhost", "127.0.0.1", "::1", "gpu-01", "192.0.2.7"} {
		if _, err := first.Verify(x509.VerifyOptions{Roots: pool, DNSName: name}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"0.0.0.0", "elsewhere"} {
		if _, err := first.Verify(x509.VerifyOptions{Roots: pool, DNSName: name}); err == nil {
			t.Errorf("it is valid for %s", name)
		}
	}
	again, err := Open(dir, []string{"192.0.2.7", "gpu-01"}, clock, kept)
	if err != nil || string(again.PEM()) != string(a.PEM()) {
		t.Errorf("after a restart: %v, the same authority: %v", err, string(again.PEM()) == string(a.PEM()))
	}
	if _, err := leafOf(t, again).Verify(x509.VerifyOptions{Roots: pool, DNSName: "gpu-01"}); err != nil {
		t.Errorf("after a restart: %v", err)
	}
	now = now.Add(serverFor - renewBefore - time.Hour)
	if leafOf(t, a).SerialNumber.Cmp(first.SerialNumber) != 0 {
		t.Error("renewed too early")
	}
	now = now.Add(2 * time.Hour)
	renewed := leafOf(t, a)
	if renewed.SerialNumber.Cmp(first.SerialNumber) == 0 {
		t.Error("not renewed before its end")
	}
	if _, err := renewed.Verify(x509.VerifyOptions{Roots: pool, DNSName: "gpu-01", CurrentTime: now}); err != nil {
		t.Error(err)
	}
	renamed, err := Open(dir, []string{"gpu-02"}, clock, kept)
	if err != nil || leafOf(t, renamed).VerifyHostname("gpu-02") != nil || string(renamed.PEM()) != string(a.PEM()) {
		t.Errorf("another host name: %v", err)
	}
}

// clearFiles are those that an earlier release kept: an authority and a server's certificate with their keys in clear.
func clearFiles(t *testing.T, dir string) (cert, key []byte) {
	t.Helper()
	bundle, err := generate(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	i := bytes.Index(bundle, []byte("-----BEGIN PRIVATE KEY"))
	cert, key = bundle[:i], bundle[i:]
	for name, b := range map[string][]byte{CAFile: cert, clearKeyFile: key, clearServerFile: cert, clearServerKey: key} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

// noPrivateKey fails when a file of a directory holds a private key, by its PEM or its bytes.
func noPrivateKey(t *testing.T, dir string, key []byte) {
	t.Helper()
	block, _ := pem.Decode(key)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil || bytes.Contains(b, []byte("PRIVATE KEY")) || block != nil && bytes.Contains(b, block.Bytes) {
			t.Errorf("%s holds a private key, or %v", e.Name(), err)
		}
	}
}

// TestClearKey: the authority of an earlier release stays the same, so that no client has to be told of another, and its key
// is in no file any more. Ended before the key was kept, or before the files were removed, the next start does the rest.
func TestClearKey(t *testing.T) {
	for name, begin := range map[string]func(t *testing.T, dir string, kept *memory){
		"at once": func(*testing.T, string, *memory) {},
		"the store refused": func(t *testing.T, dir string, kept *memory) {
			kept.err = errors.New("no leader")
			if _, err := Open(dir, nil, time.Now, kept); err == nil {
				t.Error("the authority was opened and not kept")
			}
			kept.err = nil
			if _, err := os.Stat(filepath.Join(dir, clearKeyFile)); err != nil {
				t.Errorf("the only copy of the key: %v", err)
			}
		},
		"ended before the files were removed": func(t *testing.T, dir string, kept *memory) {
			bundle, err := (&Authority{dir: dir}).fromFiles()
			if err != nil {
				t.Fatal(err)
			}
			kept.bundle = bundle
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir, kept := t.TempDir(), &memory{}
			cert, key := clearFiles(t, dir)
			begin(t, dir, kept)
			a, err := Open(dir, nil, time.Now, kept)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(a.PEM(), cert) {
				t.Error("it is another authority")
			}
			pool := x509.NewCertPool()
			pool.AppendCertsFromPEM(cert)
			if _, err := leafOf(t, a).Verify(x509.VerifyOptions{Roots: pool, DNSName: "localhost"}); err != nil {
				t.Errorf("a client that knew it: %v", err)
			}
			noPrivateKey(t, dir, key)
		})
	}
}

// TestAnotherStore: an authority whose key went with another store is replaced, and that is told.
func TestAnotherStore(t *testing.T) {
	dir := t.TempDir()
	first, err := Open(dir, nil, time.Now, &memory{})
	if err != nil || first.Replaced() {
		t.Fatal(err, first.Replaced())
	}
	next, err := Open(dir, nil, time.Now, &memory{})
	if err != nil || !next.Replaced() || bytes.Equal(next.PEM(), first.PEM()) {
		t.Errorf("beside another store: %v", err)
	}
	if text, err := os.ReadFile(next.Path()); err != nil || !bytes.Equal(text, next.PEM()) {
		t.Errorf("the certificate that people find is not the one in force, %v", err)
	}
}

// TestDamaged: an authority of an earlier release that cannot be read is an error, since it may be mended.
func TestDamaged(t *testing.T) {
	dir := t.TempDir()
	clearFiles(t, dir)
	if err := os.WriteFile(filepath.Join(dir, clearKeyFile), []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, nil, time.Now, &memory{}); err == nil || !strings.Contains(err.Error(), "remove that directory") {
		t.Errorf("got %v", err)
	}
}
