package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/levelrail/levelrail/test/fixtures"
	hosttest "github.com/levelrail/levelrail/test/host"
)

const (
	repository = "levelrail-test/SmolLM2-135M-Instruct-GGUF"
	hub        = "http://127.0.0.1:8099"
	gateway    = "http://127.0.0.1:7421"
	question   = "What is 2 + 2?"
)

// prepare builds and fetches side by side: one wants the processor, the other the network.
func (d *demo) prepare() error {
	out := d.out
	d.out = &safe{w: out}
	defer func() { d.out = out }()
	fetched := make(chan error, 1)
	go func() {
		var err error
		for _, piece := range []fixtures.Piece{fixtures.Host, fixtures.RootForky, fixtures.Weights} {
			dir, e := fixtures.Get(d.ctx, piece)
			err = errors.Join(err, e)
			if piece == fixtures.Weights {
				d.files = dir
			}
		}
		fetched <- err
	}()
	err := d.local("packaging/build")
	err = errors.Join(err, <-fetched)
	if err != nil {
		return err
	}
	d.debs, err = filepath.Glob("dist/levelrail*_amd64.deb")
	if err == nil && len(d.debs) != 5 {
		err = fmt.Errorf("dist/ has %d packages, want 5: %v", len(d.debs), d.debs)
	}
	return err
}

func (d *demo) boot() (err error) {
	dist, err := filepath.Abs("dist")
	if err != nil {
		return err
	}
	stub := filepath.Join(dist, "bin", "hubstub")
	build := exec.CommandContext(d.ctx, "go", "build", "-o", stub, "./test/engines/cmd/hubstub")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the Hub's stand-in: %w: %s", err, out)
	}
	d.host, err = hosttest.Boot(d.ctx, hosttest.Forky,
		hosttest.WithName("demo"),
		hosttest.WithBind(dist, "/root/dist"),
		hosttest.WithBind(d.files, "/srv/hub"),
		hosttest.WithLog(func(string, ...any) {}))
	if err != nil {
		return err
	}
	_, err = d.sh(0, `grep PRETTY_NAME /etc/os-release; systemctl --version | head -1; systemctl is-system-running; dpkg-query -W llama.cpp-tools`)
	return err
}

func (d *demo) install() error {
	// apt's own user cannot look into /root: a real machine has the packages in /tmp or comes from a repository.
	d.host.Run("mkdir -p /tmp/levelrail && cp /root/dist/*.deb /tmp/levelrail/")
	if _, err := d.shown(0, "apt install ./levelrail*.deb",
		"cd /tmp/levelrail && DEBIAN_FRONTEND=noninteractive apt-get -y -q -o Dpkg::Use-Pty=0 install --no-install-recommends ./levelrail*.deb </dev/null"); err != nil {
		return err
	}
	for _, unit := range []string{"levelrail-server.service", "levelrail-agent.service", "levelrail-gateway.service"} {
		d.host.WaitActive(unit)
	}
	if _, err := d.sh(0, "systemctl --no-pager --no-legend list-units --type=service,socket 'levelrail*'"); err != nil {
		return err
	}
	_, err := d.sh(0, "levelrail status")
	return err
}

func (d *demo) startHub() error {
	// -rate: fast enough for a demo, slow enough to see the progress.
	if _, err := d.shown(0, "systemd-run --unit=hubstub hubstub -repo "+repository+" -file "+fixtures.WeightsFile+" -rate 40M",
		"systemd-run -q --unit=hubstub /root/dist/bin/hubstub -repo "+repository+" -file /srv/hub/"+fixtures.WeightsFile+" -rate 40M"); err != nil {
		return err
	}
	d.host.Eventually("the Hub's stand-in", 20*time.Second, func() error {
		_, _, err := d.host.Exec(d.ctx, "curl -sf --max-time 2 "+hub+"/api/models/"+repository+" >/dev/null")
		return err
	})
	if _, err := d.sh(0, "echo APP_HF_BASE_URL="+hub+" >>/etc/default/levelrail-server\nsystemctl restart levelrail-server"); err != nil {
		return err
	}
	d.host.WaitActive("levelrail-server.service")
	return nil
}

var keyForm = regexp.MustCompile(`\blr-[0-9a-f]{64}\b`)

