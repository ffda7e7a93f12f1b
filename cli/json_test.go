package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// lines are a working command line for every command that there is.
var lines = map[string]string{
	"models deploy":            "--name new --engine ollama --model llama3.1:8b --wait --hf-token-from-env",
	"models list":              "",
	"models get":               "chat",
	"models wait":              "chat",
	"models update":            "chat --context 4096 --no-wait",
	"models restart":           "chat --no-wait",
	"models logs":              "chat",
	"models rotate-engine-key": "chat",
	"models rotate-key":        "chat",
	"models set-hf-token":      "chat",
	"models delete":            "chat --yes",
	"models keys create":       "chat --name ci --rpm 60",
	"models keys rotate":       "chat key_0001",
	"models usage":             "chat",
	"models explain":           "chat --key key_0001",
	"models requests list":     "chat",
	"models requests cancel":   "chat req_1",
	"models keys list":         "chat",
	"models keys revoke":       "chat key_0001",
	"nodes list":               "",
	"nodes get":                "gpu-01",
	"weights list":             "",
	"weights delete":           "old --yes",
	"engines list":             "",
	"tokens create":            "--name ci --ability read",
	"tokens list":              "",
	"tokens revoke":            "tok_0002", // the second thing that the fake makes
	"backups create":           "--output " + oneBackup,
	"status":                   "",
	"version":                  "",
}

// oneBackup is a file that only this process writes.
var oneBackup = filepath.Join(os.TempDir(), fmt.Sprintf("levelrail-cli-test-%d.backup", os.Getpid()))

// TestJSONEverywhere: with --json the stdout of every command is exactly one document, when it works, when the server
// cannot be reached and when the line is wrong; talk is on stderr, no colour codes anywhere, no secret in what fails.
func TestJSONEverywhere(t *testing.T) {
	t.Cleanup(func() { os.Remove(oneBackup) })
	var walk func(n noun, path string)
	walk = func(n noun, path string) {
		for _, sub := range n.nouns {
			walk(sub, path+sub.name+" ")
		}
		for _, v := range n.verbs {
			command := path + v.name
			if v.noJSON {
				continue
			}
			line, ok := lines[command]
			if !ok {
				t.Errorf("%s has no line in this test", command)
			}
			f := newFake(t)
			f.do(t, "model", "chat", "ready")
			f.do(t, "node", "gpu-01", "gpus")
			f.do(t, "weights", "old", "gpu-01")
			f.do(t, "note", "a note of the server")
			f.do(t, "version", "9.9.9")
			f.do(t, "log", "a \x1b[31mred\x1b[0m line")
			f.do(t, "flying", "req_1", "gw_1", "answering", "5", "7")
			f.do(t, "then", "new", "downloading 1/2")
			f.do(t, "then", "new", "ready")
			run := func(words, socket string) (answer, talk string, code int) {
				var stdout, stderr bytes.Buffer
				env := map[string]string{"LEVELRAIL_SOCKET": socket, "HF_TOKEN": "marker-hf", "LEVELRAIL_TOKEN": "marker-lrt"}
				code = Run(t.Context(), Env{Args: append(shellWords(words), "--json"), Stdout: &stdout, Stderr: &stderr, Getenv: func(n string) string { return env[n] }})
				if all := stdout.String() + stderr.String(); strings.Contains(all, "\x1b") || strings.Contains(all, "marker") {
					t.Errorf("%s prints what it should not:\n%s", words, all)
				}
				return stdout.String(), stderr.String(), code
			}
			if v.name == "revoke" && strings.HasPrefix(command, "tokens") {
				run("tokens create --name a --ability read", f.socket)
			}
			if answer, talk, code := run(command+" "+line, f.socket); code != 0 || documents(answer) != 1 || documents(talk) > 0 {
				t.Errorf("%s: exit code %d\n%s\n%s", command, code, answer, talk)
			}
			if answer, _, code := run(command+" "+line, "/nonexistent/api.sock"); command != "version" && (code != 5 || jsonPath([]byte(answer), ".error.kind") != "unavailable") {
				t.Errorf("%s without a server: exit code %d\n%s", command, code, answer)
			}
			if answer, _, code := run(command+" --nonsense", f.socket); code != 2 || jsonPath([]byte(answer), ".error.kind") != "invalid" {
				t.Errorf("%s with a wrong flag: exit code %d\n%s", command, code, answer)
			}
		}
	}
	walk(tree(), "")
}

// documents counts the JSON objects in a text, -1 when there is anything else beside them and 0 when there is no object.
func documents(text string) int {
	d := json.NewDecoder(strings.NewReader(text))
	for n := 0; ; n++ {
		var v map[string]any
		if err := d.Decode(&v); err == io.EOF {
			return n
		} else if err != nil {
			return min(-n, 0)
		}
	}
}
