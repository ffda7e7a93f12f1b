package public

import (
	"errors"
	"fmt"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
)

// Command is `levelrail-gateway public on|off` for the gateway that serves that configuration.
func Command(config string) caddycmd.Command {
	return caddycmd.Command{Name: "public", Usage: "on|off", Short: "Serves the models' own domains over https, or no longer",
		Long: "Writes the public site to sites/public.caddy beside " + config + " after checking that ports 80 and 443 are free, and reloads the gateway; off takes it away.",
		Func: func(flags caddycmd.Flags) (int, error) {
			site := System(config)
			change, ok := map[string]func() (bool, error){"on": site.On, "off": site.Off}[flags.Arg(0)]
			if !ok || flags.NArg() != 1 {
				return caddy.ExitCodeFailedStartup, errors.New("say what: levelrail-gateway public on, or levelrail-gateway public off")
			}
			changed, err := change()
			if err != nil {
				return caddy.ExitCodeFailedStartup, err
			}
			state := "already"
			if changed {
				state = "now"
			}
			fmt.Println("the public site is", state, flags.Arg(0))
			return caddy.ExitCodeSuccess, nil
		}}
}
