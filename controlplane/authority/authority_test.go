package authority

import (
	"crypto/x509"
	"os"
	"path/filepath"
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

// TestAuthority: the authority and its certificate outlive restarts; the certificate is valid for every name of the
// server, and is renewed before it ends and when the names change.
func TestAuthority(t *testing.T) {
	dir, now := filepath.Join(t.TempDir(), "tls"), time.Now()
	clock := func() time.Time { return now }
	a, err := Open(dir, []string{"gpu-01", "192.0.2.7", "0.0.0.0", "localhost"}, clock)
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
	for _, f := range []string{caKeyFile, serverKey} {
		if info, err := os.Stat(filepath.Join(dir, f)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", f, info.Mode(), err)
		}
	}
	again, err := Open(dir, []string{"192.0.2.7", "gpu-01"}, clock)
	if err != nil || string(again.PEM()) != string(a.PEM()) || leafOf(t, again).SerialNumber.Cmp(first.SerialNumber) != 0 {
		t.Errorf("after a restart: %v, another certificate: %v", err, leafOf(t, again).SerialNumber.Cmp(first.SerialNumber) != 0)
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
	renamed, err := Open(dir, []string{"gpu-02"}, clock)
	if err != nil || leafOf(t, renamed).VerifyHostname("gpu-02") != nil || string(renamed.PEM()) != string(a.PEM()) {
		t.Errorf("another host name: %v", err)
	}
}

// TestBroken: an authority whose key is lost is not replaced in silence.
func TestBroken(t *testing.T) {
	dir := t.TempDir()
	if _, err := Open(dir, nil, time.Now); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, caKeyFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, nil, time.Now); err == nil {
		t.Error("a new authority was made beside the old certificate")
	}
}
