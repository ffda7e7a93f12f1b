// Package authority is the server's own certificate authority: one ECDSA P-256 key that signs the certificate of its TLS
// port. It is made at first start, so that an address of the server can be trusted without buying anything: whoever has
// the authority's certificate (GET /api/v1/ca.pem) knows the server.
//
// It promises that the certificate is renewed before it ends and when the names of the host change, without a restart, and
// that private keys lie in files of mode 0600 only.
package authority

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	authorityFor = 20 * 365 * 24 * time.Hour
	serverFor    = 365 * 24 * time.Hour
	renewBefore  = 60 * 24 * time.Hour
	backdated    = time.Hour // for clients whose clock is behind
)

// The files of an authority's directory.
const (
	CAFile     = "ca.pem"
	caKeyFile  = "ca.key"
	serverFile = "server.pem"
	serverKey  = "server.key"
)

// Authority signs the server's certificate. It is safe for concurrent use.
type Authority struct {
	dir   string
	names []string
	clock func() time.Time
	cert  *x509.Certificate
	key   *ecdsa.PrivateKey
	pem   []byte

	mu     sync.Mutex
	server *tls.Certificate
	leaf   *x509.Certificate
}

// Open reads the authority in a directory, or makes it there. names are the host names and IP addresses of the server,
// beside localhost.
func Open(dir string, names []string, clock func() time.Time) (*Authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of certificates: %w", err)
	}
	a := &Authority{dir: dir, clock: clock, names: clean(names)}
	if err := a.load(); err != nil {
		return nil, err
	}
	_, err := a.current()
	return a, err
}

// clean is localhost and the names given, each once, in order.
func clean(names []string) []string {
	out := []string{"localhost", "127.0.0.1", "::1"}
	for _, n := range names {
		n = strings.ToLower(strings.TrimSpace(n))
		if ip := net.ParseIP(n); ip != nil {
			if ip.IsUnspecified() {
				continue
			}
			n = ip.String()
		}
		if n != "" && !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out
}

// Serves tells whether a host, lower-case, is one of the names that the server's certificate is for.
func (a *Authority) Serves(host string) bool {
	_, found := slices.BinarySearch(a.names, host)
	return found
}

// PEM is the authority's certificate.
func (a *Authority) PEM() []byte { return a.pem }

// Path is where the authority's certificate lies.
func (a *Authority) Path() string { return filepath.Join(a.dir, CAFile) }

// Config is for the server's TLS port.
func (a *Authority) Config() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return a.current() },
	}
}

func (a *Authority) load() error {
	text, err := os.ReadFile(filepath.Join(a.dir, CAFile))
	if errors.Is(err, fs.ErrNotExist) {
		return a.make()
	}
	if err != nil {
		return fmt.Errorf("read the authority's certificate: %w", err)
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(a.dir, CAFile), filepath.Join(a.dir, caKeyFile))
	if err != nil {
		return fmt.Errorf("read the authority in %s: %w; to begin with a new one, which every client has to be told, remove that directory", a.dir, err)
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return fmt.Errorf("the authority's key in %s is not an ECDSA key", a.dir)
	}
	a.cert, a.key, a.pem = pair.Leaf, key, text
	return nil
}

func (a *Authority) make() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make the authority's key: %w", err)
	}
	now := a.clock()
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{Organization: []string{"Levelrail"}, CommonName: "Levelrail authority"},
		NotBefore: now.Add(-backdated), NotAfter: now.Add(authorityFor),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return fmt.Errorf("sign the authority's certificate: %w", err)
	}
	// The key first: a certificate without its key would stop the next start.
	if err := a.keep(caKeyFile, "PRIVATE KEY", key, nil); err != nil {
		return err
	}
	if err := a.keep(CAFile, "CERTIFICATE", nil, der); err != nil {
		return err
	}
	return a.load()
}

func serial() *big.Int {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		panic("no random numbers: " + err.Error()) // crypto/rand does not fail on Linux
	}
	return n.Add(n, big.NewInt(1))
}

// current is the server's certificate, renewed when it is about to end or is for other names.
func (a *Authority) current() (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.server == nil {
		pair, err := tls.LoadX509KeyPair(filepath.Join(a.dir, serverFile), filepath.Join(a.dir, serverKey))
		if err == nil {
			a.server, a.leaf = &pair, pair.Leaf
		}
	}
	if a.server != nil && a.leaf.CheckSignatureFrom(a.cert) == nil && a.clock().Add(renewBefore).Before(a.leaf.NotAfter) && slices.Equal(named(a.leaf), a.names) {
		return a.server, nil
	}
	pair, leaf, err := a.issue()
	if err != nil {
		if a.server != nil && a.clock().Before(a.leaf.NotAfter) {
			return a.server, nil // better the old one, while it lasts
		}
		return nil, err
	}
	a.server, a.leaf = pair, leaf
	return pair, nil
}

func named(c *x509.Certificate) []string {
	out := slices.Clone(c.DNSNames)
	for _, ip := range c.IPAddresses {
		out = append(out, ip.String())
	}
	slices.Sort(out)
	return out
}

func (a *Authority) issue() (*tls.Certificate, *x509.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make the server's key: %w", err)
	}
	now := a.clock()
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{Organization: []string{"Levelrail"}, CommonName: "levelrail-server"},
		NotBefore: now.Add(-backdated), NotAfter: now.Add(serverFor), BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, n := range a.names {
		if ip := net.ParseIP(n); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, n)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return nil, nil, fmt.Errorf("sign the server's certificate: %w", err)
	}
	if err := a.keep(serverKey, "PRIVATE KEY", key, nil); err != nil {
		return nil, nil, err
	}
	if err := a.keep(serverFile, "CERTIFICATE", nil, der); err != nil {
		return nil, nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, fmt.Errorf("read the server's new certificate: %w", err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, leaf, nil
}

// keep writes a PEM file whole or not at all.
func (a *Authority) keep(name, kind string, key *ecdsa.PrivateKey, der []byte) error {
	mode := fs.FileMode(0o644)
	if key != nil {
		mode = 0o600
		var err error
		if der, err = x509.MarshalPKCS8PrivateKey(key); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
	tmp, err := os.CreateTemp(a.dir, ".new-")
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	defer os.Remove(tmp.Name())
	err = pem.Encode(tmp, &pem.Block{Type: kind, Bytes: der})
	err = errors.Join(err, tmp.Chmod(mode), tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), filepath.Join(a.dir, name))
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}
