package httpapi

import (
	"mime"
	"net"
	"net/http"
	"net/netip"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/listener"
)

// strange is why a request is refused before it is looked at: a browser sends it for a page from elsewhere, it is for a
// name that is not the listener's, or its body is of a type that a page may send without asking. The socket's rights say
// who may connect, and a browser on the machine of whoever forwards a socket connects for everybody whose page it shows.
func (s *Server) strange(door Door, r *http.Request) *refusal {
	serves := listener.Loopback
	next := "call the listener by a name of its own: localhost or 127.0.0.1, such as curl --unix-socket /run/levelrail/api.sock http://localhost/api/v1/status"
	if door == DoorTLS {
		serves = func(host string) bool { return s.o.Serves != nil && s.o.Serves(host) || localAddress(r, host) }
		next = "call the server by a name of its certificate; APP_PUBLIC_HOST in /etc/default/levelrail-server adds one"
	}
	if err := listener.Local(r, serves); err != nil {
		return refuse(levelrail.Errorf(levelrail.ErrForbidden, "%v", err).WithNext("%s", next))
	}
	if r.ContentLength == 0 {
		return nil
	}
	switch kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); {
	case kind == "application/json", kind == ndjson && door == DoorAgent:
		return nil
	}
	return refuse(&withStatus{http.StatusUnsupportedMediaType, levelrail.Errorf(levelrail.ErrInvalid, "the body is not declared as application/json").
		WithNext("send the header Content-Type: application/json")})
}

// localAddress tells whether a host is the address that the connection came to: no other name leads to an address as such.
func localAddress(r *http.Request, host string) bool {
	at, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if at == nil {
		return false
	}
	local, err := netip.ParseAddrPort(at.String())
	if err != nil {
		return false
	}
	named, err := netip.ParseAddr(host)
	return err == nil && named.Unmap() == local.Addr().Unmap()
}

// failed takes a request that no token opened for what it may be, an attempt: it is reported with its address, and one of
// many is answered late. A request without a token guesses nothing, and is reported only.
func (s *Server) failed(w http.ResponseWriter, r *http.Request, door Door, err error) {
	client, _, splitErr := net.SplitHostPort(r.RemoteAddr)
	if splitErr != nil {
		client = "unknown"
	}
	if r.Header.Get("Authorization") == "" {
		s.o.Log.Debug("a request without a token", "client", client, "listener", door)
		return
	}
	f := s.failures.Failed(client)
	if f.Report {
		// What a client writes is not in the line: fail2ban reads it.
		s.o.Log.Warn("authentication failed", "client", client, "failures", f.Count, "elsewhere", f.Missed, "listener", door, "why", err)
	}
	if f.Close {
		w.Header().Set("Connection", "close")
	}
	f.Wait(r.Context())
}
