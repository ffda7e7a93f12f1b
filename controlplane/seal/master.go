package seal

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/levelrail/levelrail"
)

// Credential is the name of the systemd credential that may hold the master key.
const Credential = "levelrail-master-key"

// MasterKey is 256 bits that every secret of a cluster depends on. It prints as its id.
type MasterKey struct{ key [32]byte }

// ID names the key without telling it: the first 16 hex digits of a hash of it.
func (m MasterKey) ID() string {
	sum := sha256.Sum256(append([]byte("levelrail master key\n"), m.key[:]...))
	return "mk_" + hex.EncodeToString(sum[:8])
}

// String is the id, so that a key that gets into a log tells nothing.
func (m MasterKey) String() string { return m.ID() }

// GoString is the id as well.
func (m MasterKey) GoString() string { return m.ID() }

// Text is the key itself, as a key file has it. Whoever prints it gives every secret of the cluster away.
func (m MasterKey) Text() string { return hex.EncodeToString(m.key[:]) + "\n" }

// WriteKeyFile makes a key file of mode 0600 that is on disk when it returns. One that is there is not written over.
func WriteKeyFile(path, text string) error { return write(path, text) }

// ParseMasterKey reads a key as 64 hex digits or as base64 of 32 bytes. The error does not hold the text.
func ParseMasterKey(text string) (MasterKey, error) {
	text = strings.TrimSpace(text)
	raw, err := hex.DecodeString(text)
	if err != nil || len(raw) != 32 {
		if raw, err = base64.StdEncoding.DecodeString(text); err != nil || len(raw) != 32 {
			raw, err = base64.RawURLEncoding.DecodeString(text)
		}
	}
	if err != nil || len(raw) != 32 {
		return MasterKey{}, levelrail.Errorf(levelrail.ErrInvalid, "the master key is neither 64 hex digits nor 32 bytes in base64").
			WithNext("make one with: openssl rand -hex 32")
	}
	return MasterKey{[32]byte(raw)}, nil
}

// LoadNext returns the master key that is to replace the present one, and whether there is one: the text of
// APP_MASTER_KEY_NEXT, or the content of the file master.key.next.
func LoadNext(setting, file string) (key MasterKey, there, inFile bool, err error) {
	if setting != "" {
		if key, err = ParseMasterKey(setting); err != nil {
			err = fmt.Errorf("APP_MASTER_KEY_NEXT: %w", err)
		}
		return key, true, false, err
	}
	key, err = read(file)
	if errors.Is(err, fs.ErrNotExist) {
		return key, false, false, nil
	}
	return key, true, true, err
}

// NewMasterKey makes a key.
func NewMasterKey() MasterKey {
	var key MasterKey
	rand.Read(key.key[:])
	return key
}

// ReplaceKeyFile puts the next key file in the place of the present one and writes over what that held.
func ReplaceKeyFile(next, present string) error {
	old, err := os.OpenFile(present, os.O_WRONLY, 0)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Rename(next, present); err != nil {
		return err
	}
	if old != nil {
		// Its name is another file's now. On a file system that copies on write, or on flash, the old blocks may stay.
		_, err = old.Write(make([]byte, 65))
		err = errors.Join(err, old.Sync(), old.Close())
	}
	dir, dirErr := os.Open(filepath.Dir(present))
	if dirErr != nil {
		return errors.Join(err, dirErr)
	}
	defer dir.Close()
	return errors.Join(err, dir.Sync())
}

// Sources say where a master key may come from, the first that has one wins.
type Sources struct {
	Setting     string // the text of APP_MASTER_KEY
	Credentials string // $CREDENTIALS_DIRECTORY
	File        string // server/master.key, made when there is none and Make is set
	Make        bool   // a new cluster: there is nothing that another key could have sealed
}

// Load returns the master key and whether it lies in the file, which the operator then has to keep a copy of. A key that is
// missing for a cluster that has secrets is refused: a new one would open none of them.
func Load(from Sources) (key MasterKey, inFile bool, err error) {
	if from.Setting != "" {
		if key, err = ParseMasterKey(from.Setting); err != nil {
			err = fmt.Errorf("APP_MASTER_KEY: %w", err)
		}
		return key, false, err
	}
	if from.Credentials != "" {
		key, err = read(filepath.Join(from.Credentials, Credential))
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return key, false, err
		}
	}
	key, err = read(from.File)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, true, err
	}
	if !from.Make {
		return MasterKey{}, false, levelrail.Errorf(levelrail.ErrRefused, "there is no master key: neither APP_MASTER_KEY, nor the credential %s, nor the file %s", Credential, from.File).
			WithNext("put the master key of this cluster back; without it the stored secrets cannot be opened")
	}
	rand.Read(key.key[:])
	if err := write(from.File, hex.EncodeToString(key.key[:])+"\n"); err != nil {
		return MasterKey{}, false, fmt.Errorf("keep the new master key: %w", err)
	}
	return key, true, nil
}

func read(path string) (MasterKey, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return MasterKey{}, fmt.Errorf("read the master key: %w", err)
	}
	key, err := ParseMasterKey(string(text))
	if err != nil {
		return key, fmt.Errorf("%s: %w", path, err)
	}
	return key, nil
}

// write makes the file with mode 0600 and has it on disk before anything is sealed with it.
func write(path, text string) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".master-key-")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.WriteString(text)
	if err == nil {
		err = tmp.Chmod(0o600)
	}
	if err == nil {
		err = tmp.Sync()
	}
	if closeErr := tmp.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	// A link instead of a rename: a key that is there already must not be written over.
	if err := os.Link(tmp.Name(), path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}
