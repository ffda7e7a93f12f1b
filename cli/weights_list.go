package cli

import (
	ucli "github.com/urfave/cli/v2"
)

func weightsList() verb {
	return verb{
		name: "list", usage: "list the weights on the nodes' disks",
		long: "Each set is named after the model that it was fetched for, and stays when that is deleted. USED says whether the model is deployed now. A file that several sets of a " +
			"node share is stored once, so that their sizes may be more than what the disk holds.",
		examples: []example{{"What lies on the disks", "levelrail weights list"}},
		run: func(s *session, c *ucli.Context) error {
			api, err := s.api()
			if err != nil {
				return err
			}
			all, err := api.Weights(s.ctx)
			if err != nil {
				return err
			}
			if s.json {
				return s.document(items(all))
			}
			if len(all) == 0 {
				s.note("No node has weights.")
				return nil
			}
			t := table{head: []string{"NAME", "NODE", "SIZE", "USED", "FETCHED", "SOURCE"}}
			for _, w := range all {
				used := "no"
				if w.Used {
					used = "yes"
				}
				t.row(w.Name, w.Node, size(w.Bytes), used, s.age(w.FetchedAt)+" ago", w.Source)
			}
			t.print(s.stdout)
			return nil
		},
	}
}
