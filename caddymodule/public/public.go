// Package public turns the gateway's public site on and off: https for whatever domain a model has, with certificates got on
// demand. The site is one file among those that the gateway's Caddyfile imports; nothing else of the configuration is touched.
package public

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/levelrail/levelrail/caddymodule/late"
)

// Site is the file's text. Without a permission Caddy gets no certificate on demand: the Caddyfile's on_demand_tls says whose
// domains they are for.
const Site = `# Written by "levelrail-gateway public on"; "levelrail-gateway public off" removes it.
# https for the models' own domains, and for no other name.
https:// {
	tls {
		on_demand
	}
	levelrail
}
`

// Switch is one gateway's public site.
type Switch struct {
	File     string                            // /etc/levelrail/sites/public.caddy
	Ports    []int                             // that the site takes
	Validate func() (output string, err error) // the whole configuration
	Reload   func() error
}

// On writes the site after checking that its ports are free, and takes it back when the configuration is not valid with it.
// It returns false when the site is on already.
func (s Switch) On() (changed bool, err error) {
	old, err := os.ReadFile(s.File)
	if err == nil && string(old) == Site {
		return false, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("read the public site: %w", err)
	}
	if err == nil {
		return false, fmt.Errorf("%s was written by somebody else; move it away first", s.File)
	}
	for _, port := range s.Ports {
		if err := free(port); err != nil {
			return false, err
		}
	}
	if err := os.MkdirAll(filepath.Dir(s.File), 0o755); err != nil {
		return false, err
	}
	fresh := s.File + ".new" // not imported: the Caddyfile takes *.caddy
	if err := os.WriteFile(fresh, []byte(Site), 0o644); err != nil {
		return false, err
	}
	if err := os.Rename(fresh, s.File); err != nil {
		return false, errors.Join(err, os.Remove(fresh))
	}
	if out, err := s.Validate(); err != nil {
		return false, errors.Join(fmt.Errorf("the configuration is not valid with a public site, so there is none: %w\n%s", err, out), os.Remove(s.File))
	}
	return true, s.Reload()
}

// Off removes the site. It returns false when there is none.
func (s Switch) Off() (changed bool, err error) {
	if err := os.Remove(s.File); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("remove the public site: %w", err)
	}
	return true, s.Reload()
}

// free tells whether a port can be taken. A gateway that shares it with another one by accident would get half its requests.
func free(port int) error {
	l, err := net.Listen("tcp", ":"+strconv.Itoa(port))
	switch {
	case err == nil:
		return l.Close()
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("port %d is taken, and the public site needs it; see by whom: ss -ltnp 'sport = :%d'", port, port)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("port %d cannot be tried by this user; run it as root", port)
	}
	return fmt.Errorf("try port %d: %w", port, err)
}

// System is the installed gateway's switch.
func System(config string) Switch {
	return Switch{
		File:  filepath.Join(filepath.Dir(config), "sites", "public.caddy"),
		Ports: []int{80, 443},
		Validate: func() (string, error) {
			self, err := os.Executable()
			if err != nil {
				return "", err
			}
			out, err := exec.Command(self, "validate", "--config", config, "--adapter", late.AdapterName).CombinedOutput()
			return string(out), err
		},
		Reload: func() error {
			const unit = "levelrail-gateway.service"
			if exec.Command("systemctl", "is-active", "--quiet", unit).Run() != nil {
				return nil // it reads the file when it starts
			}
			if out, err := exec.Command("systemctl", "reload", unit).CombinedOutput(); err != nil {
				return fmt.Errorf("the site is changed, but the gateway has not been told: %w: %s\nnext: systemctl reload %s", err, out, unit)
			}
			return nil
		},
	}
}
