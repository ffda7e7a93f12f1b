package systemd

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// EngineUnit is the name of a replica's engine unit: levelrail-model-chat.service, levelrail-model-chat.1.service.
func EngineUnit(replica string) string { return "levelrail-model-" + replica + ".service" }

// EnginesTarget starts every engine of a node at boot, EnginesSlice holds their processes, EnginesDir their sockets.
const (
	EnginesTarget = "levelrail-engines.target"
	EnginesSlice  = "levelrail-engines.slice"
	EnginesDir    = "/run/levelrail/engines"
)

// CredentialDir is where systemd shows a unit its credentials: the %d of that unit, as a path.
func CredentialDir(unit string) string { return "/run/credentials/" + unit }

// Engine is the engine process of one replica, with the sandbox that real engines were run under.
type Engine struct {
	Marks  Marks
	Number int // of the replica, for people

	Args []string // argv; the first is the absolute path of the program
	Env  []string // NAME=value, without secrets: every local user can read it over D-Bus

	EnvironmentFile string       // of root only, for an engine that takes its key from the environment; may be empty
	Credentials     []Credential // files that the process finds in CredentialDir

	Visible []string // paths that the program lies in, so that the places they are in stay visible
	Memory  string   // MemoryMax=, such as 90%; empty: no bound of its own

	Weights string // directory of the replica's own weights, seen read-only
	Cache   string // below /var/cache, such as levelrail/engines/chat: writable, kept over restarts
	Door    bool   // the engine serves TCP inside its own network; a Door leads from the socket to it

	Loopback    bool     // the process talks TCP or UDP within itself
	Resources   bool     // needs the system calls of @resources (mbind, sched_setaffinity)
	WriteExec   bool     // makes memory executable (just-in-time compilers)
	SystemCalls []string // beyond @system-service
	StopSeconds int      // how long an orderly stop may take
	KillMode    string   // control-group or mixed

	Minors  []int // the cards it may open, by minor number of /dev/nvidiaN; none: no devices at all
	AllGPUs bool  // every card instead: selection by environment, no isolation
	Groups  []int // groups that own the device nodes, where they are not open to all
}

// Credential is a file that systemd hands to the unit's process alone.
type Credential struct {
	Name string
	Path string // on the host, readable by root
}

