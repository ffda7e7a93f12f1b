package hostile

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	hosttest "github.com/levelrail/levelrail/test/host"
)

// TestImports: a member of the group, who may name files of the node as models, learns nothing of a file that is no model:
// not whether it is there, not its content, not its checksum. A model in a usual place is taken.
func TestImports(t *testing.T) {
	t.Parallel()
	w := Bare(t, hosttest.WithEngine(hosttest.LlamaCpp), hosttest.WithWeights())
	w.Run(`install -d -o member -g member /home/member/models && echo "root:x:$(head -c 30 /dev/urandom | base64)" >/srv/secret && chmod 600 /srv/secret
cp /srv/secret /srv/secret.gguf && mkdir -m 0700 /srv/closed && cp /srv/secret /srv/closed/there.gguf`)
	w.Run(`cd /home/member/models && ln -s /etc/shadow shadow.gguf && ln -s /srv/secret secret.gguf && ln -s /nonexistent dangling.gguf && ln -s /proc/1/environ environ.gguf &&
ln -s /etc folder && mkfifo pipe.gguf && ln -s /dev/zero zero.gguf && ln -s /srv/weights weights && chown -h member: *`)
	secrets := map[string]string{}
	for _, file := range []string{"/etc/shadow", "/srv/secret", "/srv/closed/there.gguf"} {
		b, err := w.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(b)
		secrets[hex.EncodeToString(sum[:])], secrets[string(b[:24])] = "the checksum of "+file, "the beginning of "+file
	}
	number := 0
	// try deploys a file as the member and returns what the model says of it.
	try := func(path, more string) string {
		number++
		name := fmt.Sprintf("m%d", number)
		out, err := w.As("member", fmt.Sprintf("levelrail models deploy --name %s --engine llamacpp --gpus none --model %s %s --json", name, path, more))
		if err != nil {
			return out // refused at once
		}
		var said string
		w.Eventually("the answer about "+path, time.Minute, func() error {
			out, err := w.As("member", "levelrail models get "+name+" --json")
			if err != nil {
				return fmt.Errorf("%s", out)
			}
			var m struct {
				Condition struct{ Reason, Message, Next string }
			}
			if err := json.Unmarshal([]byte(out), &m); err != nil {
				return err
			}
			if c := m.Condition; c.Reason != "DownloadFailed" {
				return fmt.Errorf("it is %s: %s", c.Reason, c.Message)
			}
			said = m.Condition.Message + " " + m.Condition.Next
			return nil
		})
		logs, _ := w.As("member", "levelrail models logs "+name+" 2>&1")
		if out, err := w.As("member", "levelrail models delete --yes "+name); err != nil {
			t.Fatalf("delete %s: %s", name, out)
		}
		reached := ""
		for secret, what := range secrets {
			if strings.Contains(said+logs, secret) {
				reached = what
			}
		}
		w.Attempt(Member, "import "+path+" "+more, reached)
		return strings.ReplaceAll(said, path, "FILE")
	}
	wrong := "--sha256 " + strings.Repeat("1", 64)
	links := map[string]string{}
	for _, name := range []string{"shadow", "secret", "dangling", "environ", "zero"} {
		path := "/home/member/models/" + name + ".gguf"
		said := try(path, "")
		links[said] = name
		if with := try(path, wrong); with != said {
			t.Errorf("%s answers %q, and with a checksum %q", path, said, with)
		}
	}
	if len(links) != 1 {
		t.Errorf("links answer by where they lead: %q", links)
	}
	for _, path := range []string{"/home/member/models/folder/shadow.gguf", "/home/member/models/weights/" + smol, "/home/member/models/pipe.gguf", "/srv/secret.gguf",
		"/etc/shadow.gguf", "/root/x.gguf", "/var/lib/levelrail/server/x.gguf"} {
		try(path, "")
	}
	if a, b := try("/srv/closed/there.gguf", ""), try("/srv/closed/not-there.gguf", ""); a != b {
		t.Errorf("a closed directory answers %q and %q, by what is in it", a, b)
	}
	if out, _, err := w.Exec(context.Background(), "grep -rlF \"$(cat /srv/secret)\" /var/lib/levelrail/weights"); err == nil {
		t.Errorf("the secret was copied to %s", out)
	}
	// What the checks are for still works: a file in the member's own home.
	w.Run("cp " + hosttest.WeightsPath + " /home/member/models/own.gguf && chown member: /home/member/models/own.gguf && chmod 600 /home/member/models/own.gguf")
	w.Deploy("--name own --engine llamacpp --gpus none --context 512 --model /home/member/models/own.gguf")
}

// smol is the name of the test weights' file.
var smol = hosttest.WeightsPath[strings.LastIndex(hosttest.WeightsPath, "/")+1:]
