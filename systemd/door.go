package systemd

import (
	"fmt"
	"path"
	"strings"
)

// DoorSocket and DoorService are the names of a replica's door units.
func DoorSocket(replica string) string  { return "levelrail-model-" + replica + ".door.socket" }
func DoorService(replica string) string { return "levelrail-model-" + replica + ".door.service" }

// proxyd is systemd's own forwarder between a socket and an address.
const proxyd = "/usr/lib/systemd/systemd-socket-proxyd"

// Door is the way into an engine that cannot serve a Unix socket: a socket at the path where every engine has one, and a
// forwarder that shares the engine's network and nothing else. The door outlives a crash of the engine, because the
// network lives as long as one of its units.
//
// The agent starts and stops the door with the engine. A connection that comes while the engine is down is accepted and
// closed without an answer, as the forwarder finds nobody; it never starts an engine, since waking is the gateway's
// decision and not that of whoever connects.
type Door struct {
	Marks   Marks
	Socket  string // /run/levelrail/engines/chat/engine.sock
	Address string // of the engine inside its own network, such as 127.0.0.1:11434
	Group   string // who may connect: levelrail-gateway
}

// Units describes the socket and the service.
func (d Door) Units() (socket, service Unit, err error) {
	name := DoorSocket(d.Marks.Replica)
	if err := checkPath("socket", d.Socket); err != nil {
		return Unit{}, Unit{}, fmt.Errorf("unit %s: %w", name, err)
	}
	if !strings.HasPrefix(d.Address, "127.") && !strings.HasPrefix(d.Address, "[::1]:") {
		return Unit{}, Unit{}, fmt.Errorf("unit %s: the engine's address %.40q is not on the loopback", name, d.Address)
	}
	command, err := Command(proxyd, "--connections-max=4096", d.Address)
	if err != nil {
		return Unit{}, Unit{}, fmt.Errorf("unit %s: %w", name, err)
	}
	what := fmt.Sprintf("Levelrail model %s (%s), door", d.Marks.Model, d.Marks.Engine)
	fields := Line{Key: "LogExtraFields", Value: Words("LEVELRAIL_MODEL="+d.Marks.Model, "LEVELRAIL_ENGINE="+d.Marks.Engine, "LEVELRAIL_REPLICA="+d.Marks.Replica)}

	socket = Unit{Name: name, Marks: d.Marks, Sections: []Section{
		{Name: "Unit", Lines: []Line{
			{Key: "Description", Value: Plain(what + " socket")},
			{Comment: "Without this directory systemd would make it open to every user of the machine.", Key: "AssertPathExists", Value: EnginesDir},
		}},
		{Name: "Socket", Lines: []Line{
			{Key: "ListenStream", Value: d.Socket},
			{Key: "DirectoryMode", Value: "0755"},
			{Comment: "The gateway's group alone may connect.", Key: "SocketGroup", Value: d.Group},
			{Key: "SocketMode", Value: "0660"},
			{Comment: "A stopped model refuses connections instead of leaving a dead file.", Key: "RemoveOnStop", Value: "yes"},
			// systemd starts this command first and removes the socket's file in the next moment, so the first try may be early.
			{Key: "ExecStopPost", Value: "-/bin/sh -c \"for i in 1 2 3 4 5; do rmdir " + path.Dir(d.Socket) + " 2>/dev/null && exit; sleep 0.1; done\""},
			{Comment: "A burst of connections must not close the door.", Key: "TriggerLimitIntervalSec", Value: "0"},
			{Key: "Backlog", Value: "4096"},
		}},
	}}

	lines := []Line{
		{Comment: "notify would never be told: the forwarder sits in another network than the one systemd expects.", Key: "Type", Value: "simple"},
		{Key: "ExecStart", Value: command},
		{Key: "Slice", Value: EnginesSlice},
		{Key: "LimitNOFILE", Value: "65536"},
		fields,
		{},
		{Key: "DynamicUser", Value: "yes"},
		{Comment: "It gets its connections from systemd and needs no file of anybody.", Key: "TemporaryFileSystem", Value: "/run:ro /var:ro /dev/shm:mode=1777"},
		{Key: "MemoryMax", Value: "512M"},
		hide()[0],
		{Key: "DevicePolicy", Value: "closed"},
		{Key: "PrivateDevices", Value: "yes"},
		{Key: "PrivateUsers", Value: "yes"},
		{Comment: "The engine's network, which has a loopback and nothing else (JoinsNamespaceOf above).", Key: "PrivateNetwork", Value: "yes"},
		{Key: "IPAddressDeny", Value: "any"},
		{Key: "IPAddressAllow", Value: "localhost"},
		{Key: "RestrictAddressFamilies", Value: "AF_INET AF_INET6"},
	}
	lines = append(lines, hardening...)
	lines = append(lines, Engine{}.process()...)
	service = Unit{Name: DoorService(d.Marks.Replica), Marks: d.Marks, Sections: []Section{
		{Name: "Unit", Lines: []Line{
			{Key: "Description", Value: Plain(what)},
			{Key: "Requires", Value: name},
			{Key: "After", Value: name + " " + EngineUnit(d.Marks.Replica)},
			{Key: "JoinsNamespaceOf", Value: EngineUnit(d.Marks.Replica)},
			{Comment: "Each connection that finds no engine may end the forwarder; that must never be a reason to stop trying.", Key: "StartLimitIntervalSec", Value: "0"},
		}},
		{Name: "Service", Lines: lines},
	}}
	return socket, service, nil
}

// SocketPath is where a replica's engine is reached: the engine's own socket, or its door's.
func SocketPath(replica string) string { return path.Join(EnginesDir, replica, "engine.sock") }
