package levelrail

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// mayImport is the picture in docs/architecture.md: which rooms a room may import. A room is a top-level folder, with
// the folders below it; cmd/… and test/… are the places where rooms are joined. Peers never import peers.
var mayImport = map[string][]string{
	".":            {}, // the shared words: standard library only
	"client":       {"."},
	"raftstore":    {"."},
	"engine":       {"."},
	"systemd":      {"."},
	"hub":          {"."},
	"listener":     {}, // what all HTTP listeners have in common: standard library only
	"beneath":      {}, // opening files in directories of other users
	"controlplane": {".", "client", "raftstore", "engine", "hub", "listener", "beneath"},
	"agent":        {".", "client", "engine", "hub", "systemd", "beneath"},
	"caddymodule":  {".", "client", "engine", "listener", "beneath"},
	"cli":          {".", "client"},
	"web":          {"."},
	"cmd":          {".", "cli", "agent", "controlplane", "caddymodule", "beneath"},
}

// pure packages decide: data in, data with a reason out. They import no peer, nothing that does I/O by itself.
var pure = []string{"controlplane/reconcile", "caddymodule/route", "caddymodule/openai", "caddymodule/limit", "systemd", "engine"}

// owner names the one room that may import a heavy dependency.
var owner = map[string][]string{
	"github.com/caddyserver/caddy/v2":        {"caddymodule", "cmd/levelrail-gateway"},
	"github.com/hashicorp/raft":              {"raftstore"},
	"go.etcd.io/bbolt":                       {"raftstore"},
	"github.com/urfave/cli/v2":               {"cli", "cmd/levelrail"},
	"github.com/danielgtaylor/huma/v2":       {"controlplane"},
	"github.com/coreos/go-systemd/v22/dbus":  {"agent"},
	"github.com/godbus/dbus/v5":              {"agent"},
	"github.com/prometheus/client_golang":    {"caddymodule"},
	"github.com/NVIDIA/go-nvml/pkg/nvml":     {"agent"},
	"github.com/google/nftables":             {"agent"},
	"github.com/modelcontextprotocol/go-sdk": {"controlplane"},
}

type listed struct {
	ImportPath string
	Imports    []string
}

// TestArrows holds the imports of every package against the picture.
func TestArrows(t *testing.T) {
	const module = "github.com/levelrail/levelrail"
	for _, p := range list(t) {
		rel := strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
		room, _, _ := strings.Cut(rel, "/")
		if room == "" {
			room = "."
		}
		if room == "test" || room == "packaging" { // programs and harnesses of tests and builds
			continue
		}
		allowed, known := mayImport[room]
		if !known {
			t.Errorf("package %s lies in no room that the picture knows; add the room here and in docs/architecture.md", rel)
			continue
		}
		for _, imp := range p.Imports {
			if imp == module || strings.HasPrefix(imp, module+"/") {
				to := strings.TrimPrefix(strings.TrimPrefix(imp, module), "/")
				toRoom, _, _ := strings.Cut(to, "/")
				if toRoom == "" {
					toRoom = "."
				}
				if toRoom != room && !slices.Contains(allowed, toRoom) {
					t.Errorf("%s imports %s: the room %s may import %v", rel, to, room, allowed)
				}
				continue
			}
			if room == "." && strings.Contains(strings.SplitN(imp, "/", 2)[0], ".") {
				t.Errorf("the root package imports %s: it uses the standard library only", imp)
			}
			for dep, rooms := range owner {
				if imp != dep && !strings.HasPrefix(imp, dep+"/") {
					continue
				}
				if !slices.ContainsFunc(rooms, func(r string) bool { return rel == r || strings.HasPrefix(rel, r+"/") }) {
					t.Errorf("%s imports %s, which belongs to %v", rel, imp, rooms)
				}
			}
			if slices.Contains(pure, rel) && (imp == "os" || imp == "net" || imp == "os/exec") {
				t.Errorf("%s imports %s: it decides and does no I/O", rel, imp)
			}
		}
	}
}

func list(t *testing.T) []listed {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports", "-tags", "nobadger,nomysql,nopgx", "./...")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var packages []listed
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
	if len(packages) < 2 {
		t.Fatalf("go list found %d packages", len(packages))
	}
	return packages
}
