package cli

import (
	ucli "github.com/urfave/cli/v2"
)

func weightsDelete() verb {
	return verb{
		name: "delete", args: "NAME", usage: "delete weights that no model uses from a node's disk",
		long: "NAME is what `levelrail weights list` shows: the model that the weights were fetched for. Weights of a model that is deployed are refused. It ends when they are gone. " +
			"On a terminal it asks first; elsewhere it needs --yes.",
		examples: []example{
			{"Free the disk of a model that was deleted", "levelrail weights delete chat"},
			{"On one of several nodes, in a script", "levelrail weights delete chat --node gpu-01 --yes"},
		},
		flags: []ucli.Flag{&ucli.StringFlag{Name: "node", Usage: "the node, where several have weights of that name"}, yesFlag()},
		run: func(s *session, c *ucli.Context) error {
			api, err := s.api()
			if err != nil {
				return err
			}
			if !c.Bool("yes") {
				if err := s.confirm("Delete the weights "+arg(c, 0)+"? Deploying a model that needs them fetches them again.", "nothing was deleted"); err != nil {
					return err
				}
			}
			w, err := api.DeleteWeights(s.ctx, arg(c, 0), c.String("node"))
			if err != nil {
				return err
			}
			if s.json {
				return s.document(w)
			}
			s.say("The weights %s (%s) are gone from %s.", w.Name, size(w.Bytes), w.Node)
			return nil
		},
	}
}
