package cli

import (
	ucli "github.com/urfave/cli/v2"

	"github.com/levelrail/levelrail/client/wire"
)

func modelsWait() verb {
	return verb{
		name: "wait", args: "NAME", usage: "follow a model until it is ready", complete: []string{"@model"},
		long: "Shows the download and the start like `levelrail models deploy --wait`: a bar on a terminal, a line for each change elsewhere. It ends with 0 when the model " +
			"serves (or sleeps until its first request), with 4 when a reason needs somebody, with 6 when --timeout passed. Nothing is changed by it, and Ctrl-C ends only the following.",
		examples: []example{
			{"Until it serves", "levelrail models wait chat"},
			{"In a script", "levelrail models wait chat --timeout 20m && ./smoke-test"},
		},
		flags: []ucli.Flag{timeoutFlag()},
		run: func(s *session, c *ucli.Context) error {
			limit, err := parseSpan("timeout", c.String("timeout"))
			if err != nil {
				return err
			}
			api, err := s.api()
			if err != nil {
				return err
			}
			m, err := api.Model(s.ctx, arg(c, 0))
			if err != nil {
				return err
			}
			last, err := s.follow(api, goal{model: m.Name, doing: "the work on " + m.Name, revision: m.Revision}, limit)
			if last != nil {
				m = *last
			}
			switch {
			case s.json:
				if docErr := s.document(m); err == nil {
					err = docErr
				}
			case err == nil:
				s.showEndpoint(m)
			}
			return err
		},
	}
}

// showEndpoint is the last word of a wait.
func (s *session) showEndpoint(m wire.Model) {
	s.say("%s is served at %s", m.Name, plain(m.URL))
}
