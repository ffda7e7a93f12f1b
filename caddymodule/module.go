// Package caddymodule is Caddy's face of the gateway: the app module `levelrail`, the handler directive `levelrail`, and
// the global option `levelrail`.
//
// The app says where the control plane is; the handler answers every request of its route. What they share (the table, the
// connections to engines, the slots) is in a pool outside Caddy's configurations, keyed by what it connects to, so a reload
// keeps it and cuts nothing. All deciding and doing is in the plain packages below this one: gateway, route, openai, limit,
// meter, proxy and link. A Caddy of one's own gets the same with `xcaddy build --with github.com/levelrail/levelrail/caddymodule`.
package caddymodule

import (
	"fmt"
	"net/http"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/levelrail/levelrail/caddymodule/gateway"
	"github.com/levelrail/levelrail/caddymodule/handover"
)

func init() {
	caddy.RegisterModule(App{})
	caddy.RegisterModule(Handler{})
	httpcaddyfile.RegisterGlobalOption("levelrail", parseOption)
	httpcaddyfile.RegisterHandlerDirective("levelrail", parseDirective)
	httpcaddyfile.RegisterDirectiveOrder("levelrail", httpcaddyfile.Before, "reverse_proxy")
}

// Handler serves the OpenAI API for the models that the app knows. It answers everything that reaches it and calls no
// next handler.
type Handler struct {
	// CrossOrigin are the origins whose web pages may use the gateway, such as https://app.example.com; * is every one.
	// Default: none, and a browser's preflight is refused like any method that is not served.
	CrossOrigin gateway.Origins `json:"cross_origin,omitempty"`

	shared *shared
}

// CaddyModule names the module.
func (Handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.levelrail", New: func() caddy.Module { return new(Handler) }}
}

// Provision finds the app, which Caddy provisions first even when the configuration does not name it.
func (h *Handler) Provision(ctx caddy.Context) error {
	for _, origin := range h.CrossOrigin {
		if err := gateway.CheckOrigin(origin); err != nil {
			return fmt.Errorf("levelrail: cross_origin: %w", err)
		}
	}
	app, err := ctx.App("levelrail")
	if err != nil {
		return err
	}
	h.shared = app.(*App).shared
	if srv, ok := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server); ok {
		app.(*App).servedBy(srv)
		srv.RegisterOnShutdown(h.shared.draining)
	}
	return nil
}

// ServeHTTP answers one request. The request holds what it uses by itself: after a reload its handler and app are cleaned
// up while it still runs.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	h.shared.enter()
	defer h.shared.leave()
	if handover.Leaving() {
		w.Header().Set("Connection", "close")
	}
	if !h.CrossOrigin.Allow(h.shared.gateway, w, r) {
		h.shared.gateway.ServeHTTP(w, r)
	}
	return nil
}

var (
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
)
