package caddymodule

import (
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/levelrail/levelrail/caddymodule/gateway"
)

// parseOption reads the global option:
//
//	levelrail {
//		control_plane unix//run/levelrail/gateway.sock
//		state_dir     /var/lib/levelrail/gateway
//		url           https://llm.example.com
//	}
func parseOption(d *caddyfile.Dispenser, before any) (any, error) {
	if before != nil {
		return nil, d.Err("the option levelrail stands twice; join the two blocks")
	}
	d.Next() // the option's name
	if d.NextArg() {
		return nil, d.Errf("unexpected %q after levelrail; settings go into a block: levelrail { control_plane … }", d.Val())
	}
	var app App
	fields := map[string]*string{"control_plane": &app.ControlPlane, "state_dir": &app.StateDir, "url": &app.URL}
	for d.NextBlock(0) {
		name := d.Val()
		into, known := fields[name]
		if !known {
			return nil, d.Errf("levelrail has no setting %q; it has control_plane, state_dir and url (limits and keys belong to the control plane)", name)
		}
		if *into != "" {
			return nil, d.Errf("%s stands twice; keep one", name)
		}
		if !d.AllArgs(into) || *into == "" {
			return nil, d.Errf("%s needs one value", name)
		}
	}
	// What can be judged without the environment is judged here, where the line is known.
	if !placeholder(app.ControlPlane) && app.ControlPlane != "" {
		if _, err := socketOf(app.ControlPlane); err != nil {
			return nil, d.WrapErr(err)
		}
	}
	if !placeholder(app.StateDir) && app.StateDir != "" {
		if err := stateDir(app.StateDir); err != nil {
			return nil, d.WrapErr(err)
		}
	}
	return httpcaddyfile.App{Name: "levelrail", Value: caddyconfig.JSON(app, nil)}, nil
}

func placeholder(s string) bool {
	for i := range len(s) {
		if s[i] == '{' {
			return true
		}
	}
	return false
}

// parseDirective reads the handler directive, which has one thing to set: what a model serves, and to whom, comes from the
// control plane.
//
//	levelrail {
//		cross_origin https://app.example.com https://other.example.com
//	}
func parseDirective(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	h.Next() // the directive's name
	if h.NextArg() {
		return nil, h.Errf("unexpected %q after levelrail; the directive stands alone or with a block, and where the control plane is goes into the global options", h.Val())
	}
	handler := new(Handler)
	for h.NextBlock(0) {
		switch name := h.Val(); name {
		case "cross_origin":
			if handler.CrossOrigin != nil {
				return nil, h.Err("cross_origin stands twice; put all origins into one line")
			}
			handler.CrossOrigin = h.RemainingArgs()
			if len(handler.CrossOrigin) == 0 {
				return nil, h.Err("cross_origin needs one origin or more, like https://app.example.com, or * for all")
			}
			for _, origin := range handler.CrossOrigin {
				if placeholder(origin) {
					return nil, h.Errf("cross_origin takes no placeholders: %s", origin)
				}
				if err := gateway.CheckOrigin(origin); err != nil {
					return nil, h.WrapErr(err)
				}
			}
		default:
			return nil, h.Errf("levelrail has no setting %q in a site; it has cross_origin, and control_plane, state_dir and url go into the global options: { levelrail { … } }", name)
		}
	}
	return handler, nil
}
