// Package seal keeps secret values unreadable in the store: an API's tokens towards others and the keys of engines.
//
// A value is sealed with AES-256-GCM under the data key of its namespace, and the data key is wrapped by the master key.
// The additional data is the cluster's id, the path and the version, so a sealed value that is moved or replayed does not
// open. Every secret carries its wrapped data key, so each opens by itself. Sealing draws random numbers and therefore
// happens in the proposer of a command, never where commands are applied.
//
// It promises that an error never holds a value or a key. Where the master key comes from is in master.go; storing what is
// sealed belongs to raftstore.
package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"

	"github.com/levelrail/levelrail"
)

// Sealer seals and opens the secrets of one cluster. It is safe for concurrent use.
type Sealer struct {
	cluster string
	keyID   string
	wrap    cipher.AEAD
	derive  []byte
	older   *Sealer // during a rotation: opens what is not sealed anew yet

	mu   sync.Mutex
	data map[string]dataKey // by namespace
}

type dataKey struct {
	wrapped []byte
	aead    cipher.AEAD
}

// New returns a sealer for a cluster under a master key.
func New(cluster string, master MasterKey) (*Sealer, error) {
	wrapping, err := hkdf.Key(sha256.New, master.key[:], nil, "levelrail wrap data keys", 32)
	if err != nil {
		return nil, fmt.Errorf("derive the wrapping key: %w", err)
	}
	derive, err := hkdf.Key(sha256.New, master.key[:], []byte(cluster), "levelrail derive", 32)
	if err != nil {
		return nil, fmt.Errorf("derive the deriving key: %w", err)
	}
	aead, err := gcm(wrapping)
	if err != nil {
		return nil, err
	}
	return &Sealer{cluster: cluster, keyID: master.ID(), wrap: aead, derive: derive, data: map[string]dataKey{}}, nil
}

func gcm(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("make a cipher: %w", err)
	}
	return cipher.NewGCM(block)
}

// NewRotating returns a sealer that seals under a new master key and opens what is sealed under either.
func NewRotating(cluster string, older, next MasterKey) (*Sealer, error) {
	s, err := New(cluster, next)
	if err != nil || older == next {
		return s, err
	}
	s.older, err = New(cluster, older)
	return s, err
}

// Current tells whether a secret is sealed under this sealer's master key, and not under the one that it replaces.
func (s *Sealer) Current(secret levelrail.Secret) bool { return secret.KeyID == s.keyID }

// KeyID names the master key without telling it.
func (s *Sealer) KeyID() string { return s.keyID }

// Seal returns the secret at a path with the next version, ready for a command. old is the stored one, the zero value for
// none. The namespace's data key is that of old or of a secret that this sealer has sealed or opened before, else a new one.
func (s *Sealer) Seal(namespace, path string, old levelrail.Secret, value []byte) (levelrail.Secret, error) {
	key, err := s.dataKeyOf(namespace, old)
	if err != nil {
		return levelrail.Secret{}, err
	}
	out := levelrail.Secret{Path: path, Namespace: namespace, KeyID: s.keyID, Wrapped: key.wrapped, Version: old.Version + 1}
	nonce := make([]byte, key.aead.NonceSize(), key.aead.NonceSize()+len(value)+key.aead.Overhead())
	rand.Read(nonce)
	out.Sealed = key.aead.Seal(nonce, nonce, value, s.about("value", path, out.Version))
	return out, nil
}

// Open returns the value of a secret. The error says which path could not be opened and why, and is of kind refused.
func (s *Sealer) Open(secret levelrail.Secret) ([]byte, error) {
	if s.older != nil && secret.KeyID == s.older.keyID {
		return s.older.Open(secret)
	}
	key, err := s.unwrap(secret.Namespace, secret.KeyID, secret.Wrapped)
	if err != nil {
		return nil, levelrail.Errorf(levelrail.ErrRefused, "the secret at %s cannot be opened: %v", secret.Path, err).
			WithNext("start the server with the master key that sealed it, or set the secret anew")
	}
	n := key.aead.NonceSize()
	if len(secret.Sealed) >= n {
		if value, err := key.aead.Open(nil, secret.Sealed[:n], secret.Sealed[n:], s.about("value", secret.Path, secret.Version)); err == nil {
			return value, nil
		}
	}
	return nil, levelrail.Errorf(levelrail.ErrRefused, "the secret at %s was changed after it was sealed, or belongs to another place", secret.Path).
		WithNext("set the secret anew")
}

