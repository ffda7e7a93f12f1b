package systemd

import (
	"fmt"
	"slices"
	"strings"
)

// FetchUnit is the name of the one-shot unit that brings a model's weights.
func FetchUnit(model string) string { return "levelrail-fetch-" + model + ".service" }

// Fetch is the one-shot process that brings a model's weights to the node. It talks to the Internet, or runs an engine's
// own import, so it is the least trusted of all: a user of its own without rights, who writes one directory, the stage.
// The agent checks what lies there afterwards. It is the only process that sees the Hub token.
type Fetch struct {
	Marks   Marks
	Agent   string // absolute path of levelrail-agent
	Spec    string // path of what to fetch, readable by root: the process gets it as a credential
	Stage   string // the directory that it works in, such as /var/lib/levelrail/weights/.fetch/chat
	Token   string // path of the token's file; empty: none
	Program string // of the engine whose import it runs; empty: none
	Network bool   // it has to download; the import of a file of the node needs no network
}

// specCredential is the name of the credential that the order comes as.
const specCredential = "spec.json"

// Unit describes the service. It is wanted by nothing: the agent starts it, and after a reboot starts it again.
func (f Fetch) Unit() (Unit, error) {
	name := FetchUnit(f.Marks.Model)
	for what, p := range map[string]string{"order": f.Spec, "stage": f.Stage, "program": f.Agent} {
		if err := checkPath(what, p); err != nil {
			return Unit{}, fmt.Errorf("unit %s: %w", name, err)
		}
	}
	command, err := Command(f.Agent, "fetch", CredentialDir(name)+"/"+specCredential)
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
		{Key: "TasksMax", Value: "1024"},
		{Comment: "What it downloads passes through the page cache, which gives way; a process that grows ends here.", Key: "MemoryMax", Value: "25%"},
		{Key: "LogExtraFields", Value: Words("LEVELRAIL_MODEL="+f.Marks.Model, "LEVELRAIL_ENGINE="+f.Marks.Engine, "LEVELRAIL_REPLICA="+f.Marks.Replica)},
		{Comment: "What to fetch: a proxy's address in it may hold a password.", Key: "LoadCredential", Value: specCredential + ":" + f.Spec},
	}
	if f.Token != "" {
		if err := checkPath("token", f.Token); err != nil {
			return Unit{}, fmt.Errorf("unit %s: %w", name, err)
		}
		service = append(service, Line{Comment: "The Hub token, for this process alone. The file is there only while the download starts.", Key: "LoadCredential", Value: "hf_token:" + f.Token})
	}
	service = append(service,
		Line{},
		Line{Comment: "A user of its own, without rights, for as long as the unit runs. The next run may be another one, so the stage is open\nto all; the directory above it is closed.", Key: "DynamicUser", Value: "yes"},
		Line{Key: "UMask", Value: "0000"},
		Line{Comment: "No socket and no state of anybody: of /run and /var there is only what is bound here.",
			Key: "TemporaryFileSystem", Value: "/run:ro /var:ro /dev/shm:mode=1777"},
		Line{Key: "BindPaths", Value: f.Stage})
	if f.Network {
		service = append(service, Line{Comment: "Where names are looked up, as far as /etc/resolv.conf leads there.", Key: "BindReadOnlyPaths", Value: resolverFiles})
	}
	service = append(service, hide(f.Program)...)
	service = append(service,
		Line{Key: "DevicePolicy", Value: "closed"},
		Line{Key: "PrivateDevices", Value: "yes"},
		Line{Key: "PrivateUsers", Value: "yes"})
	if !f.Network {
		service = append(service, Line{Comment: "The source is a file of this machine: nothing to talk to, except an engine's own importer on the loopback.", Key: "PrivateNetwork", Value: "yes"},
			Line{Key: "IPAddressDeny", Value: "any"},
			Line{Key: "IPAddressAllow", Value: "localhost"})
	}
	service = append(service, Line{Comment: "Not AF_UNIX: it talks to nobody on this machine, and abstract sockets are in no file system that could be hidden.", Key: "RestrictAddressFamilies", Value: "AF_INET AF_INET6"})
	service = append(service, hardening...)
	service = append(service,
		Line{Key: "SystemCallFilter", Value: "@system-service"},
		Line{Key: "SystemCallFilter", Value: "~@privileged @resources"},
		Line{Key: "SystemCallErrorNumber", Value: "EPERM"})
	return Unit{Name: name, Marks: f.Marks, Sections: []Section{
		{Name: "Unit", Lines: unit},
		{Name: "Service", Lines: service},
	}}, nil
}

// resolverFiles are those that /etc/resolv.conf is a link to on one machine or another. Files, so that no socket beside
// them is there.
const resolverFiles = "-/run/systemd/resolve/stub-resolv.conf -/run/systemd/resolve/resolv.conf -/run/NetworkManager/resolv.conf " +
	"-/run/NetworkManager/no-stub-resolv.conf -/run/resolvconf/resolv.conf -/run/connman/resolv.conf"

// hide takes away the directories in which other software of a machine keeps data and sockets, except those that the
// given programs lie in.
func hide(programs ...string) []Line {
	var paths []string
	for _, dir := range []string{"/srv", "/mnt", "/media", "/data", "/models", "/boot", "/var/spool", "/var/mail", "/var/www", "/var/opt", "/var/local", "/var/log", "/var/backups"} {
		if !slices.ContainsFunc(programs, func(p string) bool { return strings.HasPrefix(p, dir+"/") }) {
			paths = append(paths, "-"+dir)
		}
	}
	return []Line{{Comment: "Other software's places.", Key: "InaccessiblePaths", Value: strings.Join(paths, " ")}}
}
