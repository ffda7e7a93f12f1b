package cli

import (
	"fmt"

	ucli "github.com/urfave/cli/v2"

	"github.com/levelrail/levelrail/client/wire"
)

func statusVerb() verb {
	return verb{
		name: "status", usage: "show how the whole installation stands",
		examples: []example{{"At a glance", "levelrail status"}},
		run: func(s *session, c *ucli.Context) error {
			api, err := s.api()
			if err != nil {
				return err
			}
			st, err := api.Status(s.ctx)
			if err != nil {
				return err
			}
			if s.json {
				return s.document(st)
			}
			var f facts
			f.add("Models", counts(st.Models, "ready"))
			f.add("Nodes", counts(st.Nodes, "online"))
			f.add("Gateways", counts(st.Gateways, "connected"))
			f.add("Server", fmt.Sprintf("%s, %s, up %s", st.Version, st.Role, s.age(st.StartedAt)))
			f.add("API", st.TLS)
			f.add("CA file", st.CAFile)
			f.add("Cluster", st.ClusterID)
			f.print(s.stdout)
			for _, w := range st.Warnings {
				s.say("%s %s", s.stdout.paint(styled{"warning:", styleYellow}), plain(w))
			}
			if st.Nodes.Total == 0 {
				s.note("No node has joined yet. On this machine: systemctl status levelrail-agent")
			}
			if st.Models.Total == 0 {
				s.note("Begin with: levelrail engines list (what is installed), then levelrail models deploy --help (examples for each engine)")
			}
			return nil
		},
	}
}

// counts is "2 of 3 ready", coloured by whether all are well.
func counts(c wire.Counts, well string) styled {
	text := fmt.Sprintf("%d of %d %s", c.Ready, c.Total, well)
	switch {
	case c.Total == 0:
		return styled{text: "none"}
	case c.Ready == c.Total:
		return styled{text, styleGreen}
	}
	return styled{text, styleYellow}
}
