package systemd

import "fmt"

// FetchUnit is the name of the one-shot unit that brings a model's weights.
func FetchUnit(model string) string { return "levelrail-fetch-" + model + ".service" }

// Fetch is the one-shot process that brings a model's weights to the node. It is the only process that sees the Hub
// token, and of Levelrail's directories it can write the weights and its own spec's directory.
type Fetch struct {
	Marks   Marks
	Agent   string // absolute path of levelrail-agent
	Dir     string // its spec.json and progress.json, such as /run/levelrail-agent/fetch-chat
	Weights string // the node's whole store of weights: hard links need one mount
	Token   string // path of the token's file; empty: none
	Network bool   // it has to download; a file of the node needs no network
}

// Unit describes the service. It is wanted by nothing: the agent starts it, and after a reboot starts it again.
func (f Fetch) Unit() (Unit, error) {
	name := FetchUnit(f.Marks.Model)
	for what, p := range map[string]string{"directory": f.Dir, "weights": f.Weights, "program": f.Agent} {
		if err := checkPath(what, p); err != nil {
			return Unit{}, fmt.Errorf("unit %s: %w", name, err)
		}
	}
	command, err := Command(f.Agent, "fetch", f.Dir+"/spec.json")
	if err != nil {
		return Unit{}, fmt.Errorf("unit %s: %w", name, err)
	}
	unit := []Line{
		{Key: "Description", Value: Plain("Levelrail weights of model " + f.Marks.Model)},
		{Key: "Documentation", Value: "man:levelrail-agent(8)"},
	}
	if f.Network {
		unit = append(unit, Line{Key: "After", Value: "network-online.target"})
	}
	service := []Line{
		{Key: "Type", Value: "exec"},
		{Key: "ExecStart", Value: command},
		{Comment: "The agent tries again, when and as the reason of a failure asks for.", Key: "Restart", Value: "no"},
		{Key: "TimeoutStopSec", Value: "20"},
		{Comment: "Engines that serve come first.", Key: "Nice", Value: "5"},
		{Key: "IOSchedulingPriority", Value: "6"},
		{Key: "LimitNOFILE", Value: "65536"},
		{Key: "LimitCORE", Value: "0"},
		{Key: "LogExtraFields", Value: Words("LEVELRAIL_MODEL="+f.Marks.Model, "LEVELRAIL_ENGINE="+f.Marks.Engine, "LEVELRAIL_REPLICA="+f.Marks.Replica)},
	}
	if f.Token != "" {
		if err := checkPath("token", f.Token); err != nil {
			return Unit{}, fmt.Errorf("unit %s: %w", name, err)
		}
		service = append(service, Line{Comment: "The Hub token, for this process alone. The file is there only while the download runs.", Key: "LoadCredential", Value: "hf_token:" + f.Token})
	}
	service = append(service,
		Line{},
		Line{Comment: "root, because the weights are root's, but with the one right that reading a user's file takes.", Key: "CapabilityBoundingSet", Value: "CAP_DAC_READ_SEARCH"},
		Line{Key: "AmbientCapabilities", Value: ""},
		Line{Key: "UMask", Value: "0022"},
		Line{Comment: "The weights are one mount, since a hard link cannot cross two. Keys, the store and other fetches are not there.",
			Key: "TemporaryFileSystem", Value: "/run/levelrail:ro /run/levelrail-agent:ro /var/lib/levelrail:ro"},
		Line{Key: "BindPaths", Value: f.Weights + " " + f.Dir},
		Line{Key: "DevicePolicy", Value: "closed"},
		Line{Key: "PrivateDevices", Value: "yes"})
	if f.Network {
		service = append(service, Line{Key: "RestrictAddressFamilies", Value: "AF_UNIX AF_INET AF_INET6 AF_NETLINK"})
	} else {
		service = append(service, Line{Comment: "The source is a file of this machine: nothing to talk to, except an engine's own importer on the loopback.", Key: "PrivateNetwork", Value: "yes"},
			Line{Key: "IPAddressDeny", Value: "any"},
			Line{Key: "IPAddressAllow", Value: "localhost"},
			Line{Key: "RestrictAddressFamilies", Value: "AF_UNIX AF_INET AF_INET6 AF_NETLINK"})
	}
	for _, l := range hardening {
		switch l.Key {
		case "CapabilityBoundingSet", "AmbientCapabilities":
			continue
		case "ProtectHome": // the source may be a file below /home
			l.Value = "read-only"
		case "PrivateTmp": // or below /tmp
			continue
		}
		service = append(service, l)
	}
	service = append(service,
		Line{Key: "SystemCallFilter", Value: "@system-service"},
		Line{Key: "SystemCallFilter", Value: "~@privileged @resources"},
		Line{Key: "SystemCallErrorNumber", Value: "EPERM"})
	return Unit{Name: name, Marks: f.Marks, Sections: []Section{
		{Name: "Unit", Lines: unit},
		{Name: "Service", Lines: service},
	}}, nil
}
