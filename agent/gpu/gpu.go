// Package gpu finds a node's NVIDIA cards: which there are and by which device number (from /proc/driver/nvidia, which
// needs no driver library), and their figures (from nvidia-smi). It promises that a figure which cannot be read is absent
// and never 0, that a card whose figures cannot be read is still listed, and that a hanging nvidia-smi holds up nobody.
// What is placed on the cards is the control plane's to decide; which unit may open which card is package agent's.
package gpu

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/levelrail/levelrail"
)

// Reader reads the cards. Its roots are for tests; empty ones are the machine's own.
type Reader struct {
	Proc    string // /proc
	Dev     string // /dev
	SMI     string // nvidia-smi: a path, or a name for PATH
	Timeout time.Duration

	stuck atomic.Bool // an nvidia-smi that could not even be killed is still there
}

// Snapshot is what one reading found.
type Snapshot struct {
	Devices  []levelrail.Device // by index
	Readings []levelrail.DeviceReading
	Minors   map[string]int // UUID to the N of /dev/nvidiaN; unlike the index it does not follow the order of the slots
	Groups   []int          // groups of device nodes that are not open to everyone
	Note     string         // why there are no devices, or no figures; empty when all is well
	Missing  []string       // device nodes that an engine needs and that are not there
}

// Read looks at the cards once. It never fails: what is wrong is in the note.
func (r *Reader) Read(ctx context.Context) Snapshot {
	s := Snapshot{Minors: map[string]int{}}
	s.fromProc(or(r.Proc, "/proc"))
	rows, note := r.query(ctx)
	switch {
	case len(s.Devices) == 0 && len(rows) == 0:
		if _, err := os.Stat(filepath.Join(or(r.Proc, "/proc"), "driver/nvidia")); errors.Is(err, fs.ErrNotExist) {
			s.Note = "no NVIDIA driver is loaded on this node"
		} else {
			s.Note = or(note, "the NVIDIA driver is loaded and sees no card")
		}
		return s
	case note != "":
		s.Note = note
	}
	s.merge(rows)
	s.nodes(or(r.Dev, "/dev"))
	return s
}

// fromProc lists the cards that the kernel module has, in bus order, which is the order of the indexes.
func (s *Snapshot) fromProc(proc string) {
	paths, _ := filepath.Glob(filepath.Join(proc, "driver/nvidia/gpus/*/information")) // fails for a bad pattern only
	slices.Sort(paths)
	for _, p := range paths {
		b, err := os.ReadFile(p)
		if err != nil {
			continue // a card that was just taken away
		}
		d := levelrail.Device{Index: len(s.Devices), Kind: "card"}
		minor := -1
		for line := range strings.Lines(string(b)) {
			key, value, _ := strings.Cut(line, ":")
			value = strings.TrimSpace(value)
			switch key {
			case "Model":
				d.Class = value
			case "GPU UUID":
				d.UUID = value
			case "Device Minor":
				if n, err := strconv.Atoi(value); err == nil {
					minor = n
				}
			}
		}
		if !strings.HasPrefix(d.UUID, "GPU-") || strings.Contains(d.UUID, "?") {
			continue // the driver does not know it yet; nvidia-smi will say
		}
		s.Devices = append(s.Devices, d)
		if minor >= 0 {
			s.Minors[d.UUID] = minor
		}
	}
}

// fields are asked of nvidia-smi. One unknown field fails the whole query, so only those that every driver knows.
var fields = []string{"index", "uuid", "name", "memory.total", "memory.used", "memory.free", "utilization.gpu", "temperature.gpu", "power.draw"}

const mib = 1 << 20

