package caddymodule

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/levelrail/levelrail/caddymodule/handover"
	"github.com/levelrail/levelrail/caddymodule/link"
)

// App is what there is one of in a process: the link to a control plane and all that hangs on it.
type App struct {
	// ControlPlane is where the control plane listens: unix//path. Default: unix//run/levelrail/gateway.sock.
	ControlPlane string `json:"control_plane,omitempty"`
	// StateDir keeps the last known routes and keys, so that the gateway serves without a control plane. Default:
	// $STATE_DIRECTORY, else /var/lib/levelrail/gateway.
	StateDir string `json:"state_dir,omitempty"`
	// URL is the address by which clients reach this gateway, as `levelrail models get` shows it. Default: that of the
	// server with this handler that listens on loopback without TLS.
	URL string `json:"url,omitempty"`

	shared *shared
	serves link.Serves // as far as handlers have said
	https  bool        // a handler listens on port 443
	// onDemand: certificates are got for whatever domain a model has.
	onDemand bool
	key      sharedKey
	log      *zap.Logger
}

// CaddyModule names the module.
func (App) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "levelrail", New: func() caddy.Module { return new(App) }}
}

// Provision takes a reference to what the app shares, and makes it if it is the first. That reads the kept table and
// nothing else: provisioning is also what `validate` does, and an HTTP server may serve before Start is called.
func (a *App) Provision(ctx caddy.Context) error {
	a.log = ctx.Logger()
	if err := a.defaults(); err != nil {
		return err
	}
	v, _, err := pool.LoadOrNew(a.key, func() (caddy.Destructor, error) { return newShared(a.key, a.log) })
	if err != nil {
		return err
	}
	a.shared = v.(*shared)
	return a.shared.metrics.register(ctx.GetMetricsRegistry())
}

func (a *App) defaults() error {
	repl := caddy.NewReplacer()
	for _, field := range []struct {
		name string
		text *string
	}{{"control_plane", &a.ControlPlane}, {"state_dir", &a.StateDir}, {"url", &a.URL}} {
		text, err := repl.ReplaceOrErr(*field.text, true, true)
		if err != nil {
			return fmt.Errorf("levelrail: %s: %w", field.name, err)
		}
		*field.text = text
	}
	if a.ControlPlane == "" {
		dir := os.Getenv("LEVELRAIL_RUNTIME_DIR")
		if dir == "" {
			dir = "/run/levelrail"
		}
		a.ControlPlane = "unix/" + filepath.Join(dir, "gateway.sock")
	}
	if a.StateDir == "" {
		a.StateDir, _, _ = strings.Cut(os.Getenv("STATE_DIRECTORY"), ":") // systemd lists several with colons
	}
	if a.StateDir == "" {
		a.StateDir = "/var/lib/levelrail/gateway"
	}
	socket, err := socketOf(a.ControlPlane)
	if err != nil {
		return fmt.Errorf("levelrail: %w", err)
	}
	if err := stateDir(a.StateDir); err != nil {
		return fmt.Errorf("levelrail: %w", err)
	}
	a.key = sharedKey{socket: socket, dir: handover.Directory(a.StateDir)}
	return nil
}

// socketOf is the path of the socket in unix//path.
func socketOf(text string) (string, error) {
	if path, ok := strings.CutPrefix(text, "unix/"); ok && filepath.IsAbs(path) {
		return path, nil
	}
	return "", fmt.Errorf("control_plane %q is not the socket of a control plane; write it like unix//run/levelrail/gateway.sock", text)
}

func stateDir(text string) error {
	if !filepath.IsAbs(text) {
		return fmt.Errorf("state_dir %q is not an absolute path; write it like /var/lib/levelrail/gateway", text)
	}
	return nil
}

// Start begins to follow the control plane, unless an earlier configuration already does.
func (a *App) Start() error {
	if a.URL != "" {
		a.serves.URL = strings.TrimSuffix(strings.TrimRight(a.URL, "/"), "/v1") + "/v1"
	}
	a.serves.Public = a.https && a.onDemand
	a.shared.start(a.log, a.serves)
	startWatchdog(a.log)
	return nil
}

// servedBy notes what a server with the handler means to clients. It is called while Caddy provisions, one after another.
func (a *App) servedBy(srv *caddyhttp.Server) {
	for _, text := range srv.Listen {
		addr, err := caddy.ParseNetworkAddress(text)
		if err != nil || addr.IsUnixNetwork() {
			continue
		}
		encrypted := len(srv.TLSConnPolicies) > 0 || addr.StartPort == 443
		if encrypted && addr.StartPort == 443 {
			a.https = true
		}
		if ip := net.ParseIP(addr.Host); encrypted || ip == nil || !ip.IsLoopback() {
			continue
		}
		url := "http://" + addr.JoinHostPort(0) + "/v1"
		if a.serves.URL == "" || url < a.serves.URL { // servers come in no order; the choice has one
			a.serves.URL = url
		}
	}
}

// Stop does nothing: requests of this configuration may still run, and the next one goes on with the same link.
func (a *App) Stop() error { return nil }

// Cleanup gives the reference back. The last one ends the link and writes its table.
func (a *App) Cleanup() error {
	if a.shared == nil { // Provision failed
		return nil
	}
	_, err := pool.Delete(a.key)
	return err
}

var (
	_ caddy.App          = (*App)(nil)
	_ caddy.Provisioner  = (*App)(nil)
	_ caddy.CleanerUpper = (*App)(nil)
)
