package cli

import (
	ucli "github.com/urfave/cli/v2"
)

func requestsCancel() verb {
	return verb{
		name: "cancel", args: "NAME ID", usage: "end a request in flight", complete: []string{"@model", "@request"},
		long:     "ID is what `levelrail models requests NAME` shows. The engine stops generating, the slot is free, and the client sees its answer break off.",
		examples: []example{{"End an endless stream", "levelrail models requests cancel chat req_7f3a…"}},
		run: func(s *session, c *ucli.Context) error {
			api, err := s.api()
			if err != nil {
				return err
			}
			r, err := api.CancelRequest(s.ctx, arg(c, 0), arg(c, 1))
			if err != nil {
				return err
			}
			if s.json {
				return s.document(r)
			}
			s.say("The request %s of %s is ended.", r.ID, arg(c, 0))
			return nil
		},
	}
}
