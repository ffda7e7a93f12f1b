package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"time"

	hosttest "github.com/levelrail/levelrail/test/host"
)

// demo is one run: where it talks, what it knows so far.
type demo struct {
	ctx   context.Context
	out   io.Writer
	host  *hosttest.Host
	times []string // "deploy 8.1 s", in order
	debs  []string
	files string // the directory of the weights
	key   string // of the deployed model
}

// stage shows what comes and why, does it and notes the time.
func (d *demo) stage(number int, name, title, talk string, do func() error) error {
	if err := d.ctx.Err(); err != nil {
		return errors.New("stopped")
	}
	fmt.Fprintf(d.out, "\n── %d. %s %s\n%s\n\n", number, title, strings.Repeat("─", max(3, 96-len(title))), wrap(talk, 100))
	began := time.Now()
	err := do()
	d.times = append(d.times, fmt.Sprintf("%s %.1f s", name, time.Since(began).Seconds()))
	return err
}

// sh shows a command, runs it in the host, shows what it prints while it runs, and returns that. A status other than want
// is an error.
func (d *demo) sh(want int, command string) (string, error) {
	return d.shown(want, command, command)
}

// shown is sh with another text shown than is run, where the real one would only distract.
func (d *demo) shown(want int, text, command string) (string, error) {
	for i, line := range strings.Split(text, "\n") {
		prompt := "# "
		if i > 0 {
			prompt = "  "
		}
		fmt.Fprintf(d.out, "%s%s\n", prompt, line)
	}
	p := d.host.Start("bash", "-c", "set -o pipefail; exec 2>&1; cd /root; "+command)
	p.Stdin.Close()
	stop := context.AfterFunc(d.ctx, p.Kill)
	defer stop()
	var all bytes.Buffer
	_, err := io.Copy(io.MultiWriter(&all, d.out), p.Stdout)
	status := p.Wait()
	fmt.Fprintln(d.out)
	switch {
	case d.ctx.Err() != nil:
		return all.String(), errors.New("stopped")
	case err != nil:
		return all.String(), err
	case status != want:
		return all.String(), fmt.Errorf("%q ended with status %d, want %d", text, status, want)
	}
	return all.String(), nil
}

// local shows a command of this machine and runs it, with its output shown.
func (d *demo) local(command ...string) error {
	fmt.Fprintf(d.out, "$ %s\n", strings.Join(command, " "))
	cmd := exec.CommandContext(d.ctx, command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr = d.out, d.out
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", strings.Join(command, " "), err)
	}
	return nil
}

// explain shows what the daemons said, after something went wrong.
func (d *demo) explain() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out, _, _ := d.host.Exec(ctx, "systemctl --no-pager --no-legend --plain list-units --all 'levelrail*'; journalctl --no-pager -n 80 -o short-precise -u 'levelrail*'")
	fmt.Fprintf(d.out, "\nUnits and journal of the host:\n%s\n", out)
}

// safe makes a writer that several goroutines may use.
type safe struct {
	mu sync.Mutex
	w  io.Writer
}

func (s *safe) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(p)
}

// wrap breaks a text into lines of at most width characters.
func wrap(text string, width int) string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines, line = append(lines, line), ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return strings.Join(append(lines, line), "\n")
}