func (s *Sealer) dataKeyOf(namespace string, old levelrail.Secret) (dataKey, error) {
	s.mu.Lock()
	known, ok := s.data[namespace]
	s.mu.Unlock()
	if ok {
		return known, nil
	}
	if old.Namespace == namespace && s.Current(old) {
		if key, err := s.unwrap(namespace, old.KeyID, old.Wrapped); err == nil {
			return key, nil
		}
	}
	raw := make([]byte, 32)
	rand.Read(raw)
	aead, err := gcm(raw)
	if err != nil {
		return dataKey{}, err
	}
	nonce := make([]byte, s.wrap.NonceSize())
	rand.Read(nonce)
	key := dataKey{wrapped: s.wrap.Seal(nonce, nonce, raw, s.about("data key", namespace, 0)), aead: aead}
	s.remember(namespace, key)
	return key, nil
}

func (s *Sealer) unwrap(namespace, keyID string, wrapped []byte) (dataKey, error) {
	if keyID != s.keyID {
		return dataKey{}, fmt.Errorf("it is sealed under the master key %s, and this server has %s", keyID, s.keyID)
	}
	n := s.wrap.NonceSize()
	if len(wrapped) < n {
		return dataKey{}, fmt.Errorf("its data key is cut short")
	}
	raw, err := s.wrap.Open(nil, wrapped[:n], wrapped[n:], s.about("data key", namespace, 0))
	if err != nil {
		return dataKey{}, fmt.Errorf("its data key does not open")
	}
	aead, err := gcm(raw)
	if err != nil {
		return dataKey{}, err
	}
	key := dataKey{wrapped: wrapped, aead: aead}
	s.remember(namespace, key)
	return key, nil
}

func (s *Sealer) remember(namespace string, key dataKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.data[namespace] = key
}

// about is the additional data of a sealing: what, for which cluster, at which path, of which version. Lengths stand
// before texts, so that no two places give the same bytes.
func (s *Sealer) about(what, path string, version int) []byte {
	var b []byte
	for _, text := range []string{"levelrail", what, s.cluster, path} {
		b = binary.BigEndian.AppendUint32(b, uint32(len(text)))
		b = append(b, text...)
	}
	return binary.BigEndian.AppendUint64(b, uint64(version))
}

// The check value: a secret that every start opens, so that a wrong master key is found before anything is served.
const (
	CheckPath      = "cluster/master-key-check"
	CheckNamespace = "cluster"
	checkValue     = "levelrail"
)

// SealCheck returns the check value for a new cluster.
func (s *Sealer) SealCheck() (levelrail.Secret, error) {
	return s.Seal(CheckNamespace, CheckPath, levelrail.Secret{}, []byte(checkValue))
}

// Check fails when this is not the master key that the cluster was begun with.
func (s *Sealer) Check(stored levelrail.Secret) error {
	value, err := s.Open(stored)
	if err == nil && string(value) == checkValue {
		return nil
	}
	return levelrail.Errorf(levelrail.ErrRefused, "the master key %s is not the one that this cluster's secrets are sealed with (%s)", s.keyID, stored.KeyID).
		WithNext("give the server the right key: the file master.key of the server that began the cluster, the credential %s, or APP_MASTER_KEY", Credential)
}

// Derived are texts that follow from a caller and its idempotency key, so that a request sent twice gets the same ids and
// the same key both times, although only hashes are stored. Nobody without the master key can work them out.
type Derived struct{ secret []byte }

// Derive returns the source of such texts for one request; parts say which request of whom.
func (s *Sealer) Derive(parts ...string) Derived {
	mac := hmac.New(sha256.New, s.derive)
	for _, p := range parts {
		mac.Write(binary.BigEndian.AppendUint32(nil, uint32(len(p))))
		mac.Write([]byte(p))
	}
	return Derived{mac.Sum(nil)}
}

func (d Derived) bytes(what string) []byte {
	mac := hmac.New(sha256.New, d.secret)
	mac.Write([]byte(what))
	return mac.Sum(nil)
}

// ID is like levelrail.NewID.
func (d Derived) ID(prefix string) string {
	return prefix + "_" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(d.bytes("id " + prefix)[:16]))
}

// Secret is like levelrail.NewSecret.
func (d Derived) Secret(prefix string) string {
	return prefix + "-" + hex.EncodeToString(d.bytes("secret "+prefix))
}
