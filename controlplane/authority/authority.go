// Package authority is the server's own certificate authority: one ECDSA P-256 key that signs the certificate of its TLS
// port. It is made at first start, so that an address of the server can be trusted without buying anything: whoever has
// the authority's certificate (GET /api/v1/ca.pem) knows the server.
//
// It promises that the certificate is renewed before it ends and when the names of the host change, without a restart, and
// that no private key lies in a file: the authority's is kept by a Keeper, who seals it, and the server's certificate has a
// new key at each start. An authority of a release that kept its key in a file is taken over, and the file removed.
package authority

import (
	"bytes"
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
	"syscall"
	"time"
)

const (
	authorityFor = 20 * 365 * 24 * time.Hour
	serverFor    = 365 * 24 * time.Hour
	renewBefore  = 60 * 24 * time.Hour
	backdated    = time.Hour // for clients whose clock is behind
)

// CAFile is the authority's certificate in its directory, for whoever wants to trust the server.
const CAFile = "ca.pem"

// Files of earlier releases, which held private keys in clear.
const (
	clearKeyFile    = "ca.key"
	clearServerKey  = "server.key"
	clearServerFile = "server.pem"
)

// Keeper keeps the authority where it cannot be read without the cluster's master key.
type Keeper interface {
	Load() (bundle []byte, there bool, err error)
	Store(bundle []byte) error // replaces what is there; it is durable when Store returns
}

// Authority signs the server's certificate. It is safe for concurrent use.
type Authority struct {
	dir    string
	names  []string
	clock  func() time.Time
	keeper Keeper

	replaced bool

	mu     sync.Mutex
	cert   *x509.Certificate
	key    *ecdsa.PrivateKey
	pem    []byte
	server *tls.Certificate
	leaf   *x509.Certificate
}

// Open reads the authority, or makes it. dir gets its certificate. names are the host names and IP addresses of the server,
// beside localhost.
func Open(dir string, names []string, clock func() time.Time, keeper Keeper) (*Authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of certificates: %w", err)
	}
	a := &Authority{dir: dir, clock: clock, names: clean(names), keeper: keeper}
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

// Replaced tells that this start made a new authority although the directory has the certificate of another one: the store
// that kept its key is not this one. Whoever trusted that one has to be told.
func (a *Authority) Replaced() bool { return a.replaced }

// PEM is the authority's certificate.
func (a *Authority) PEM() []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.pem
}

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

// load takes the authority from its keeper, else from the files of an earlier release, else makes one. Whatever moment it
// is ended at, the next start comes to the same authority.
func (a *Authority) load() error {
	bundle, there, err := a.keeper.Load()
	if err != nil {
		return fmt.Errorf("open the authority's key: %w", err)
	}
	if !there {
		if bundle, err = a.fromFiles(); err != nil {
			return err
		}
		if bundle == nil {
			if bundle, err = generate(a.clock()); err != nil {
				return err
			}
		}
		if err := a.keeper.Store(bundle); err != nil {
			return fmt.Errorf("keep the authority's key: %w", err)
		}
	}
	if err := a.use(bundle); err != nil {
		return err
	}
	// Only now: the key is kept, and these are copies in clear.
	for _, name := range []string{clearKeyFile, clearServerKey, clearServerFile} {
		if err := wipe(filepath.Join(a.dir, name)); err != nil {
			return fmt.Errorf("remove a private key that an earlier release kept in clear: %w", err)
		}
	}
	return nil
}

// use begins to sign with a bundle, and writes its certificate where people find it.
func (a *Authority) use(bundle []byte) error {
	pair, err := tls.X509KeyPair(bundle, bundle)
	if err != nil {
		return fmt.Errorf("read the authority: %w", err)
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return errors.New("read the authority: its key is not an ECDSA key")
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]})
	path := filepath.Join(a.dir, CAFile)
	if old, err := os.ReadFile(path); err != nil || !bytes.Equal(old, text) {
		if err := writeFile(path, text); err != nil {
			return fmt.Errorf("write the authority's certificate: %w", err)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cert, a.key, a.pem = pair.Leaf, key, text
	return nil
}

// Rotate begins with a new authority. Certificates of the one before are worth nothing to who trusts the new one, and the
// other way round.
func (a *Authority) Rotate() error {
	bundle, err := generate(a.clock())
	if err != nil {
		return err
	}
	if err := a.keeper.Store(bundle); err != nil {
		return fmt.Errorf("keep the authority's key: %w", err)
	}
	return a.use(bundle)
}

// fromFiles reads the authority of an earlier release; nil when there is none.
func (a *Authority) fromFiles() ([]byte, error) {
	cert, err := os.ReadFile(filepath.Join(a.dir, CAFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the authority's certificate: %w", err)
	}
	key, err := os.ReadFile(filepath.Join(a.dir, clearKeyFile))
	if errors.Is(err, fs.ErrNotExist) {
		a.replaced = true // its key went with another store
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the authority's key: %w", err)
	}
	if _, err := tls.X509KeyPair(cert, key); err != nil {
		return nil, fmt.Errorf("read the authority in %s: %w; to begin with a new one, which every client has to be told, remove that directory", a.dir, err)
	}
	return slices.Concat(cert, []byte("\n"), key), nil
}

// generate makes an authority: its certificate and its key, in PEM.
func generate(now time.Time) ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the authority's key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{Organization: []string{"Levelrail"}, CommonName: "Levelrail authority"},
		NotBefore: now.Add(-backdated), NotAfter: now.Add(authorityFor),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("sign the authority's certificate: %w", err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("write the authority's key: %w", err)
	}
	return slices.Concat(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})), nil
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
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, fmt.Errorf("read the server's new certificate: %w", err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, leaf, nil
}

// writeFile writes a file for everybody to read, whole or not at all.
func writeFile(path string, text []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".new-")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(text)
	err = errors.Join(err, tmp.Chmod(0o644), tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	return err
}

// wipe writes over a file and removes it. On a file system that copies on write, or on flash, the old blocks may stay.
func wipe(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|syscall.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		info, statErr := f.Stat()
		if statErr == nil {
			_, statErr = f.Write(make([]byte, info.Size()))
		}
		err = errors.Join(statErr, f.Sync(), f.Close())
	}
	return errors.Join(err, os.Remove(path))
}
