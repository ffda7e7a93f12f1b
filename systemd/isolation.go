package systemd

import (
	"path"
	"slices"
	"strings"
)

// DropIn is one file that changes a unit: /etc/systemd/system/UNIT.d/override.conf.
type DropIn struct{ Path, Text string }

// rule says when an assignment takes isolation away that the unit's own text gives. ours are the values that the text has
// for the key, each as it stands there.
type rule func(value string, ours []string) bool

// isolating are the directives that hold an engine in. What is not here (CPUWeight=, Nice=, MemoryHigh=, Environment=) may be
// set as an operator likes.
var isolating = map[string]rule{
	"DevicePolicy":            notOneOf("strict", "closed"),
	"ProtectSystem":           notOneOf("strict"),
	"ProtectHome":             notOneOf("yes", "true", "on", "1", "tmpfs"),
	"ProtectProc":             notOneOf("invisible", "noaccess"),
	"ProtectControlGroups":    notOneOf("yes", "true", "on", "1", "strict", "private"),
	"ProtectHostname":         notOneOf("yes", "true", "on", "1", "private"),
	"PrivateTmp":              notOneOf("yes", "true", "on", "1", "disconnected"),
	"PrivateUsers":            notOneOf("yes", "true", "on", "1", "self", "identity", "managed"),
	"RestrictNamespaces":      notOneOf("yes", "true", "on", "1"),
	"SystemCallArchitectures": notOneOf("native"),
	"KeyringMode":             notOneOf("private"),
	"User":                    given,
	"Group":                   given,
	"SupplementaryGroups":     added,
	"DeviceAllow":             added,
	"BindPaths":               added,
	"BindReadOnlyPaths":       addedSecret,
	"ReadWritePaths":          added,
	"ReadWriteDirectories":    added,
	"TemporaryFileSystem":     reset,
	"InaccessiblePaths":       reset,
	"ReadOnlyPaths":           reset,
	"CapabilityBoundingSet":   given,
	"AmbientCapabilities":     given,
	"IPAddressDeny":           reset,
	"IPAddressAllow":          added,
	"RestrictAddressFamilies": addedWord,
	"SystemCallFilter":        callsAdded,
	"NetworkNamespacePath":    given,
	"IPCNamespacePath":        given,
	"JoinsNamespaceOf":        given,
	"RootDirectory":           given,
	"RootImage":               given,
	"ExecStart":               given,
	"ExecStartPre":            given,
	"ExecStartPost":           privileged,
	"ExecStop":                privileged,
	"ExecStopPost":            privileged,
	"ExecReload":              privileged,
}

func init() {
	for _, key := range []string{"PrivateNetwork", "PrivateDevices", "PrivateIPC", "PrivateMounts", "PrivatePIDs", "DynamicUser", "NoNewPrivileges",
		"ProtectKernelTunables", "ProtectKernelModules", "ProtectKernelLogs", "ProtectClock", "RestrictRealtime", "RestrictSUIDSGID",
		"LockPersonality", "MemoryDenyWriteExecute", "RemoveIPC"} {
		isolating[key] = notOneOf("yes", "true", "on", "1", "y", "t")
	}
}

func notOneOf(values ...string) rule {
	return func(value string, _ []string) bool { return !slices.Contains(values, strings.ToLower(value)) }
}

func given(value string, ours []string) bool { return value != "" && !slices.Contains(ours, value) }
func added(value string, ours []string) bool { return given(value, ours) }
func reset(value string, ours []string) bool { return value == "" && len(ours) > 0 }

// addedSecret: a directory of libraries may be shown to an engine; what holds secrets, sockets or other people's files not.
func addedSecret(value string, ours []string) bool {
	if !added(value, ours) {
		return false
	}
	for word := range strings.FieldsSeq(value) {
		source, _, _ := strings.Cut(strings.TrimLeft(word, "-+"), ":")
		source = path.Clean(source)
		for _, dir := range []string{"/run", "/var/run", "/etc", "/root", "/home", "/var/lib/levelrail", "/proc", "/sys", "/dev"} {
			if source == "/" || source == dir || strings.HasPrefix(source, dir+"/") {
				return true
			}
		}
	}
	return false
}

