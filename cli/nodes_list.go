package cli

import (
	ucli "github.com/urfave/cli/v2"

	"github.com/levelrail/levelrail/client/wire"
)

func nodesList() verb {
	return verb{
		name: "list", usage: "list the nodes with their GPUs and models",
		examples: []example{{"All nodes", "levelrail nodes list"}},
		run: func(s *session, c *ucli.Context) error {
			api, err := s.api()
			if err != nil {
				return err
			}
			nodes, err := api.Nodes(s.ctx)
			if err != nil {
				return err
			}
			if s.json {
				return s.document(items(nodes))
			}
			if len(nodes) == 0 {
				s.note("No node has joined yet. On this machine: systemctl status levelrail-agent")
				return nil
			}
			t := table{head: []string{"NAME", "STATUS", "GPUS", "GPU MEMORY FREE", "DISK FREE", "MODELS", "OS", "AGENT"}}
			for _, n := range nodes {
				disk := ""
				if n.Disk != nil {
					disk = size(n.Disk.FreeBytes)
				}
				t.row(n.Name, s.online(n), itoa(len(n.Devices)), freeMemory(n), disk, itoa(len(n.Models)), n.OS, n.Version)
			}
			t.print(s.stdout)
			return nil
		},
	}
}

// online says whether a node reports.
func (s *session) online(n wire.Node) styled {
	switch {
	case !n.Online && n.LastReport != nil:
		return styled{"offline for " + s.age(*n.LastReport), styleRed}
	case !n.Online:
		return styled{"offline", styleRed}
	case n.Drained:
		return styled{"drained", styleYellow}
	}
	return styled{"online", styleGreen}
}

// freeMemory is the free memory of all GPUs of a node together, "" where a GPU does not say.
func freeMemory(n wire.Node) string {
	if len(n.Readings) == 0 || len(n.Readings) < len(n.Devices) {
		return ""
	}
	var sum int64
	for _, r := range n.Readings {
		if r.FreeBytes == nil {
			return ""
		}
		sum += *r.FreeBytes
	}
	return size(sum)
}
