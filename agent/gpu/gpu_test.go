package gpu

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	first  = "GPU-11111111-2222-3333-4444-555555555555"
	second = "GPU-66666666-7777-8888-9999-000000000000"
)

// node is a fake node: index 0 has minor 2 on purpose.
func node(t *testing.T, smi string) *Reader {
	t.Helper()
	root := t.TempDir()
	write := func(path, text string, mode os.FileMode) {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, g := range []struct {
		bus, uuid string
		minor     int
	}{{"0000:01:00.0", first, 2}, {"0000:c1:00.0", second, 0}} {
		write("proc/driver/nvidia/gpus/"+g.bus+"/information",
			fmt.Sprintf("Model: \t\t NVIDIA H200\nIRQ:   \t\t 12\nGPU UUID: \t %s\nBus Type: \t PCIe\nBus Location: \t %s\nDevice Minor: \t %d\n", g.uuid, g.bus, g.minor), 0o444)
	}
	for _, n := range []string{"nvidia0", "nvidia2", "nvidiactl"} {
		write("dev/"+n, "", 0o666)
	}
	write("smi", "#!/bin/sh\n"+smi, 0o755)
	return &Reader{Proc: filepath.Join(root, "proc"), Dev: filepath.Join(root, "dev"), SMI: filepath.Join(root, "smi"), Timeout: 5 * time.Second}
}

// TestCards: cards, numbers and figures from both sources, UUIDs as the tie.
func TestCards(t *testing.T) {
	r := node(t, `[ "$LC_ALL" = C ] || exit 3
echo "0, `+first+`, NVIDIA H200, 143771, 1024, 142747, 37, 41, 120.50"
echo "1, `+second+`, NVIDIA H200, 143771, 0, 143771, 0, 30, 80.00"
`)
	s := r.Read(t.Context())
	if len(s.Devices) != 2 || s.Note != "" || s.Minors[first] != 2 || s.Minors[second] != 0 {
		t.Fatalf("got %+v", s)
	}
	if d := s.Devices[0]; d.UUID != first || d.Class != "NVIDIA H200" || d.Kind != "card" || *d.MemoryBytes != 143771<<20 {
		t.Errorf("device 0: %+v", d)
	}
	if g := s.Readings[0]; *g.UsedBytes != 1<<30 || *g.Busy != 37 || *g.TempC != 41 || *g.PowerWatts != 120.5 {
		t.Errorf("reading 0: %+v", g)
	}
	if g := s.Readings[1]; g.UsedBytes == nil || *g.UsedBytes != 0 || *g.Busy != 0 {
		t.Errorf("a true 0 got lost: %+v", g)
	}
	if !slices.Equal(s.Missing, []string{"/dev/nvidia-uvm"}) || len(s.Groups) != 0 {
		t.Errorf("missing %v, groups %v", s.Missing, s.Groups)
	}
}

// TestUnreadableFields: one bad field is absent, and costs neither the card nor the other fields (C030).
func TestUnreadableFields(t *testing.T) {
	r := node(t, `echo "0, `+first+`, NVIDIA H200, 143771, [Unknown Error], [N/A], [Not Supported], [GPU requires reset], [Insufficient Permissions]"
echo "1, `+second+`, NVIDIA H200, [N/A], 5, 6, 7, 8, 9"
`)
	s := r.Read(t.Context())
	if len(s.Devices) != 2 || len(s.Readings) != 2 {
		t.Fatalf("got %+v", s)
	}
	g := s.Readings[0]
	if g.UsedBytes != nil || g.FreeBytes != nil || g.Busy != nil || g.TempC != nil || g.PowerWatts != nil {
		t.Errorf("an unreadable figure became a number: %+v", g)
	}
	if s.Devices[0].MemoryBytes == nil || s.Devices[1].MemoryBytes != nil || *s.Readings[1].Busy != 7 {
		t.Errorf("one field spoiled others: %+v %+v", s.Devices, s.Readings[1])
	}
}

// TestFailures: whatever nvidia-smi does, the cards stay, and the note says what is wrong and what to do (C029).
func TestFailures(t *testing.T) {
	for name, row := range map[string]struct{ smi, note string }{
		"mismatch on stdout": {"echo 'Failed to initialize NVML: Driver/library version mismatch'; echo 'NVML library version: 570.195'; exit 18\n", "restart the machine"},
		"no driver answer":   {"echo \"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\"; exit 9\n", "couldn't communicate"},
		"killed":             {"kill -9 $$\n", "signal: killed"},
		"hangs":              {"exec sleep 1000\n", "did not answer within"},
		"nonsense":           {"echo garbage\n", "garbage"},
	} {
		t.Run(name, func(t *testing.T) {
			r := node(t, row.smi)
			if name == "hangs" {
				r.Timeout = 50 * time.Millisecond
			}
			s := r.Read(t.Context())
			if len(s.Devices) != 2 || len(s.Readings) != 0 || !strings.Contains(s.Note, row.note) {
				t.Errorf("got %d devices, %d readings, note %q", len(s.Devices), len(s.Readings), s.Note)
			}
			if s.Devices[0].MemoryBytes != nil {
				t.Error("memory is known from nowhere")
			}
		})
	}
}

// TestNoGPU: a node without cards is an empty list and a reason, not an error.
func TestNoGPU(t *testing.T) {
	r := &Reader{Proc: t.TempDir(), Dev: t.TempDir(), SMI: "/nonexistent/nvidia-smi"}
	if s := r.Read(t.Context()); len(s.Devices) != 0 || s.Note != "no NVIDIA driver is loaded on this node" || len(s.Missing) != 0 {
		t.Errorf("got %+v", s)
	}
	// A driver that sees no card, and says so.
	r = node(t, "echo 'No devices were found'; exit 6\n")
	if err := os.RemoveAll(filepath.Join(r.Proc, "driver/nvidia/gpus")); err != nil {
		t.Fatal(err)
	}
	if s := r.Read(t.Context()); len(s.Devices) != 0 || !strings.Contains(s.Note, "No devices were found") {
		t.Errorf("got %+v", s)
	}
}

// TestGroups: nodes that only a group may open name the group, so that an engine's user joins it.
func TestGroups(t *testing.T) {
	r := node(t, "exit 1\n")
	path := filepath.Join(r.Dev, "nvidia2")
	if err := os.Chmod(path, 0o660); err != nil {
		t.Fatal(err)
	}
	if os.Getuid() == 0 {
		if err := os.Chown(path, 0, 44); err != nil {
			t.Fatal(err)
		}
		if s := r.Read(t.Context()); !slices.Equal(s.Groups, []int{44}) {
			t.Errorf("got %v", s.Groups)
		}
		return
	}
	if s := r.Read(t.Context()); !slices.Equal(s.Groups, []int{os.Getgid()}) {
		t.Errorf("got %v", s.Groups)
	}
}