// query runs nvidia-smi. Its error texts come on standard output, whatever the exit status.
func (r *Reader) query(ctx context.Context) (rows [][]string, note string) {
	program, err := exec.LookPath(or(r.SMI, "nvidia-smi"))
	if err != nil {
		return nil, "nvidia-smi is not installed, so the figures of the cards are unknown; install the driver's utilities (Debian: nvidia-smi, Ubuntu: nvidia-utils-…)"
	}
	if !r.stuck.CompareAndSwap(false, true) {
		return nil, "an earlier nvidia-smi still hangs in the driver: a card is sick (journalctl -k -g NVRM), and the machine may need a restart"
	}
	limit := r.Timeout
	if limit == 0 {
		limit = 10 * time.Second
	}
	cmd := exec.Command(program, "--query-gpu="+strings.Join(fields, ","), "--format=csv,noheader,nounits")
	cmd.Env = []string{"LC_ALL=C", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = time.Second
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		r.stuck.Store(false)
		return nil, fmt.Sprintf("nvidia-smi cannot be run: %v", err)
	}
	done := make(chan error, 1)
	go func() {
		err := cmd.Wait()
		r.stuck.Store(false)
		done <- err
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case err = <-done:
	case <-timer.C:
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		// Not waited for: in an uninterruptible sleep it does not die.
		return nil, fmt.Sprintf("nvidia-smi did not answer within %s: a card may be sick (journalctl -k -g NVRM)", limit)
	case <-ctx.Done():
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		return nil, "the reading was ended"
	}
	scan := bufio.NewScanner(strings.NewReader(out.String()))
	var other []string
	for scan.Scan() {
		cells := strings.Split(scan.Text(), ", ")
		if len(cells) == len(fields) && strings.HasPrefix(cells[1], "GPU-") {
			rows = append(rows, cells)
		} else if line := strings.TrimSpace(scan.Text()); line != "" {
			other = append(other, line)
		}
	}
	if err == nil && len(rows) > 0 {
		return rows, ""
	}
	said := strings.Join(other, " ")
	if strings.Contains(said, "version mismatch") {
		return rows, said + ": the driver's packages were updated under the running driver; restart the machine, until then nothing new can use the cards"
	}
	if said == "" {
		said = fmt.Sprint(err)
	}
	return rows, "nvidia-smi: " + said
}

// merge adds the figures to the cards, and cards that only nvidia-smi knows.
func (s *Snapshot) merge(rows [][]string) {
	now := time.Now().UTC()
	for _, c := range rows {
		i := slices.IndexFunc(s.Devices, func(d levelrail.Device) bool { return d.UUID == c[1] })
		if i < 0 {
			s.Devices = append(s.Devices, levelrail.Device{UUID: c[1], Kind: "card", Class: c[2], Index: len(s.Devices)})
			i = len(s.Devices) - 1
		}
		d := &s.Devices[i]
		if n := integer(c[0]); n != nil {
			d.Index = int(*n)
		}
		d.MemoryBytes = bytes(c[3])
		reading := levelrail.DeviceReading{UUID: c[1], UsedBytes: bytes(c[4]), FreeBytes: bytes(c[5]), At: now}
		reading.Busy, reading.TempC = small(c[6]), small(c[7])
		if w, err := strconv.ParseFloat(c[8], 64); err == nil {
			reading.PowerWatts = &w
		}
		s.Readings = append(s.Readings, reading)
	}
	slices.SortStableFunc(s.Devices, func(a, b levelrail.Device) int { return a.Index - b.Index })
}

// nodes looks at the device nodes: whether they are there, and whether a group owns them.
func (s *Snapshot) nodes(dev string) {
	names := []string{"nvidiactl", "nvidia-uvm"}
	for _, m := range s.Minors {
		names = append(names, "nvidia"+strconv.Itoa(m))
	}
	slices.Sort(names)
	for _, n := range names {
		info, err := os.Stat(filepath.Join(dev, n))
		if err != nil {
			s.Missing = append(s.Missing, "/dev/"+n)
			continue
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && info.Mode().Perm()&0o006 != 0o006 && !slices.Contains(s.Groups, int(st.Gid)) {
			s.Groups = append(s.Groups, int(st.Gid))
		}
	}
}

// integer reads a figure. Text in brackets ([N/A], [Unknown Error], …) is not known, and unknown is not 0.
func integer(s string) *int64 {
	n, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
	if err != nil {
		return nil
	}
	return &n
}

func bytes(s string) *int64 {
	n := integer(s)
	if n != nil {
		*n *= mib
	}
	return n
}

func small(s string) *int {
	n := integer(s)
	if n == nil {
		return nil
	}
	i := int(*n)
	return &i
}

func or(a, b string) string {
	if a != "" {
		return a
	}
	return b
}
