package cli

import (
	"bufio"
	"os"
	"strings"

	ucli "github.com/urfave/cli/v2"
	"golang.org/x/term"

	"github.com/levelrail/levelrail"
)

func modelsDelete() verb {
	return verb{
		name: "delete", args: "NAME", usage: "take a model down; its weights stay on the node", complete: []string{"@model"},
		long: "The engine stops, requests that it is answering are cut, and the model's keys open nothing any more. The downloaded weights stay on the node, so deploying it again " +
			"downloads nothing; `levelrail weights delete` frees the disk. On a terminal it asks first; elsewhere it needs --yes.",
		examples: []example{
			{"Delete, after a question", "levelrail models delete chat"},
			{"In a script", "levelrail models delete chat --yes"},
		},
		flags: []ucli.Flag{yesFlag()},
		run: func(s *session, c *ucli.Context) error {
			name := arg(c, 0)
			api, err := s.api()
			if err != nil {
				return err
			}
			if !c.Bool("yes") {
				if _, err := api.Model(s.ctx, name); err != nil { // a question about nothing would mislead
					return err
				}
				if err := s.confirm("Delete the model "+name+" and its keys? Its weights stay on the node.", "nothing was deleted"); err != nil {
					return err
				}
			}
			answer, err := api.DeleteModel(s.ctx, name)
			if err != nil {
				return err
			}
			if s.json {
				return s.document(answer)
			}
			s.say("%s is being deleted. Its weights stay on the node.", answer.Model.Name)
			s.note("To free their disk: levelrail weights delete %s", answer.Model.Name)
			return nil
		},
	}
}

// errNoTerminal says that there is nobody to ask.
var errNoTerminal = usagef("", "this asks before it deletes, and there is no terminal to ask on; add --yes")

// confirm asks on the terminal. A no is a refusal; without a terminal it is errNoTerminal.
func (s *session) confirm(question, no string) error {
	in, ok := s.stdin.(*os.File)
	if !ok || !term.IsTerminal(int(in.Fd())) || !s.stderr.terminal() {
		return errNoTerminal
	}
	s.stderr.Write([]byte(question + " [y/N] "))
	answer := make(chan string, 1)
	go func() { // a read of a terminal cannot be cancelled; the process ends with it
		line, _ := bufio.NewReader(in).ReadString('\n')
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case <-s.ctx.Done():
		s.note("")
		return errInterrupted
	case a := <-answer:
		if a != "y" && a != "yes" {
			return levelrail.Errorf(levelrail.ErrRefused, "%s", no)
		}
		return nil
	}
}

// yesFlag answers the question beforehand.
func yesFlag() ucli.Flag {
	return &ucli.BoolFlag{Name: "yes", Aliases: []string{"y"}, Usage: "do not ask"}
}

// confirmRevoke asks on a terminal. Elsewhere it goes on: who revokes in a script means it, and may be in a hurry.
func (s *session) confirmRevoke(c *ucli.Context, what string) error {
	if c.Bool("yes") {
		return nil
	}
	if err := s.confirm("Revoke "+what+"? It opens nothing any more, at once and for ever.", "nothing was revoked"); err != errNoTerminal {
		return err
	}
	return nil
}
