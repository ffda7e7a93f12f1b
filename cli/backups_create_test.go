package cli

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

// TestBackupsCreate: a backup that is whole gets its name, one that is cut off or damaged gets none, and an earlier one is
// never written over.
func TestBackupsCreate(t *testing.T) {
	dir := t.TempDir()
	f := newFake(t)
	run := func(args ...string) (stdout, stderr string, code int) {
		var out, talk bytes.Buffer
		code = Run(t.Context(), Env{Args: append([]string{"backups", "create"}, args...), Stdin: strings.NewReader(""), Stdout: &out, Stderr: &talk,
			Now: func() time.Time { return fakeNow }, Getenv: func(n string) string { return map[string]string{"LEVELRAIL_SOCKET": f.socket}[n] }})
		return out.String(), talk.String(), code
	}
	inDir := func() int { names, _ := os.ReadDir(dir); return len(names) }
	file := filepath.Join(dir, "one.backup")

	for what, kind := range map[string]string{"cut": "cut off", "damage": "checksum"} {
		f.fail[what] = &levelrail.Error{}
		if _, stderr, code := run("--output", file); code == 0 || !strings.Contains(stderr, kind) || inDir() != 0 {
			t.Errorf("%s: exit code %d, %d files, %s", what, code, inDir(), stderr)
		}
		delete(f.fail, what)
	}
	f.fail["POST /api/v1/backups"] = &levelrail.Error{Kind: levelrail.ErrForbidden, Message: "it needs the ability root"}
	if _, stderr, code := run("--output", file); code != 4 || !strings.Contains(stderr, "ability root") || inDir() != 0 {
		t.Errorf("forbidden: exit code %d, %d files, %s", code, inDir(), stderr)
	}
	delete(f.fail, "POST /api/v1/backups")

	stdout, stderr, code := run("--output", file)
	if code != 0 || !strings.Contains(stdout, "mk_1, which is not in the file") || !strings.Contains(stderr, "keep a copy of it apart") {
		t.Fatalf("exit code %d\n%s\n%s", code, stdout, stderr)
	}
	written, err := os.ReadFile(file)
	if err != nil || bytes.Count(written, []byte("\n")) != 4 {
		t.Fatalf("the file: %q, %v", written, err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 || inDir() != 1 {
		t.Errorf("mode %v, %d files, %v", info.Mode(), inDir(), err)
	}
	if _, stderr, code := run("--output", file); code != 4 || !strings.Contains(stderr, "is there already") || inDir() != 1 {
		t.Errorf("a second time: exit code %d, %d files, %s", code, inDir(), stderr)
	}
	if _, stderr, code := run("--output", filepath.Join(dir, "not", "there")); code != 4 || !strings.Contains(stderr, "no such file") {
		t.Errorf("no directory: exit code %d, %s", code, stderr)
	}
	if stdout, _, code := run("--output", "-"); code != 0 || stdout != string(written) {
		t.Errorf("standard output: exit code %d, %q", code, stdout)
	}
	var said wire.Backup
	if stdout, _, _ := run("--json", "--output", filepath.Join(dir, "two.backup")); json.Unmarshal([]byte(stdout), &said) != nil || said.Records != 2 || said.MasterKeyID != "mk_1" {
		t.Errorf("--json: %s", stdout)
	}
}

// sendBackup streams a backup of two records. A failure named "cut" leaves out its end, "damage" changes a record.
func (f *fake) sendBackup(w http.ResponseWriter, _ *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.fail["POST /api/v1/backups"]; err != nil {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		json.NewEncoder(w).Encode(wire.ErrorBody{Error: *err})
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set(wire.MasterKeyHeader, "mk_1")
	header := fmt.Sprintf(`{"format":"levelrail-backup","version":1,"cluster_id":"clu_1","server_id":"srv_1","lineage":"ab","index":7,"term":2,"taken_at":"2026-01-02T03:04:05Z","software":%q}`, levelrail.Version)
	body := header + "\n" + `{"bucket":"model","id":"chat","value":{}}` + "\n" + `{"bucket":"key","id":"key_1","value":{}}` + "\n"
	sum := sha256.Sum256([]byte(body))
	if f.fail["damage"] != nil {
		sum[0]++
	}
	fmt.Fprint(w, body)
	if f.fail["cut"] == nil {
		fmt.Fprintf(w, "{\"records\":2,\"sha256\":\"%x\"}\n", sum)
	}
}
