package controlplane

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/levelrail/levelrail/raftstore"
)

// beginAnew is `levelrail-server begin-anew`: it sets aside what is left of a cluster whose store is gone, so that the next
// start begins a new one. It opens no file, and only renames within the state directory.
func beginAnew(getenv func(string) string, stdout, stderr io.Writer) int {
	dir := stateDirectory
	if d := getenv("STATE_DIRECTORY"); d != "" {
		dir = d
	}
	if _, err := raftstore.Identify(filepath.Join(dir, "store")); !errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintf(stderr, "levelrail-server: begin-anew: there is a store in %s, and nothing was changed\ntry: set it aside by hand if its cluster is to end\n", dir)
		return 4
	}
	suffix := ".before-" + time.Now().UTC().Format("20060102T150405Z")
	moved := 0
	for _, name := range []string{"tls", "master.key", "store"} {
		path := filepath.Join(dir, name)
		switch err := os.Rename(path, path+suffix); {
		case err == nil:
			moved++
			fmt.Fprintln(stdout, "Set aside", path+suffix)
		case !errors.Is(err, fs.ErrNotExist):
			fmt.Fprintln(stderr, "levelrail-server: begin-anew:", err)
			return 1
		}
	}
	if moved == 0 {
		fmt.Fprintln(stdout, "Nothing is left of a cluster here.")
	}
	fmt.Fprintln(stdout, "Next: systemctl restart levelrail-server; then, where agents and gateways still belong to the old cluster: levelrail-agent leave, levelrail-gateway leave")
	return 0
}
