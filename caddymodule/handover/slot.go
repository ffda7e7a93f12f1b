package handover

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// slotNames are the slots of a state directory: the directory itself, and directories in it. As many processes may answer
// at a time: the newest, and those that it and its like have replaced within the time that answers get.
var slotNames = []string{"", "b", "c", "d", "e", "f", "g", "h"}

// mainFile holds the name of the slot of the process that was the main one last. The next start goes on with it.
const mainFile = ".main"

// Slot is a place in a state directory that one process has.
type Slot struct {
	Name string
	base string   // the service's state directory
	lock *os.File // locked as long as it is open
}

func lockPath(base, name string) string { return filepath.Join(base, ".lock"+name) }

// take takes a slot: that of the last main process if nobody has it, else the first that is free.
func take(base string) (*Slot, error) {
	last, err := os.ReadFile(filepath.Join(base, mainFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read which slot was the main one: %w", err)
	}
	for _, name := range append([]string{strings.TrimSpace(string(last))}, slotNames...) {
		if name != "" && !known(name) {
			continue
		}
		if s, err := tryLock(base, name); s != nil || err != nil {
			return s, err
		}
	}
	return nil, fmt.Errorf("%d gateways still answer what they began; wait until one of them has ended", len(slotNames))
}

func known(name string) bool {
	for _, n := range slotNames {
		if n == name {
			return true
		}
	}
	return false
}

// tryLock returns the slot locked, or nil if a process has it.
func tryLock(base, name string) (*Slot, error) {
	f, err := os.OpenFile(lockPath(base, name), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("take a slot of the state directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, nil
		}
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return &Slot{Name: name, base: base, lock: f}, nil
}

// Release lets others take the slot.
func (s *Slot) Release() { s.lock.Close() }

// answersFor notes the process whose slot it is: one that can be replaced.
func (s *Slot) answersFor(pid int) error { return s.note(strconv.Itoa(pid) + "\n") }

// stopping is noted by a process that was told to stop.
const stopping = "stopping\n"

// note writes into the lock's file.
func (s *Slot) note(text string) error {
	if err := s.lock.Truncate(0); err != nil {
		return err
	}
	_, err := s.lock.WriteAt([]byte(text), 0)
	return err
}

// lead makes the slot the one that the next start goes on with.
func (s *Slot) lead() error {
	path := filepath.Join(s.base, mainFile)
	if err := os.WriteFile(path+".new", []byte(s.Name+"\n"), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// slotOf finds the slot of a process that runs; false: it has none.
func slotOf(base string, pid int) (string, bool) {
	for _, name := range slotNames {
		b, err := os.ReadFile(lockPath(base, name))
		if err != nil || strings.TrimSpace(string(b)) != strconv.Itoa(pid) {
			continue
		}
		s, err := tryLock(base, name)
		if s != nil {
			s.Release() // it has ended, and another process may have its number
			continue
		}
		return name, err == nil
	}
	return "", false
}

// leaderDied tells whether the process that was made the main one last has ended without having been told to.
func leaderDied(base string) bool {
	b, err := os.ReadFile(filepath.Join(base, mainFile))
	if err != nil {
		return false
	}
	name := strings.TrimSpace(string(b))
	if name != "" && !known(name) {
		return false
	}
	s, err := tryLock(base, name)
	if s == nil || err != nil {
		return false
	}
	defer s.Release()
	b, err = os.ReadFile(lockPath(base, name))
	return err == nil && string(b) != stopping
}

// own is the slot of this process, once it has one, and the slot of the one that it replaces.
var own struct {
	sync.Mutex
	slot     *Slot
	replaces *string
	seeded   map[string]bool
}

// Directory is the place of this process's slot in a state directory: the directory itself for a process that takes no
// part in handovers, such as one that only validates. On the first call for a directory it takes over the routes and keys
// that the predecessor has kept there, so that a successor serves without a control plane.
func Directory(state string) string {
	own.Lock()
	defer own.Unlock()
	if own.slot == nil {
		return state
	}
	dir := filepath.Join(state, own.slot.Name)
	if own.replaces == nil || *own.replaces == own.slot.Name || own.seeded[state] {
		return dir
	}
	if own.seeded == nil {
		own.seeded = map[string]bool{}
	}
	own.seeded[state] = true
	// A file that cannot be taken over is one that the control plane has to tell again.
	if err := seed(filepath.Join(state, *own.replaces), dir); err != nil {
		fmt.Fprintln(os.Stderr, "the routes and keys of the gateway before are not taken over:", err)
	}
	return dir
}

// tableFile is what caddymodule/link keeps of the control plane's words.
const tableFile = "table.jsonl"

// seed gives a directory the table of another one. Both replace it as a whole and never write into it, so one file serves
// for both until either has a newer one.
func seed(from, to string) error {
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	fresh := filepath.Join(to, tableFile+".new-seed")
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Link(filepath.Join(from, tableFile), fresh); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	// Renaming a link onto another one of the same file does nothing and leaves both.
	return errors.Join(os.Rename(fresh, filepath.Join(to, tableFile)), ignoreMissing(os.Remove(fresh)))
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Place is the directory of another slot.
type Place struct {
	Dir  string
	base string
	name string
}

// Others are the places of the other slots beside this process's own, as far as they exist. dir is what Directory said.
func Others(dir string) []Place {
	own.Lock()
	defer own.Unlock()
	if own.slot == nil {
		return nil
	}
	state := dir
	if own.slot.Name != "" {
		state = filepath.Dir(dir)
	}
	var out []Place
	for _, name := range slotNames {
		if name == own.slot.Name {
			continue
		}
		p := Place{Dir: filepath.Join(state, name), base: own.slot.base, name: name}
		if _, err := os.Stat(p.Dir); err == nil {
			out = append(out, p)
		}
	}
	return out
}

// Borrow takes the place's slot. It returns nil if a process has it.
func (p Place) Borrow() (*Slot, error) { return tryLock(p.base, p.name) }
