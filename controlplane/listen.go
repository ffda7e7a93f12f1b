package controlplane

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"golang.org/x/sys/unix"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/controlplane/authority"
	"github.com/levelrail/levelrail/controlplane/httpapi"
	"github.com/levelrail/levelrail/listener"
)

// door is one open way into the server.
type door struct {
	kind httpapi.Door
	l    net.Listener
}

// socketFiles are the sockets that the server makes where systemd hands none over, as contracts and units have them.
var socketFiles = []struct {
	kind  httpapi.Door
	name  string
	mode  fs.FileMode
	group string
}{
	{httpapi.DoorAPI, "api.sock", 0o660, "levelrail"},
	{httpapi.DoorGateway, "gateway.sock", 0o660, "levelrail-gateway"},
	{httpapi.DoorAgent, "agent.sock", 0o600, ""},
}

// sockets are the three Unix sockets: those that systemd hands over by name, and own ones for the rest.
func sockets(dir string, log *slog.Logger) ([]door, error) {
	given, err := activation.ListenersWithNames()
	if err != nil {
		return nil, fmt.Errorf("take over systemd's sockets: %w", err)
	}
	var doors []door
	for _, f := range socketFiles {
		if ls := given[string(f.kind)]; len(ls) > 0 && ls[0] != nil {
			doors = append(doors, door{f.kind, ls[0]})
			continue
		}
		path := filepath.Join(dir, f.name)
		l, err := ownSocket(path, f.mode, f.group, log)
		if err != nil {
			closeDoors(doors)
			return nil, err
		}
		doors = append(doors, door{f.kind, l})
	}
	return doors, nil
}

func closeDoors(doors []door) {
	for _, d := range doors {
		d.l.Close()
	}
}

func ownSocket(path string, mode fs.FileMode, group string, log *slog.Logger) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("make the directory of the sockets: %w", err)
	}
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
		c.Close()
		return nil, levelrail.Errorf(levelrail.ErrConflict, "another server answers at %s already", path).WithNext("systemctl status levelrail-server")
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove the socket of a server that is gone: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("make the socket: %w", err)
	}
	if group != "" {
		if g, err := user.LookupGroup(group); err == nil {
			if gid, err := strconv.Atoi(g.Gid); err == nil {
				err = os.Chown(path, -1, gid)
				log.Debug("gave the socket to its group", "socket", path, "group", group, "error", err)
			}
		}
	}
	if err := os.Chmod(path, mode); err != nil {
		l.Close()
		return nil, fmt.Errorf("open the socket to its group: %w", err)
	}
	return l, nil
}

// tlsPort opens the TLS port, nil for none. One whose address is not on this machine yet, or that another program has, is
// opened as soon as it can be, and waits is told meanwhile why it is not ("" once it is): the sockets serve without it.
func tlsPort(address string, a *authority.Authority, waits func(why string)) (net.Listener, error) {
	if address == "off" || address == "" {
		return nil, nil
	}
	at, err := net.ResolveTCPAddr("tcp", address)
	if err == nil {
		var first error
		l := listener.Open(at, func(ctx context.Context) (net.Listener, error) {
			return new(net.ListenConfig).Listen(ctx, "tcp", address)
		}, func(err error) {
			if err == nil {
				waits("")
				return
			}
			if first == nil {
				first = err
			}
			if !later(first) {
				return
			}
			waits(fmt.Sprintf("the TLS port %s is not open: %v; it is tried again every second", address, err))
		})
		if first == nil || later(first) {
			return tls.NewListener(l, a.Config()), nil
		}
		l.Close()
		err = first
	}
	return nil, levelrail.Errorf(levelrail.ErrInvalid, "the TLS port cannot be opened: %v", err).
		WithNext("set LEVELRAIL_LISTEN in %s to another host:port, or to off", environmentFile)
}

// later tells whether what keeps a port from being opened may pass by itself.
func later(err error) bool {
	return errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.EADDRINUSE)
}

// hostNames are the names under which this server may be reached.
func hostNames(s Settings) []string {
	names := []string{s.PublicHost}
	if h, err := os.Hostname(); err == nil {
		names = append(names, h)
	}
	host, _, err := net.SplitHostPort(s.Listen)
	if err != nil {
		return names
	}
	names = append(names, host)
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		addrs, err := net.InterfaceAddrs()
		if err != nil {
			return names
		}
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
				names = append(names, n.IP.String())
			}
		}
	}
	return names
}
