package hosttest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Dial connects from inside the host: networks tcp, tcp4, tcp6, udp… reach addresses of the host's own network, unix a
// socket file of the host. Names other than localhost are refused, since the host has no name server.
func (h *Host) Dial(network, addr string) (net.Conn, error) {
	return h.DialContext(context.Background(), network, addr)
}

// DialContext is Dial with a context.
func (h *Host) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	if strings.HasPrefix(network, "unix") {
		if h.PID() == 0 {
			return nil, errors.New("the host is off")
		}
		return d.DialContext(ctx, network, h.Path(addr))
	}
	addr, err := literal(addr)
	if err != nil {
		return nil, err
	}
	var conn net.Conn
	err = h.inNetwork(func() error {
		conn, err = d.DialContext(ctx, network, addr)
		return err
	})
	return conn, err
}

// Listen listens inside the host's network, so that a server in the test serves the host. The caller closes it; a reboot
// of the host leaves it in the old, now empty network.
func (h *Host) Listen(network, addr string) (net.Listener, error) {
	addr, err := literal(addr)
	if err != nil {
		return nil, err
	}
	var l net.Listener
	err = h.inNetwork(func() error {
		l, err = new(net.ListenConfig).Listen(context.Background(), network, addr)
		return err
	})
	return l, err
}

// literal gives an address without a name in it: looking a name up would happen in another thread, outside the host.
func literal(addr string) (string, error) {
	name, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", err
	}
	if name == "localhost" {
		name = "127.0.0.1"
	}
	if name != "" && net.ParseIP(name) == nil {
		return "", fmt.Errorf("%s: give an IP address; there is no name server in a test host", addr)
	}
	return net.JoinHostPort(name, port), nil
}

// inNetwork runs f in a thread that is in the host's network. A socket stays in the network it was made in.
func (h *Host) inNetwork(f func() error) error {
	if h.PID() == 0 {
		return errors.New("the host is off")
	}
	path := fmt.Sprintf("/proc/%d/ns/net", h.PID())
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // unlocked only when the thread is back where it was; else it ends with this goroutine
		result <- func() error {
			there, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return fmt.Errorf("open the host's network: %w", err)
			}
			defer unix.Close(there)
			here, err := unix.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()), unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return fmt.Errorf("open this thread's network: %w", err)
			}
			defer unix.Close(here)
			if err := unix.Setns(there, unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("enter the host's network: %w", err)
			}
			err = f()
			if unix.Setns(here, unix.CLONE_NEWNET) == nil {
				runtime.UnlockOSThread()
			}
			return err
		}()
	}()
	return <-result
}

// HTTPClient returns a client that connects from inside the host. It follows no redirect, has no time limit (streams) and
// keeps no connection, so that a test of a restart meets the new process.
func (h *Host) HTTPClient() *http.Client {
	return h.client(h.DialContext)
}

// UnixClient returns such a client for a server on a Unix socket of the host. The host name in its URLs does not matter:
// http://host/path.
func (h *Host) UnixClient(socket string) *http.Client {
	return h.client(func(ctx context.Context, _, _ string) (net.Conn, error) {
		return h.DialContext(ctx, "unix", socket)
	})
}

func (h *Host) client(dial func(context.Context, string, string) (net.Conn, error)) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DialContext:         dial,
			DisableKeepAlives:   true,
			DisableCompression:  true,
			TLSHandshakeTimeout: 10 * time.Second,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Resolve makes the host find names at an IP address, by its /etc/hosts.
func (h *Host) Resolve(ip string, names ...string) {
	if h.tb != nil {
		h.tb.Helper()
	}
	h.Run("echo " + quote(ip+" "+strings.Join(names, " ")) + " >>/etc/hosts")
}

// TrustCA makes the host's programs trust a certificate authority, given in PEM, as an operator would.
func (h *Host) TrustCA(pem []byte) {
	if h.tb != nil {
		h.tb.Helper()
	}
	if err := h.WriteFile("/usr/local/share/ca-certificates/test-authority.crt", pem, 0o644); err != nil {
		h.fatalf("%v", err)
	}
	h.Run("update-ca-certificates >/dev/null 2>&1")
}
