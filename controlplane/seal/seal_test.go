package seal

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/levelrail/levelrail"
)

func sealer(t *testing.T, cluster string, first byte) *Sealer {
	t.Helper()
	s, err := New(cluster, MasterKey{[32]byte{first}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestSealOpen: what is sealed opens again by another process with the same key, and by nobody else or anywhere else.
func TestSealOpen(t *testing.T) {
	s := sealer(t, "clu_1", 1)
	sealed, err := s.Seal("models/chat", "models/chat/hub-token", levelrail.Secret{}, []byte("hf_value"))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(sealed.Sealed, []byte("hf_value")) || sealed.Version != 1 {
		t.Errorf("sealed %+v", sealed)
	}
	if got, err := sealer(t, "clu_1", 1).Open(sealed); err != nil || string(got) != "hf_value" {
		t.Errorf("another process opens %q, %v", got, err)
	}
	for name, change := range map[string]func(*levelrail.Secret){
		"another path":      func(x *levelrail.Secret) { x.Path = "models/other/hub-token" },
		"another version":   func(x *levelrail.Secret) { x.Version = 2 },
		"another namespace": func(x *levelrail.Secret) { x.Namespace = "models/other" },
		"changed value":     func(x *levelrail.Secret) { x.Sealed = append([]byte{}, x.Sealed...); x.Sealed[20] ^= 1 },
		"cut value":         func(x *levelrail.Secret) { x.Sealed = x.Sealed[:5] },
		"changed data key":  func(x *levelrail.Secret) { x.Wrapped = append([]byte{}, x.Wrapped...); x.Wrapped[20] ^= 1 },
		"cut data key":      func(x *levelrail.Secret) { x.Wrapped = nil },
	} {
		x := sealed
		change(&x)
		if got, err := s.Open(x); levelrail.KindOf(err) != levelrail.ErrRefused || strings.Contains(fmt.Sprint(err), "hf_value") {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
	}
	if _, err := sealer(t, "clu_2", 1).Open(sealed); err == nil {
		t.Error("another cluster opens it")
	}
	if _, err := sealer(t, "clu_1", 2).Open(sealed); err == nil || !strings.Contains(err.Error(), "master key") {
		t.Errorf("another master key: %v", err)
	}
}

// TestDataKeys: the secrets of a namespace share a data key, also over restarts; namespaces do not.
func TestDataKeys(t *testing.T) {
	s := sealer(t, "clu_1", 1)
	a, _ := s.Seal("models/a", "models/a/x", levelrail.Secret{}, []byte("1"))
	again, _ := s.Seal("models/a", "models/a/x", a, []byte("1"))
	b, _ := s.Seal("models/b", "models/b/x", levelrail.Secret{}, []byte("1"))
	later, _ := sealer(t, "clu_1", 1).Seal("models/a", "models/a/x", a, []byte("1"))
	if !bytes.Equal(a.Wrapped, again.Wrapped) || !bytes.Equal(a.Wrapped, later.Wrapped) || again.Version != 2 {
		t.Error("the namespace's data key was not used again")
	}
	if bytes.Equal(a.Wrapped, b.Wrapped) {
		t.Error("two namespaces share a data key")
	}
	if bytes.Equal(a.Sealed, again.Sealed) {
		t.Error("the same value was sealed to the same bytes")
	}
}

// TestCheck: a start with a wrong master key is refused and says which key it wants.
func TestCheck(t *testing.T) {
	s := sealer(t, "clu_1", 1)
	check, err := s.SealCheck()
	if err != nil {
		t.Fatal(err)
	}
	if err := sealer(t, "clu_1", 1).Check(check); err != nil {
		t.Errorf("the right key: %v", err)
	}
	err = sealer(t, "clu_1", 2).Check(check)
	if levelrail.KindOf(err) != levelrail.ErrRefused || !strings.Contains(err.Error(), s.KeyID()) || !strings.Contains(err.Error(), "APP_MASTER_KEY") {
		t.Errorf("a wrong key: %v", err)
	}
}

// TestDerive: the same request of the same caller gives the same texts, any other request others.
func TestDerive(t *testing.T) {
	s := sealer(t, "clu_1", 1)
	d := s.Derive("socket:uid 0", "once", "hash")
	if d.Secret("lr") != sealer(t, "clu_1", 1).Derive("socket:uid 0", "once", "hash").Secret("lr") {
		t.Error("a repeat gives another text")
	}
	if len(d.Secret("lr")) != len(levelrail.NewSecret("lr")) || len(d.ID("key")) != len(levelrail.NewID("key")) {
		t.Errorf("%d and %d characters", len(d.Secret("lr")), len(d.ID("key")))
	}
	seen := map[string]bool{d.Secret("lr"): true}
	for _, other := range []string{s.Derive("socket:uid 1", "once", "hash").Secret("lr"), s.Derive("socket:uid 0", "onceh", "ash").Secret("lr"),
		sealer(t, "clu_2", 1).Derive("socket:uid 0", "once", "hash").Secret("lr"), sealer(t, "clu_1", 2).Derive("socket:uid 0", "once", "hash").Secret("lr")} {
		if seen[other] {
			t.Errorf("%s came twice", other)
		}
		seen[other] = true
	}
}

// TestLoad: the setting wins over the credential, the credential over the file; a file is made for a new cluster only,
// readable by its owner alone, and never written over.
func TestLoad(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "master.key")
	if _, _, err := Load(Sources{File: file}); levelrail.KindOf(err) != levelrail.ErrRefused {
		t.Errorf("a cluster whose key is lost: %v", err)
	}
	key, made, err := Load(Sources{File: file, Make: true})
	if err != nil || !made {
		t.Fatalf("first start: %v, %v", made, err)
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file is %v, %v", info.Mode(), err)
	}
	again, made, err := Load(Sources{File: file, Make: true})
	if err != nil || !made || again != key {
		t.Errorf("second start: %v, %v, %v", again, made, err)
	}
	credentials := t.TempDir()
	if err := os.WriteFile(filepath.Join(credentials, Credential), []byte(strings.Repeat("ab", 32)+"\n"), 0o400); err != nil {
		t.Fatal(err)
	}
	fromCredential, inFile, err := Load(Sources{File: file, Credentials: credentials})
	if err != nil || inFile || fromCredential == key {
		t.Errorf("credential: %v, %v", fromCredential, err)
	}
	fromSetting, _, err := Load(Sources{Setting: strings.Repeat("cd", 32), File: file, Credentials: credentials})
	if err != nil || fromSetting == fromCredential || fromSetting == key {
		t.Errorf("setting: %v, %v", fromSetting, err)
	}
	if other, _, err := Load(Sources{File: file, Credentials: t.TempDir()}); err != nil || other != key {
		t.Errorf("no credential: %v, %v", other, err)
	}
	_, _, err = Load(Sources{Setting: "not-a-key-but-secret", File: file})
	if levelrail.KindOf(err) != levelrail.ErrInvalid || strings.Contains(err.Error(), "secret") {
		t.Errorf("a broken key: %v", err)
	}
}

// TestMasterKeyPrints: a master key that gets into a message tells its id only.
func TestMasterKeyPrints(t *testing.T) {
	key, err := ParseMasterKey(strings.Repeat("ab", 32))
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{fmt.Sprint(key), fmt.Sprintf("%+v %#v %s", key, key, key)} {
		if strings.Contains(text, "abab") || strings.Contains(text, "171") || !strings.Contains(text, "mk_") {
			t.Errorf("prints %s", text)
		}
	}
	b64 := "q6urq6urq6urq6urq6urq6urq6urq6urq6urq6urq6s="
	if other, err := ParseMasterKey(b64); err != nil || other != key {
		t.Errorf("base64: %v, %v", other, err)
	}
	if _, err := ParseMasterKey(hex.EncodeToString(make([]byte, 16))); err == nil {
		t.Error("a short key was taken")
	}
}
