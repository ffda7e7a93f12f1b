// Listeners speak plain TCP. One of multipath TCP, which Go opens otherwise, cannot be told which of several processes gets
// new connections, and a process would be replaced with some of them in its hands (package handover).
//go:debug multipathtcp=0

// Command levelrail-gateway is one Caddy with its standard modules and Levelrail's handler. Without arguments it serves
// /etc/levelrail/Caddyfile; everything else that Caddy's command can do (validate, adapt, fmt, list-modules …) it can too.
package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	_ "time/tzdata" // log formats and matchers with time zones, on hosts without the database

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	"github.com/levelrail/levelrail"
	_ "github.com/levelrail/levelrail/caddymodule"
	"github.com/levelrail/levelrail/caddymodule/late"
	"github.com/levelrail/levelrail/caddymodule/public"
)

const defaultConfig = "/etc/levelrail/Caddyfile"

func main() {
	caddy.CustomBinaryName = "levelrail-gateway"
	caddy.CustomLongDescription = "levelrail-gateway serves the models of a Levelrail cluster over the OpenAI API.\n\n" +
		"Without arguments it serves " + defaultConfig + ". It is Caddy with the directive levelrail;\nthe Caddyfile is explained at https://caddyserver.com/docs/caddyfile."
	os.Args = append(os.Args[:1], arguments(os.Args[1:])...)
	if len(os.Args) == 2 && os.Args[1] == "version" {
		upstream, _ := caddy.Version()
		fmt.Printf("levelrail-gateway %s (Caddy %s)\n", levelrail.Version, upstream)
		return
	}
	if why := refused(os.Args[1:]); why != "" {
		fmt.Fprintln(os.Stderr, "levelrail-gateway:", why)
		os.Exit(caddy.ExitCodeFailedStartup)
	}
	if err := leaveRoot(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "levelrail-gateway:", err)
		os.Exit(caddy.ExitCodeFailedStartup)
	}
	if len(os.Args) > 1 && os.Args[1] == "run" {
		if err := joinHandovers(); err != nil {
			fmt.Fprintln(os.Stderr, "levelrail-gateway:", err)
			os.Exit(caddy.ExitCodeFailedStartup)
		}
	}
	caddycmd.RegisterCommand(public.Command(defaultConfig))
	caddycmd.RegisterCommand(replaceCommand())
	caddycmd.RegisterCommand(leaveCommand())
	caddycmd.Main()
}

// refused is why a command of Caddy's is none of this program's: three of them put a download of Caddy in its place.
func refused(args []string) string {
	if len(args) == 0 || !slices.Contains([]string{"upgrade", "add-package", "remove-package"}, args[0]) {
		return ""
	}
	return args[0] + " would put a download of Caddy in the place of this program. A newer gateway comes with its package: apt install ./levelrail*.deb. " +
		"One with more modules: xcaddy build --with github.com/levelrail/levelrail/caddymodule --with MODULE"
}

// arguments fills in what is not said: to run, and the configuration of commands that take one.
func arguments(args []string) []string {
	if len(args) == 0 {
		args = []string{"run"}
	}
	switch args[0] {
	case "-v", "--version":
		return []string{"version"}
	case "run", "validate", "adapt", "reload":
		named := func(a string) bool {
			return a == "-c" || a == "--config" || strings.HasPrefix(a, "--config=") || a == "-h" || a == "--help" || a == "--resume"
		}
		if !slices.ContainsFunc(args[1:], named) {
			args = append(args, "--config", defaultConfig, "--adapter", late.AdapterName)
		}
	}
	return args
}
