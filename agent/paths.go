package agent

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/levelrail/levelrail/systemd"
)

// Paths are the places that the agent works in.
type Paths struct {
	State   string // the agent's own, 0700: identity, credentials, what units were written from
	Weights string // the node's store of weights
	Run     string // what fetches read and write; outlives a restart of the agent, not a reboot
	Units   string // unit files
}

// DefaultPaths are those of an installed agent.
var DefaultPaths = Paths{
	State:   "/var/lib/levelrail/agent",
	Weights: "/var/lib/levelrail/weights",
	Run:     "/run/levelrail-agent",
	Units:   "/etc/systemd/system",
}

func (p Paths) unit(name string) string { return filepath.Join(p.Units, name) }
func (p Paths) wants(name string) string {
	return filepath.Join(p.Units, systemd.EnginesTarget+".wants", name)
}
func (p Paths) credentials(replica string) string {
	return filepath.Join(p.State, "credentials", replica)
}
func (p Paths) applied(replica string) string {
	return filepath.Join(p.State, "applied", replica+".json")
}
func (p Paths) fetch(model string) string { return filepath.Join(p.Run, "fetch-"+model) }
func (p Paths) set(model string) string   { return filepath.Join(p.Weights, model) }

// cache is a replica's cache directory below /var/cache.
func cache(replica string) string { return "levelrail/engines/" + replica }

// Host is what the machine is.
type Host struct {
	Name         string // host name
	Distribution string // debian, ubuntu, …
	Version      string // 12, 13, 14; a code name where there is no number yet
}

// String is such as "debian 14".
func (h Host) String() string { return strings.TrimSpace(h.Distribution + " " + h.Version) }

// debian are the releases that have no number in os-release while they are being made.
var debian = map[string]string{"trixie": "13", "forky": "14", "duke": "15"}

// ReadHost reads the host's name and its os-release.
func ReadHost(osRelease string) Host {
	var h Host
	h.Name, _ = os.Hostname() // empty: the control plane shows the node's id
	b, err := os.ReadFile(osRelease)
	if err != nil {
		return h
	}
	values := map[string]string{}
	for line := range strings.Lines(string(b)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			values[key] = strings.Trim(value, `"'`)
		}
	}
	h.Distribution, h.Version = values["ID"], values["VERSION_ID"]
	if h.Version == "" {
		h.Version = values["VERSION_CODENAME"]
		if number, ok := debian[h.Version]; ok && h.Distribution == "debian" {
			h.Version = number
		}
	}
	return h
}
