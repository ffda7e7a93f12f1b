package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
	"github.com/levelrail/levelrail/engine"
)

// programDirs is where a program without a directory is looked for, in order.
var programDirs = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// program finds an engine's program: the one that the setting names, else the first that the engine knows of. When there
// is none, the lack says how to install it on this distribution.
func (a *Agent) program(e engine.Engine) (string, *Lack) {
	setting, chosen := a.Settings.program(e.Name())
	lack := &Lack{Reason: levelrail.EngineNotInstalled, Next: e.InstallHint(a.Host.Distribution, a.Host.Version)}
	if chosen != "" {
		if !filepath.IsAbs(chosen) {
			lack.Message = fmt.Sprintf("%s=%s in %s is not an absolute path", setting, chosen, EnvironmentFile)
			lack.Next = "write the whole path of the program there, and restart levelrail-agent"
			return "", lack
		}
		if why := notRunnable(chosen); why != "" {
			lack.Message = fmt.Sprintf("%s=%s in %s: %s", setting, chosen, EnvironmentFile, why)
			return "", lack
		}
		return chosen, nil
	}
	var hidden string
	for _, name := range e.Programs() {
		candidates := []string{name}
		if !filepath.IsAbs(name) {
			candidates = candidates[:0]
			for _, dir := range programDirs {
				candidates = append(candidates, filepath.Join(dir, name))
			}
		}
		for _, c := range candidates {
			switch why := notRunnable(c); {
			case why == "":
				return c, nil
			case strings.Contains(why, "cannot see"):
				hidden = c + ": " + why
			}
		}
	}
	lack.Message = "the engine " + e.Name() + " is not installed on this node"
	if hidden != "" {
		lack.Message += " where it could run (" + hidden + ")"
	}
	return "", lack
}

// notRunnable says why an engine's unit could not run a program; "" when it could.
func notRunnable(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return "there is no such file"
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 {
		return "it is not a program"
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		real = path
	}
	for _, p := range []string{path, real} {
		for _, dir := range []string{"/home/", "/root/", "/run/user/", "/tmp/", "/var/tmp/"} {
			if strings.HasPrefix(p, dir) {
				return "it lies below " + strings.TrimSuffix(dir, "/") + ", which engines cannot see; put it below /opt or /usr/local"
			}
		}
	}
	if info.Mode().Perm()&0o001 == 0 {
		return "only some users may run it, and engines run as users of their own; chmod a+rx it"
	}
	return ""
}

// engines tells which engines' programs the node has.
func (a *Agent) engines() []wire.EngineStatus {
	var all []wire.EngineStatus
	for _, name := range engine.Names() {
		e, err := engine.Get(name)
		if err != nil {
			continue
		}
		s := wire.EngineStatus{Engine: name}
		program, lack := a.program(e)
		if lack == nil {
			s.Installed, s.Program = true, program
		} else {
			s.Next = lack.Next
		}
		all = append(all, s)
	}
	return all
}
