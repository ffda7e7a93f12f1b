package cli

import (
	"cmp"
	"slices"

	ucli "github.com/urfave/cli/v2"

	"github.com/levelrail/levelrail/client/wire"
)

func enginesList() verb {
	return verb{
		name: "list", usage: "list which engines each node has, and how to install those it lacks",
		long: "An engine is found in the usual places, or where APP_MODEL_ENGINE_LLAMACPP, APP_MODEL_ENGINE_OLLAMA or APP_MODEL_ENGINE_VLLM in /etc/default/levelrail-agent " +
			"of the node say.",
		examples: []example{
			{"All nodes", "levelrail engines list"},
			{"One node", "levelrail engines list --node gpu-01"},
		},
		flags: []ucli.Flag{&ucli.StringFlag{Name: "node", Usage: "only this node, by name or id"}},
		run: func(s *session, c *ucli.Context) error {
			api, err := s.api()
			if err != nil {
				return err
			}
			var nodes []wire.Node
			if name := c.String("node"); name != "" {
				n, err := api.Node(s.ctx, name)
				if err != nil {
					return err
				}
				nodes = []wire.Node{n}
			} else if nodes, err = api.Nodes(s.ctx); err != nil {
				return err
			}
			if s.json {
				return s.document(items(engineRows(nodes)))
			}
			if len(engineRows(nodes)) == 0 {
				s.note("No node has told of its engines yet. On this machine: systemctl status levelrail-agent")
				return nil
			}
			s.showEngines(nodes)
			return nil
		},
	}
}

// engineRow is one engine of one node, as --json shows it: what the node reported, with the node's name.
type engineRow struct {
	NodeID   string `json:"node_id"`
	NodeName string `json:"node_name"`
	wire.EngineStatus
}

func engineRows(nodes []wire.Node) []engineRow {
	rows := []engineRow{}
	for _, n := range nodes {
		for _, e := range n.Engines {
			rows = append(rows, engineRow{n.ID, n.Name, e})
		}
	}
	slices.SortStableFunc(rows, func(a, b engineRow) int {
		return cmp.Or(cmp.Compare(a.NodeName, b.NodeName), cmp.Compare(a.Engine, b.Engine))
	})
	return rows
}

func (s *session) showEngines(nodes []wire.Node) {
	t := table{head: []string{"ENGINE", "NODE", "INSTALLED", "VERSION", "PROGRAM"}}
	rows := engineRows(nodes)
	for _, r := range rows {
		installed := styled{"no", styleYellow}
		if r.Installed {
			installed = styled{"yes", styleGreen}
		}
		t.row(r.Engine, r.NodeName, installed, r.Version, r.Program)
	}
	t.print(s.stdout)
	for _, r := range rows {
		if !r.Installed && r.Next != "" {
			s.say("%s on %s: %s", r.Engine, r.NodeName, plain(r.Next))
		}
	}
}