func (d *demo) deploy() error {
	out, err := d.sh(0, "levelrail models deploy --name chat --engine llamacpp \\\n    --model "+repository+":Q4_1 --gpus none --wait --timeout 5m")
	if err != nil {
		return err
	}
	if d.key = keyForm.FindString(out); d.key == "" {
		return errors.New("deploy printed no key")
	}
	if !strings.Contains(out, "Downloading") {
		return errors.New("deploy showed no progress of the download")
	}
	_, err = d.sh(0, "systemctl is-active levelrail-model-chat")
	return err
}

// request is a curl command for a chat.
func request(key, flags, body string) string {
	return "curl -s " + flags + gateway + "/v1/chat/completions -H 'Authorization: Bearer " + key + "' \\\n" +
		"    -H 'Content-Type: application/json' -d '" + body + "'"
}

func (d *demo) ask() error {
	messages := `"messages": [{"role": "user", "content": "` + question + `"}]`
	stream := `{"model": "chat", "stream": true, "stream_options": {"include_usage": true}, "temperature": 0, "max_tokens": 24, ` + messages + `}`
	out, err := d.sh(0, request(d.key, "-N ", stream))
	if err != nil {
		return err
	}
	text, tokens, err := readStream(strings.NewReader(out))
	if err != nil {
		return err
	}
	fmt.Fprintf(d.out, "The parts together: %q (%d tokens with the question)\n\n", text, tokens)

	out, err = d.sh(0, request(d.key, "", `{"model": "chat", "temperature": 0, "max_tokens": 24, `+messages+`}`)+" | jq '{content: .choices[0].message.content, usage}'")
	if err != nil {
		return err
	}
	var whole struct {
		Content string
		Usage   struct {
			Total int `json:"total_tokens"`
		}
	}
	if err := json.Unmarshal([]byte(out), &whole); err != nil || whole.Content == "" || whole.Usage.Total == 0 {
		return fmt.Errorf("an answer without text or usage: %s", out)
	}

	fmt.Fprintf(d.out, "With a wrong key nothing reaches the engine:\n\n")
	wrong := "lr-" + strings.Repeat("0", 64)
	out, err = d.sh(0, request(wrong, `-w '\nstatus %{http_code}\n' `, stream))
	if err != nil {
		return err
	}
	var refusal struct {
		Error struct{ Message, Type, Code string }
	}
	if err := json.NewDecoder(strings.NewReader(out)).Decode(&refusal); err != nil || refusal.Error.Code != "invalid_api_key" || !strings.Contains(out, "status 401") {
		return fmt.Errorf("a wrong key got %s", out)
	}
	return nil
}

// readStream puts the text of a streamed answer together and finds its usage. It fails unless the stream ended as it has to.
func readStream(r io.Reader) (text string, tokens int, err error) {
	var b strings.Builder
	done := false
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			done = true
			continue
		}
		var chunk struct {
			Choices []struct{ Delta struct{ Content string } }
			Usage   *struct {
				Total int `json:"total_tokens"`
			}
		}
		if err := json.Unmarshal([]byte(data), &chunk); err != nil {
			return "", 0, fmt.Errorf("an event of the stream is no JSON: %w: %s", err, data)
		}
		for _, c := range chunk.Choices {
			b.WriteString(c.Delta.Content)
		}
		if chunk.Usage != nil {
			tokens = chunk.Usage.Total
		}
	}
	switch {
	case lines.Err() != nil:
		err = lines.Err()
	case b.Len() == 0:
		err = errors.New("the streamed answer has no text")
	case !done:
		err = errors.New("the stream did not end with [DONE]")
	case tokens == 0:
		err = errors.New("the stream has no usage")
	}
	return b.String(), tokens, err
}

func (d *demo) look() error {
	if _, err := d.sh(0, "levelrail models get chat"); err != nil {
		return err
	}
	out, err := d.sh(0, "journalctl --no-pager -o short-precise -n 12 LEVELRAIL_MODEL=chat")
	if err != nil {
		return err
	}
	if strings.Contains(out, "No entries") || strings.Count(out, "\n") < 5 {
		return errors.New("the journal has no lines of the model")
	}
	_, err = d.sh(0, "systemd-analyze security --no-pager levelrail-model-chat | tail -1")
	return err
}

// stay leaves the host to whoever watches.
func (d *demo) stay() error {
	fmt.Fprintf(d.out, "\nThe host is still up. Look around in another terminal:\n\n    nsenter -t %d -a bash\n\nEnter or Ctrl-C ends it.\n", d.host.PID())
	enter := make(chan struct{})
	go func() {
		bufio.NewReader(os.Stdin).ReadString('\n')
		close(enter)
	}()
	select {
	case <-enter:
	case <-d.ctx.Done():
	}
	return nil
}
