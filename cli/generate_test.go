package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestGenerated: the reference, the manual and the completion scripts in the tree are what the commands say today.
func TestGenerated(t *testing.T) {
	for path, want := range generated() {
		file := filepath.Join("..", filepath.FromSlash(path))
		if *updateFlag {
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != want {
			t.Errorf("%s is not what the commands say (%v); run: go generate ./cli", path, err)
		}
	}
}

// TestManualReads: man finds nothing wrong with the pages, and shows the flags as they are typed.
func TestManualReads(t *testing.T) {
	groff, err := exec.LookPath("groff")
	if err != nil {
		t.Skip("groff is not installed")
	}
	pages, err := filepath.Glob("../packaging/man/*.[18]")
	if err != nil || len(pages) < 8 {
		t.Fatalf("only %d pages: %v", len(pages), err)
	}
	for _, page := range pages {
		cmd := exec.Command(groff, "-man", "-Tutf8", "-ww", "-P-c", page)
		var warnings strings.Builder
		cmd.Stderr = &warnings
		out, err := cmd.Output()
		if err != nil || warnings.Len() > 0 {
			t.Errorf("%s: %v\n%s", page, err, warnings.String())
		}
		if strings.HasSuffix(page, "levelrail-models.1") && !strings.Contains(string(out), "--hf-token-from-env") {
			t.Errorf("%s shows no --hf-token-from-env:\n%s", page, out)
		}
	}
}

// TestBashCompletion: bash loads the script and asks the program with the words as they stand.
func TestBashCompletion(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("bash is not installed")
	}
	f := newFake(t)
	(&script{t: t, fake: f}).run("fake model chat ready")
	for line, want := range map[string]string{
		"levelrail mod":                                      "models",
		"levelrail models get ":                              "chat",
		"levelrail models deploy --engine ll":                "llamacpp",
		"levelrail models deploy --engine=ll":                "llamacpp",
		"levelrail tokens create --ability write:s":          "sensitive",
		"levelrail models deploy --name x --model /etc/host": "/etc/host.conf /etc/hostname /etc/hosts",
		"levelrail nonsense ":                                "",
	} {
		script := `source ../packaging/completions/levelrail.bash
levelrail() { "$LEVELRAIL_TEST_PROGRAM" "$@"; }
command() { "$@"; }
COMP_LINE=$1 COMP_POINT=${#1} COMPREPLY=()
_levelrail
IFS=$'\n' sorted=($(sort <<<"${COMPREPLY[*]}")); IFS=' '
echo "${sorted[*]}"`
		cmd := exec.Command(bash, "--norc", "-c", script, "bash", line)
		cmd.Env = append(program(t), "LEVELRAIL_SOCKET="+f.socket)
		out, err := cmd.CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || got != want && !(strings.Contains(line, "/etc") && strings.Contains(got, "/etc/hosts")) {
			t.Errorf("%q completes to %q (%v), want %q", line, got, err, want)
		}
	}
}

// TestFishCompletion: fish loads the script and shows candidates with what they are.
func TestFishCompletion(t *testing.T) {
	fish, err := exec.LookPath("fish")
	if err != nil {
		t.Skip("fish is not installed")
	}
	f := newFake(t)
	(&script{t: t, fake: f}).run("fake model chat ready")
	dir := t.TempDir()
	env := program(t)
	self, err := os.Executable()
	if err == nil {
		err = os.Symlink(self, filepath.Join(dir, "levelrail"))
	}
	if err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"levelrail mod":                       "models\tdeploy models and look after them",
		"levelrail models get ":               "chat\tollama, ready",
		"levelrail models deploy --engine ll": "llamacpp",
		"levelrail nonsense ":                 "",
	} {
		cmd := exec.Command(fish, "--no-config", "-c", "source ../packaging/completions/levelrail.fish; complete -C $argv[1]", line)
		cmd.Env = append(env, "LEVELRAIL_SOCKET="+f.socket, "PATH="+dir+":"+os.Getenv("PATH"), "HOME="+dir)
		out, err := cmd.Output()
		if got := strings.TrimSpace(string(out)); err != nil || got != want {
			t.Errorf("%q completes to %q (%v), want %q", line, got, err, want)
		}
	}
}
