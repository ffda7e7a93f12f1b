package main

import (
	"fmt"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/levelrail/levelrail/beneath"
)

// Commands of Caddy's that open what the configuration names: the state directory, certificates, log files. The gateway's
// user owns these and can put links there, so root leaves them to that user.
var (
	serving = []string{"run", "start"}                          // the service's own work, which root has no reason to do by hand
	looking = []string{"validate", "adapt", "storage", "leave"} // done as the service would, so that the result is what the service will meet
)

// leaveRoot makes this process one of the gateway's user where it is root's, the command opens that user's files, and there is
// such a user: the owner of the state directory. It returns when there is nothing to leave.
func leaveRoot(args []string) error {
	if os.Geteuid() != 0 || len(args) == 0 || !slices.Contains(slices.Concat(serving, looking), args[0]) {
		return nil
	}
	state := stateDirectory()
	if state == "" {
		state = defaultState
	}
	uid, gid, other, err := beneath.Owner(state)
	if err != nil || !other {
		return err
	}
	if slices.Contains(serving, args[0]) {
		return fmt.Errorf("%s belongs to the user with id %d, who could lead root to any file from there, so root does not serve from it\n"+
			"next: systemctl start levelrail-gateway; or as that user: setpriv --reuid %d --regid %d --init-groups levelrail-gateway %s", state, uid, uid, gid, strings.Join(args, " "))
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := become(uid, gid); err != nil {
		return fmt.Errorf("go on as the user with id %d: %w", uid, err)
	}
	// As a new program: what Caddy has worked out at its beginning is root's.
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains([]string{"HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"}, name)
	})
	env = append(env, "HOME="+state, "XDG_DATA_HOME="+state, "XDG_CONFIG_HOME="+state)
	return fmt.Errorf("run %s again as the user with id %d: %w", self, uid, syscall.Exec(self, append([]string{os.Args[0]}, args...), env))
}

// become gives up root for good, in all threads.
func become(uid, gid int) error {
	groups := []int{gid}
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		if ids, err := u.GroupIds(); err == nil {
			groups = nil
			for _, id := range ids {
				if n, err := strconv.Atoi(id); err == nil {
					groups = append(groups, n)
				}
			}
		}
	}
	if err := syscall.Setgroups(groups); err != nil {
		return err
	}
	if err := syscall.Setresgid(gid, gid, gid); err != nil {
		return err
	}
	return syscall.Setresuid(uid, uid, uid)
}