// Unit describes the engine's service.
func (e Engine) Unit() (Unit, error) {
	name := EngineUnit(e.Marks.Replica)
	command, err := Command(e.Args...)
	if err != nil {
		return Unit{}, fmt.Errorf("unit %s: %w", name, err)
	}
	if err := checkPath("weights", e.Weights); err != nil {
		return Unit{}, fmt.Errorf("unit %s: %w", name, err)
	}
	own := path.Join(EnginesDir, e.Marks.Replica)

	unit := []Line{
		{Key: "Description", Value: Plain(fmt.Sprintf("Levelrail model %s (%s, replica %d)", e.Marks.Model, e.Marks.Engine, e.Number))},
		{Key: "Documentation", Value: "man:levelrail-agent(8)"},
		{Comment: "Without this directory systemd would make it open to every user of the machine.", Key: "AssertPathExists", Value: EnginesDir},
	}
	if e.gpu() {
		unit = append(unit, Line{Comment: "CUDA needs this module's device, which an unprivileged process cannot make.", Key: "Wants", Value: "modprobe@nvidia_uvm.service"},
			Line{Key: "After", Value: "modprobe@nvidia_uvm.service"})
	}
	if e.Door {
		unit = append(unit, Line{Comment: "The way in: this engine serves TCP, inside a network that only the door shares.", Key: "Wants", Value: DoorSocket(e.Marks.Replica)})
	}
	unit = append(unit,
		Line{Comment: "A crash loop ends here; the agent tells the first error and tries again later.", Key: "StartLimitIntervalSec", Value: "5min"},
		Line{Key: "StartLimitBurst", Value: "5"})

	service := []Line{
		{Comment: "Ready is what the agent's probe of the engine says, so starting the process is all that systemd waits for.", Key: "Type", Value: "exec"},
		{Key: "ExecStart", Value: command},
		{Key: "Slice", Value: EnginesSlice},
		{Comment: "Always: some engines end with status 0 when they lost a worker.", Key: "Restart", Value: "always"},
		{Key: "RestartSec", Value: "5"},
		{Key: "TimeoutStopSec", Value: strconv.Itoa(max(e.StopSeconds, 10))},
		{Key: "KillMode", Value: e.killMode()},
		{Comment: "An engine that lost one process to the kernel is no engine.", Key: "OOMPolicy", Value: "stop"},
		{Key: "OOMScoreAdjust", Value: "500"},
		{Key: "LimitMEMLOCK", Value: "infinity"},
		{Key: "LimitNOFILE", Value: "65536"},
		{Key: "LimitCORE", Value: "0"},
		{Key: "TasksMax", Value: "16384"},
		{Comment: "What is left over keeps the machine alive (APP_MODEL_ENGINE_MEMORY_MAX). Weights that are mapped give way and do not count.", Key: "MemoryMax", Value: e.memory()},
		{Comment: "Found again with journalctl LEVELRAIL_MODEL=" + e.Marks.Model, Key: "LogExtraFields",
			Value: Words("LEVELRAIL_MODEL="+e.Marks.Model, "LEVELRAIL_ENGINE="+e.Marks.Engine, "LEVELRAIL_REPLICA="+e.Marks.Replica)},
		{},
		{Comment: "A user of its own, without rights, for as long as the unit runs.", Key: "DynamicUser", Value: "yes"},
	}
	if !e.Door {
		service = append(service, Line{Comment: "The socket's directory. Everyone may connect who can reach it, and that is the gateway alone: the directory above is\nclosed to others, and other engines do not see it.",
			Key: "RuntimeDirectory", Value: Plain(strings.TrimPrefix(own, "/run/"))},
			Line{Key: "UMask", Value: "0000"})
	}
	service = append(service, Line{Comment: "The engine sees its own socket and its own weights; no socket and no state of anybody else. Its output reaches the\njournal all the same: systemd opens that way before.",
		Key: "TemporaryFileSystem", Value: "/run:ro /var/lib:ro /dev/shm:mode=1777"})
	if !e.Door {
		service = append(service, Line{Key: "BindPaths", Value: own})
	}
	readOnly := e.Weights
	if e.gpu() {
		// The driver's daemons of the machine: without the first one each start of an engine initialises the card anew.
		readOnly += " -/run/nvidia-persistenced -/run/nvidia-fabricmanager"
	}
	service = append(service, Line{Key: "BindReadOnlyPaths", Value: readOnly})
	service = append(service, hide(e.Visible...)...)
	if e.Cache != "" {
		dir := path.Join("/var/cache", e.Cache)
		if err := checkPath("cache directory", dir); err != nil {
			return Unit{}, fmt.Errorf("unit %s: %w", name, err)
		}
		service = append(service,
			Line{Key: "CacheDirectory", Value: e.Cache},
			Line{Comment: "A dynamic user has no home; compilers need a place that is writable and executable.", Key: "Environment",
				Value: Words("HOME="+dir, "XDG_CACHE_HOME="+dir, "TMPDIR="+dir, "NO_COLOR=1", "TERM=dumb")})
	}
	for _, v := range e.Env {
		if name, _, ok := strings.Cut(v, "="); !ok || name == "" {
			return Unit{}, fmt.Errorf("unit %s: environment %.40q is not NAME=value", EngineUnit(e.Marks.Replica), v)
		}
		service = append(service, Line{Key: "Environment", Value: Words(v)})
	}
	if e.EnvironmentFile != "" {
		if err := checkPath("environment file", e.EnvironmentFile); err != nil {
			return Unit{}, fmt.Errorf("unit %s: %w", name, err)
		}
		service = append(service, Line{Comment: "The engine's key. The file is root's alone, and its text shows nowhere on D-Bus.", Key: "EnvironmentFile", Value: e.EnvironmentFile})
	}
	for i, c := range e.Credentials {
		if err := checkPath("credential", c.Path); err != nil {
			return Unit{}, fmt.Errorf("unit %s: %w", name, err)
		}
		l := Line{Key: "LoadCredential", Value: c.Name + ":" + c.Path}
		if i == 0 {
			l.Comment = "Secrets: copied at each start to where only this process can read them."
		}
		service = append(service, l)
	}
	service = append(service, Line{})
	service = append(service, e.devices()...)
	service = append(service, e.network()...)
	service = append(service, hardening...)
	service = append(service, e.process()...)

	return Unit{Name: name, Marks: e.Marks, Sections: []Section{
		{Name: "Unit", Lines: unit},
		{Name: "Service", Lines: service},
		{Name: "Install", Lines: []Line{{Key: "WantedBy", Value: EnginesTarget}}},
	}}, nil
}

func (e Engine) gpu() bool { return e.AllGPUs || len(e.Minors) > 0 }

func (e Engine) memory() string {
	if e.Memory == "" {
		return "infinity"
	}
	return e.Memory
}

func (e Engine) killMode() string {
	if e.KillMode == "" {
		return "control-group"
	}
	return e.KillMode
}

