package caddymodule

import (
	"context"
	"fmt"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddytls"
)

func init() { caddy.RegisterModule(Permission{}) }

// Permission lets Caddy get certificates on demand for the models' own host names, and for no other:
//
//	on_demand_tls {
//		permission levelrail
//	}
//
// It answers from the table in memory, since it is asked during handshakes.
type Permission struct {
	shared *shared
}

// CaddyModule names the module.
func (Permission) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "tls.permission.levelrail", New: func() caddy.Module { return new(Permission) }}
}

// UnmarshalCaddyfile reads the name alone.
func (p *Permission) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next()
	if d.NextArg() || d.NextBlock(0) {
		return d.Errf("unexpected %q: the permission levelrail stands alone", d.Val())
	}
	return nil
}

// Provision finds the app.
func (p *Permission) Provision(ctx caddy.Context) error {
	app, err := ctx.App("levelrail")
	if err != nil {
		return err
	}
	p.shared = app.(*App).shared
	app.(*App).onDemand = true
	return nil
}

// CertificateAllowed allows the names that are some model's domain.
func (p *Permission) CertificateAllowed(_ context.Context, name string) error {
	if p.shared.link.Table().Host(name) == nil {
		return fmt.Errorf("no model has the domain %s: %w", name, caddytls.ErrPermissionDenied)
	}
	return nil
}

var (
	_ caddytls.OnDemandPermission = (*Permission)(nil)
	_ caddy.Provisioner           = (*Permission)(nil)
	_ caddyfile.Unmarshaler       = (*Permission)(nil)
)
