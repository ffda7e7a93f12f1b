package command_test

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"hash/crc32"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/raftstore/command"
	"github.com/levelrail/levelrail/raftstore/command/commandtest"
)

var update = flag.Bool("update", false, "write the golden files anew; what a release has written must still read the same")

func everything() []command.Command {
	return append(commandtest.Samples(commandtest.ClusterID), commandtest.Removals()...)
}

func envelope(c command.Command) command.Envelope {
	return command.Envelope{ClusterID: commandtest.ClusterID, Proposer: "srv_sample", At: commandtest.At, By: commandtest.By, Command: c}
}

// readable is the encoded command: its payload to read, and all its bytes in hex.
func readable(data []byte) string {
	var b strings.Builder
	payload := data[8+int(binary.BigEndian.Uint16(data[6:]))+4 : len(data)-4]
	b.Write(payload)
	b.WriteByte('\n')
	for line := range strings.SplitSeq(strings.TrimRight(hex.Dump(data), "\n"), "\n") {
		b.WriteString(strings.TrimRight(line[10:58], " ") + "\n")
	}
	return b.String()
}

func bytesOf(t *testing.T, golden string) []byte {
	t.Helper()
	_, dump, _ := strings.Cut(golden, "\n")
	data, err := hex.DecodeString(strings.NewReplacer(" ", "", "\n", "").Replace(dump))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestGoldens: what a released server has written to its log means the same for every later one. A golden that changes
// breaks every log there is; a kind without one is not tested.
func TestGoldens(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range everything() {
		if seen[c.Kind()] {
			continue // the first sample of a kind is its golden
		}
		seen[c.Kind()] = true
		t.Run(c.Kind(), func(t *testing.T) {
			data, err := command.Encode(envelope(c))
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join("testdata", c.Kind()+".golden")
			if *update {
				if err := os.WriteFile(path, []byte(readable(data)), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			golden, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if got := readable(data); got != string(golden) {
				t.Errorf("the encoded command is\n%s\nand %s has\n%s", got, path, golden)
			}
			e, err := command.Open(bytesOf(t, string(golden)))
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(e.Command, c) {
				t.Errorf("the golden reads as\n%+v\nand was written as\n%+v", e.Command, c)
			}
			if e.ClusterID != commandtest.ClusterID || e.Proposer != "srv_sample" || !e.At.Equal(commandtest.At) || e.By.Principal != commandtest.By.Principal ||
				e.By.Ability != commandtest.By.Ability || e.By.IdempotencyKey != commandtest.By.IdempotencyKey || len(e.By.RequestHash) != 64 {
				t.Errorf("the golden's header reads as %+v", e)
			}
		})
	}
	files, err := filepath.Glob("testdata/*.golden")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != len(seen) {
		t.Errorf("there are %d goldens and %d kinds with a sample", len(files), len(seen))
	}
	for _, name := range command.Kinds() {
		if !seen[name] {
			t.Errorf("the kind %s has no sample", name)
		}
	}
}

func reseal(data []byte) []byte {
	body := data[:len(data)-4]
	return binary.BigEndian.AppendUint32(body, crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli)))
}

// TestUnknownFieldsAreTolerated: a newer server may add fields to a payload and to the header.
func TestUnknownFieldsAreTolerated(t *testing.T) {
	data, err := command.Encode(envelope(command.KeyRevoke{ID: "key_1"}))
	if err != nil {
		t.Fatal(err)
	}
	old, grown := `{"id":"key_1"}`, `{"id":"key_1","why":{"code":7}}`
	headerLen := int(binary.BigEndian.Uint16(data[6:]))
	header := append(append([]byte{}, data[8:8+headerLen]...), "\x03new"...)
	out := append([]byte{}, data[:6]...)
	out = binary.BigEndian.AppendUint16(out, uint16(len(header)))
	out = append(out, header...)
	out = binary.BigEndian.AppendUint32(out, uint32(len(grown)))
	out = append(out, grown...)
	out = append(out, 0, 0, 0, 0)
	if !strings.Contains(string(data), old) {
		t.Fatalf("the payload is not %s", old)
	}
	e, err := command.Open(reseal(out))
	if err != nil {
		t.Fatal(err)
	}
	if e.Command != (command.KeyRevoke{ID: "key_1"}) {
		t.Errorf("read as %+v", e.Command)
	}
}

// TestUnknownTypeStops: a type, or a version of one, that is not known is an error of its own, unless the envelope allows
// to pass over it.
func TestUnknownTypeStops(t *testing.T) {
	data, err := command.Encode(envelope(command.KeyRevoke{ID: "key_1"}))
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func([]byte){
		"type":    func(b []byte) { binary.BigEndian.PutUint16(b[8:], 4711) },
		"version": func(b []byte) { binary.BigEndian.PutUint16(b[10:], 9) },
	} {
		t.Run(name, func(t *testing.T) {
			b := append([]byte{}, data...)
			change(b)
			_, err := command.Open(reseal(b))
			var unknown *command.UnknownError
			if !errors.As(err, &unknown) || unknown.Proposer != "srv_sample" {
				t.Errorf("it gave %v", err)
			}
			b[5] |= 1
			if e, err := command.Open(reseal(b)); err != nil || e.Command != nil {
				t.Errorf("one that may be passed over gave %v, %v", e.Command, err)
			}
		})
	}
}

// TestDamageIsSeen: no changed or missing byte goes unnoticed.
func TestDamageIsSeen(t *testing.T) {
	data, err := command.Encode(envelope(command.KeyRevoke{ID: "key_1"}))
	if err != nil {
		t.Fatal(err)
	}
	for i := range data {
		b := append([]byte{}, data...)
		b[i] ^= 0x20
		if _, err := command.Open(b); err == nil {
			t.Errorf("a changed byte %d was not seen", i)
		}
		if _, err := command.Open(data[:i]); err == nil {
			t.Errorf("a cut after %d bytes was not seen", i)
		}
	}
}

// TestTooLongIsRefused before it reaches the log.
func TestTooLongIsRefused(t *testing.T) {
	c := command.SettingsPut{Document: levelrail.SettingsDocument{Name: "cluster", Version: 1, Values: map[string]string{"X": strings.Repeat("x", command.MaxSize)}}}
	if _, err := command.Encode(envelope(c)); levelrail.KindOf(err) != levelrail.ErrInvalid {
		t.Errorf("a long command gave %v", err)
	}
	e := envelope(command.KeyRevoke{ID: "key_1"})
	e.By.IdempotencyKey = strings.Repeat("k", 256)
	if _, err := command.Encode(e); levelrail.KindOf(err) != levelrail.ErrInvalid {
		t.Errorf("a long idempotency key gave %v", err)
	}
}

func FuzzOpen(f *testing.F) {
	for _, c := range everything() {
		data, err := command.Encode(envelope(c))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) >= 4 {
			data = reseal(append([]byte{}, data...)) // past the checksum
		}
		e, err := command.Open(data)
		if err != nil || e.Command == nil {
			return
		}
		if err := e.Command.Validate(); err != nil {
			return
		}
		again, err := command.Encode(e)
		if err != nil {
			return // longer than is allowed
		}
		if b, err := command.Open(again); err != nil || b.Command.Kind() != e.Command.Kind() {
			t.Errorf("read back as %v, %v", b.Command, err)
		}
	})
}
