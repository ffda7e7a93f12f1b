package handover

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// forget makes this process one without a slot again.
func forget(t *testing.T) {
	reset := func() {
		own.Lock()
		defer own.Unlock()
		if own.slot != nil {
			own.slot.Release()
		}
		own.slot, own.replaces, own.seeded = nil, nil, nil
	}
	reset()
	t.Cleanup(reset)
}

// TestSlots: a slot is one process's, the last main one's is taken first, and there is an end to them.
func TestSlots(t *testing.T) {
	dir := t.TempDir()
	var all []*Slot
	for i, want := range slotNames {
		s, err := take(dir)
		if err != nil || s.Name != want {
			t.Fatalf("take %d: %+v, %v; want %q", i, s, err, want)
		}
		all = append(all, s)
	}
	if s, err := take(dir); err == nil {
		t.Errorf("there is one more: %q", s.Name)
	}
	if err := all[2].lead(); err != nil {
		t.Fatal(err)
	}
	if leaderDied(dir) {
		t.Error("the main process is said to have died while it holds its slot")
	}
	all[1].Release()
	all[2].Release()
	if !leaderDied(dir) {
		t.Error("the main process has died, and is not said to")
	}
	s, err := take(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.note(stopping); err != nil {
		t.Fatal(err)
	}
	s.Release()
	if leaderDied(dir) {
		t.Error("a main process that was stopped is said to have died")
	}
	if s, err := take(dir); err != nil || s.Name != slotNames[2] {
		t.Errorf("the next start has %+v, %v; want that of the main process", s, err)
	}
	if err := all[0].answersFor(os.Getpid()); err != nil {
		t.Fatal(err)
	}
	if name, ok := slotOf(dir, os.Getpid()); !ok || name != "" {
		t.Errorf("this process has %q, %v", name, ok)
	}
	all[0].Release()
	if name, ok := slotOf(dir, os.Getpid()); ok {
		t.Errorf("a slot without a process is taken for one's: %q", name)
	}
	os.WriteFile(filepath.Join(dir, mainFile), []byte("../elsewhere\n"), 0o600)
	if s, err := take(dir); err != nil || !slices.Contains(slotNames, s.Name) {
		t.Errorf("with a name that is none: %+v, %v", s, err)
	}
}

// TestDirectory: a process without a slot uses the state directory itself and writes nothing; one that replaces another has
// its own place in it, with the other's routes and keys, once.
func TestDirectory(t *testing.T) {
	forget(t)
	state := t.TempDir()
	if dir := Directory(state); dir != state || len(Others(dir)) != 0 {
		t.Errorf("without a slot: %s, others %v", dir, Others(dir))
	}
	if left, _ := os.ReadDir(state); len(left) != 0 {
		t.Errorf("without a slot something was written: %v", left)
	}
	first, err := take(state)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.answersFor(os.Getpid()); err != nil {
		t.Fatal(err)
	}
	table := filepath.Join(state, tableFile)
	os.WriteFile(table, []byte("first"), 0o600)
	t.Setenv(envReplaces, "")
	p, err := Begin(state)
	if err != nil {
		t.Fatal(err)
	}
	if p.Replaces() {
		t.Error("it is said to replace a process")
	}
	name := first.Name
	own.replaces = &name
	dir := Directory(state)
	if dir != filepath.Join(state, "b") {
		t.Fatalf("the second has %s", dir)
	}
	if b, err := os.ReadFile(filepath.Join(dir, tableFile)); string(b) != "first" {
		t.Errorf("its table is %q, %v", b, err)
	}
	os.WriteFile(filepath.Join(dir, "x"), []byte("newer"), 0o600)
	os.Rename(filepath.Join(dir, "x"), filepath.Join(dir, tableFile)) // as a table is written
	if Directory(state) != dir {
		t.Error("the place has changed")
	}
	if b, _ := os.ReadFile(filepath.Join(dir, tableFile)); string(b) != "newer" {
		t.Errorf("its own table was overwritten: %q", b)
	}
	if b, _ := os.ReadFile(table); string(b) != "first" {
		t.Errorf("the first one's table is %q", b)
	}
	// The other place, and whose it is.
	others := Others(dir)
	if len(others) != 1 || others[0].Dir != state {
		t.Fatalf("others: %+v", others)
	}
	if s, err := others[0].Borrow(); s != nil || err != nil {
		t.Errorf("a slot that is in use was lent: %+v, %v", s, err)
	}
	first.Release()
	if s, err := others[0].Borrow(); s == nil || err != nil {
		t.Errorf("a free slot was not lent: %v", err)
	}
}

// TestSeed: whatever is there before, the table is the other one's, and nothing else is left.
func TestSeed(t *testing.T) {
	state := t.TempDir()
	from, to := filepath.Join(state, "from"), filepath.Join(state, "to")
	if err := seed(from, to); err != nil {
		t.Errorf("without a table: %v", err)
	}
	os.MkdirAll(from, 0o700)
	os.WriteFile(filepath.Join(from, tableFile), []byte("table"), 0o600)
	for _, before := range []string{"nothing", "another", "the same"} {
		if before == "another" {
			os.Remove(filepath.Join(to, tableFile))
			os.WriteFile(filepath.Join(to, tableFile), []byte("old"), 0o600)
		}
		if err := seed(from, to); err != nil {
			t.Errorf("over %s: %v", before, err)
		}
		b, err := os.ReadFile(filepath.Join(to, tableFile))
		left, _ := os.ReadDir(to)
		if string(b) != "table" || len(left) != 1 {
			t.Errorf("over %s: %q, %v, %v", before, b, left, err)
		}
	}
}

// TestSameFile: by content, of whatever length.
func TestSameFile(t *testing.T) {
	dir := t.TempDir()
	big := make([]byte, 1<<19+7)
	other := slices.Clone(big)
	other[len(other)-1] = 1
	for i, c := range []struct {
		a, b []byte
		same bool
	}{{nil, nil, true}, {[]byte("a"), []byte("a"), true}, {[]byte("a"), []byte("b"), false}, {[]byte("a"), nil, false}, {big, slices.Clone(big), true}, {big, other, false}} {
		a, b := filepath.Join(dir, fmt.Sprint("a", i)), filepath.Join(dir, fmt.Sprint("b", i))
		os.WriteFile(a, c.a, 0o600)
		os.WriteFile(b, c.b, 0o600)
		if same, err := sameFile(a, b); same != c.same || err != nil {
			t.Errorf("row %d: %v, %v", i, same, err)
		}
	}
	if _, err := sameFile(filepath.Join(dir, "none"), filepath.Join(dir, "a0")); err == nil {
		t.Error("a file that is not there is the same as another")
	}
}

// TestLasting: what systemd sets anew for each process is no change of the environment.
func TestLasting(t *testing.T) {
	main := []string{"PATH=/bin", "WATCHDOG_PID=7", "WATCHDOG_USEC=30000000", "SYSTEMD_EXEC_PID=7", "INVOCATION_ID=x", "STATE_DIRECTORY=/x"}
	helper := []string{"STATE_DIRECTORY=/x", "MAINPID=7", "MAINPIDFDID=3", "INVOCATION_ID=x", "PWD=/", "PATH=/bin", "MEMORY_PRESSURE_WATCH=/dev/null"}
	if a, b := lasting(main), lasting(helper); !slices.Equal(a, b) || len(a) != 2 {
		t.Errorf("%q, %q", a, b)
	}
	if a, b := lasting(main), lasting(append(helper, "HTTPS_PROXY=http://p")); slices.Equal(a, b) {
		t.Error("a proxy that was set makes no difference")
	}
}