// devices are the cards that the unit may open. /dev/char/MAJOR:MINOR is read as numbers, so the rule holds also for a
// node that is made after the start, and gives this card only, where char-nvidia* would give every one.
func (e Engine) devices() []Line {
	lines := []Line{{Key: "DevicePolicy", Value: "closed"}}
	switch {
	case e.AllGPUs:
		lines = append(lines, Line{Comment: "Every card is open (APP_GPU_ATTACH=legacy): the environment selects, nothing isolates.", Key: "DeviceAllow", Value: "char-nvidia* rw"},
			Line{Key: "DeviceAllow", Value: "char-nvidia-uvm rw"})
	case len(e.Minors) > 0:
		for i, m := range e.Minors {
			l := Line{Key: "DeviceAllow", Value: fmt.Sprintf("/dev/char/195:%d rw", m)}
			if i == 0 {
				l.Comment = "The cards it was given, by number: other cards cannot be opened. Then the driver's control nodes."
			}
			lines = append(lines, l)
		}
		lines = append(lines, Line{Key: "DeviceAllow", Value: "/dev/char/195:255 rw"}, Line{Key: "DeviceAllow", Value: "char-nvidia-uvm rw"})
	default:
		lines = append(lines, Line{Key: "PrivateDevices", Value: "yes"}, Line{Key: "PrivateUsers", Value: "yes"})
	}
	if e.gpu() && len(e.Groups) == 0 {
		// The nodes are open to all users. Where a group owns them, that group would be nobody in there.
		lines = append(lines, Line{Key: "PrivateUsers", Value: "yes"})
	}
	if e.gpu() && len(e.Groups) > 0 {
		groups := slices.Clone(e.Groups)
		slices.Sort(groups)
		words := make([]string, len(groups))
		for i, g := range groups {
			words[i] = strconv.Itoa(g)
		}
		lines = append(lines, Line{Comment: "The group that this machine's device nodes belong to.", Key: "SupplementaryGroups", Value: strings.Join(words, " ")})
	}
	return lines
}

func (e Engine) network() []Line {
	lines := []Line{
		{Comment: "No network: the engine cannot send anything out and cannot be reached past the gateway.", Key: "PrivateNetwork", Value: "yes"},
		{Key: "IPAddressDeny", Value: "any"},
	}
	if e.Loopback || e.Door {
		families := "AF_INET AF_INET6"
		if !e.Door || e.gpu() { // its own socket; NCCL and the driver
			families = "AF_UNIX AF_INET AF_INET6 AF_NETLINK"
		}
		return append(lines, Line{Comment: "Its processes talk to each other over the loopback of its own network.", Key: "IPAddressAllow", Value: "localhost"},
			Line{Key: "RestrictAddressFamilies", Value: families})
	}
	return append(lines, Line{Key: "RestrictAddressFamilies", Value: "AF_UNIX"})
}

// process restricts what the program may ask of the kernel.
func (e Engine) process() []Line {
	var lines []Line
	if !e.WriteExec {
		lines = append(lines, Line{Key: "MemoryDenyWriteExecute", Value: "yes"})
	}
	calls := append([]string{"@system-service"}, e.SystemCalls...)
	deny := "~@privileged"
	if !e.Resources {
		deny += " @resources"
	}
	return append(lines,
		Line{Key: "SystemCallFilter", Value: strings.Join(calls, " ")},
		Line{Key: "SystemCallFilter", Value: deny},
		Line{Key: "SystemCallErrorNumber", Value: "EPERM"})
}

// hardening is what every generated service gets: engines, doors and fetches alike.
var hardening = []Line{
	{Key: "ProtectSystem", Value: "strict"},
	{Key: "ProtectHome", Value: "yes"},
	{Key: "ProtectProc", Value: "invisible"},
	{Key: "ProtectKernelTunables", Value: "yes"},
	{Key: "ProtectKernelModules", Value: "yes"},
	{Key: "ProtectKernelLogs", Value: "yes"},
	{Key: "ProtectControlGroups", Value: "yes"},
	{Key: "ProtectClock", Value: "yes"},
	{Key: "ProtectHostname", Value: "yes"},
	{Key: "PrivateTmp", Value: "yes"},
	{Key: "PrivateMounts", Value: "yes"},
	{Key: "PrivateIPC", Value: "yes"},
	{Key: "RemoveIPC", Value: "yes"},
	{Key: "KeyringMode", Value: "private"},
	{Key: "NoNewPrivileges", Value: "yes"},
	{Key: "CapabilityBoundingSet", Value: ""},
	{Key: "AmbientCapabilities", Value: ""},
	{Key: "RestrictNamespaces", Value: "yes"},
	{Key: "RestrictRealtime", Value: "yes"},
	{Key: "RestrictSUIDSGID", Value: "yes"},
	{Key: "LockPersonality", Value: "yes"},
	{Key: "SystemCallArchitectures", Value: "native"},
}
