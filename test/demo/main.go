// Command demo is `make demo`: it builds the packages, installs them with apt on a clean Debian 14 host, deploys a real
// model on a real engine and asks it through the gateway, and shows every command that it runs.
//
//	go run ./test/demo [-stay]
//
// With -stay the host stays up at the end, for trying things by hand. The host is a systemd in namespaces of this machine
// with its own root, network and users (test/host); nothing is installed here. It exits with 0 only when every answer was
// what it has to be.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	hosttest "github.com/levelrail/levelrail/test/host"
)

func main() {
	stay := flag.Bool("stay", false, "leave the host running at the end, until Enter or Ctrl-C")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()

	d := &demo{ctx: ctx, out: os.Stdout}
	err := d.run(*stay)
	if d.host != nil {
		if err != nil && ctx.Err() == nil {
			d.explain()
		}
		err = errors.Join(err, d.host.Close())
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "\nmake demo: %v\n", err)
		os.Exit(1)
	}
	fmt.Fprintf(d.out, "\nmake demo: everything answered as it should; %s\n", strings.Join(d.times, ", "))
}

// run does the stages in order. The harness reports a broken host by a panic, which becomes an error here, so that the
// host is always ended.
func (d *demo) run(stay bool) (err error) {
	defer func() {
		if p := recover(); p != nil {
			failure, ok := p.(*hosttest.Failure)
			if !ok {
				panic(p)
			}
			err = failure
		}
	}()
	stages := []struct {
		name, title, talk string
		do                func() error
	}{
		{"packages, Debian and weights", "Build the packages, and get a clean Debian and the weights",
			"Five Debian packages come from this tree. The clean Debian root and the weights (SmolLM2-135M, 98 MB) are fetched once and cached.", d.prepare},
		{"host", "Boot a clean Debian 14 host",
			"A real systemd in namespaces of this machine, with its own root and network. Debian's llama.cpp-tools is the only thing added: it is the engine.", d.boot},
		{"install", "Install with apt",
			"As on any machine: apt makes users, directories, sockets and services, and starts them.", d.install},
		{"Hub", "Stand in for the Hugging Face Hub",
			"The host has no Internet. A small server on it speaks the Hub's API for one repository, and one setting points there.", d.startHub},
		{"deploy", "Deploy a model",
			"One command: the weights are downloaded and checked, the engine gets a sandboxed unit, the gateway a route, and you a key.", d.deploy},
		{"ask", "Ask it, as any OpenAI client would",
			"The key that deploy printed opens the model. The answer is streamed, and its last part says how many tokens were used.", d.ask},
		{"look", "Look at it",
			"The same facts for people and for scripts; what the engine says is in the journal under the model's name.", d.look},
	}
	for i, s := range stages {
		if err := d.stage(i+1, s.name, s.title, s.talk, s.do); err != nil {
			return fmt.Errorf("%s: %w", s.title, err)
		}
	}
	if stay {
		return d.stay()
	}
	return nil
}
