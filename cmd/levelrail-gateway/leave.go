package main

import (
	"errors"
	"fmt"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"

	"github.com/levelrail/levelrail/caddymodule/link"
)

// leaveCommand is `levelrail-gateway leave`.
func leaveCommand() caddycmd.Command {
	return caddycmd.Command{Name: "leave", Short: "Forgets the cluster that this gateway belongs to",
		Long: "Forgets the routes and keys of the cluster that this gateway belongs to. The next control plane that it meets becomes its own.\n" +
			"The gateway must be stopped: systemctl stop levelrail-gateway",
		Func: func(flags caddycmd.Flags) (int, error) {
			if flags.NArg() != 0 {
				return caddy.ExitCodeFailedStartup, errors.New("leave takes no arguments")
			}
			state := stateDirectory()
			if state == "" {
				state = defaultState
			}
			left, err := link.Leave(state)
			if err != nil {
				return caddy.ExitCodeFailedStartup, err
			}
			if !left {
				fmt.Println("This gateway belongs to no cluster.")
				return caddy.ExitCodeSuccess, nil
			}
			fmt.Println("This gateway has left its cluster. Next: systemctl start levelrail-gateway")
			return caddy.ExitCodeSuccess, nil
		}}
}
