package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	ucli "github.com/urfave/cli/v2"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

func nodesGet() verb {
	return verb{
		name: "get", args: "NAME", usage: "show one node: its GPUs, engines, disk and models", complete: []string{"@node"},
		long:     "NAME is the node's name or id.",
		examples: []example{{"Everything about one node", "levelrail nodes get gpu-01"}},
		run: func(s *session, c *ucli.Context) error {
			api, err := s.api()
			if err != nil {
				return err
			}
			n, err := api.Node(s.ctx, arg(c, 0))
			if err != nil {
				return err
			}
			if s.json {
				return s.document(n)
			}
			s.showNode(n)
			return nil
		},
	}
}

func (s *session) showNode(n wire.Node) {
	var f facts
	f.add("Name", n.Name)
	f.add("Id", n.ID)
	f.add("Status", s.online(n))
	if n.LastReport != nil {
		f.add("Last report", s.ago(*n.LastReport))
	}
	f.add("OS", n.OS)
	f.add("Agent", n.Version)
	if n.Disk != nil {
		f.add("Disk", fmt.Sprintf("%s free of %s at %s", size(n.Disk.FreeBytes), size(n.Disk.TotalBytes), n.Disk.Path))
	}
	f.add("Models", strings.Join(n.Models, ", "))
	for _, source := range slices.Sorted(maps.Keys(n.Labels)) {
		f.add("Labels by "+source, optionText(n.Labels[source]))
	}
	f.add("Since", s.ago(n.Stamp.CreatedAt))
	f.print(s.stdout)
	s.say("")
	if len(n.Devices) == 0 {
		s.say("No GPUs. Models run here with --gpus none.")
	} else {
		readings := map[string]levelrail.DeviceReading{}
		for _, r := range n.Readings {
			readings[r.UUID] = r
		}
		t := table{head: []string{"GPU", "CLASS", "MEMORY", "FREE", "BUSY", "UUID"}}
		for _, d := range n.Devices {
			r := readings[d.UUID]
			busy := "-"
			if r.Busy != nil {
				busy = itoa(*r.Busy) + "%"
			}
			t.row(itoa(d.Index), d.Class, orDash(d.MemoryBytes), orDash(r.FreeBytes), busy, d.UUID)
		}
		t.print(s.stdout)
	}
	if len(n.Engines) > 0 {
		s.say("")
		s.showEngines([]wire.Node{n})
	}
}
