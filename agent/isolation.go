package agent

import (
	"io"
	"os"

	"github.com/levelrail/levelrail/agent/units"
	"github.com/levelrail/levelrail/systemd"
)

// mostDropIn is how much of a drop-in is read.
const mostDropIn = 64 << 10

// notIsolated lists what somebody of this machine took away from a replica's isolation: by drop-ins of its units, which is
// their right and has to be seen, by hand in a unit's file, or for its cards by a setting.
func (a *Agent) notIsolated(want Want, have Have) []string {
	var out []string
	for _, u := range []struct {
		name  string
		state units.State
	}{{systemd.EngineUnit(have.Replica), have.Engine}, {systemd.DoorService(have.Replica), have.Door}} {
		file, written := have.Files[u.name]
		if !written {
			continue
		}
		ours := file.Text
		var changes []systemd.DropIn
		if !file.Intact {
			for _, w := range want.Units {
				if w.Name == u.name {
					ours = w.Text
					changes = append(changes, systemd.DropIn{Path: a.Paths.unit(u.name), Text: file.Text})
					out = append(out, systemd.Missing(ours, file.Text)...)
				}
			}
		}
		for _, path := range u.state.DropIns {
			if text, err := readSome(path); err == nil { // one that is gone is not in force for long
				changes = append(changes, systemd.DropIn{Path: path, Text: text})
			}
		}
		out = append(out, systemd.Weakened(ours, changes)...)
	}
	if a.Settings.GPUAttach == "legacy" && len(want.Assignment.Devices) > 0 {
		out = append(out, "every card can be opened (APP_GPU_ATTACH=legacy)")
	}
	return out
}

// readSome reads a drop-in. systemd has read it already, so it is a file of root's.
func readSome(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, mostDropIn))
	return string(b), err
}