// addedWord: a word of an allow list that the unit's own list has not; an empty value takes the list away.
func addedWord(value string, ours []string) bool {
	if value == "" {
		return true
	}
	if strings.HasPrefix(value, "~") || value == "none" {
		return false
	}
	have := strings.Fields(strings.Join(ours, " "))
	for word := range strings.FieldsSeq(value) {
		if !slices.Contains(have, word) {
			return true
		}
	}
	return false
}

func callsAdded(value string, ours []string) bool {
	return value == "" || !strings.HasPrefix(value, "~") && !slices.Contains(ours, value)
}

// privileged: a command with + or ! runs outside the sandbox.
func privileged(value string, ours []string) bool {
	if slices.Contains(ours, value) {
		return false
	}
	for _, c := range value {
		switch c {
		case '+', '!':
			return true
		case '@', '-', ':', '|':
			continue
		}
		return false
	}
	return false
}

// Weakened lists what drop-ins take away from the isolation that a unit's own text gives: each assignment with its file, in
// the files' order, which is systemd's. Where several files set the same single value, the last one counts, as it does for
// systemd.
func Weakened(ours string, dropIns []DropIn) []string {
	own := map[string][]string{}
	for _, a := range assignments(ours) {
		own[a.key] = append(own[a.key], a.value)
	}
	var out []string
	last := map[string]int{} // where in out the verdict on a single value stands
	for _, d := range dropIns {
		for _, a := range assignments(d.Text) {
			weak, held := isolating[a.key]
			if !held {
				continue
			}
			if i, before := last[a.key]; before {
				out[i] = "" // this one counts instead
				delete(last, a.key)
			}
			if !weak(a.value, own[a.key]) {
				continue
			}
			out = append(out, a.key+"="+shorten(a.value)+" ("+d.Path+")")
			if single(a.key) {
				last[a.key] = len(out) - 1
			}
		}
	}
	return slices.DeleteFunc(out, func(s string) bool { return s == "" })
}

// Missing lists the directives of isolation that a unit's own text gives and a file in its place does not: a file that was
// changed by hand.
func Missing(ours, changed string) []string {
	there := map[string]bool{}
	for _, a := range assignments(changed) {
		there[a.key] = true
	}
	var out []string
	for _, a := range assignments(ours) {
		if _, held := isolating[a.key]; held && !there[a.key] && !strings.HasPrefix(a.key, "Exec") {
			there[a.key] = true
			out = append(out, a.key+"="+shorten(a.value)+" is missing")
		}
	}
	return out
}

// single tells whether a directive has one value, which a later assignment replaces.
func single(key string) bool {
	return !slices.Contains([]string{"SupplementaryGroups", "DeviceAllow", "BindPaths", "BindReadOnlyPaths", "ReadWritePaths", "ReadWriteDirectories",
		"CapabilityBoundingSet", "AmbientCapabilities", "IPAddressAllow", "RestrictAddressFamilies", "SystemCallFilter", "JoinsNamespaceOf",
		"ExecStart", "ExecStartPre", "ExecStartPost", "ExecStop", "ExecStopPost", "ExecReload"}, key)
}

type assignment struct{ key, value string }

// assignments reads the lines of a unit file: continued lines joined, comments and sections left out.
func assignments(text string) []assignment {
	var out []assignment
	joined := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "#") || strings.HasPrefix(line, ";") {
			continue // also in the middle of a continued line
		}
		if rest, more := strings.CutSuffix(line, `\`); more {
			joined += rest + " "
			continue
		}
		line, joined = joined+line, ""
		if key, value, ok := strings.Cut(line, "="); ok && !strings.HasPrefix(line, "[") {
			out = append(out, assignment{strings.TrimSpace(key), strings.TrimSpace(value)})
		}
	}
	return out
}

func shorten(s string) string {
	if len(s) > 80 {
		return strings.ToValidUTF8(s[:80], "") + "…"
	}
	return s
}
