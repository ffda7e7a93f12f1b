package controlplane

import (
	"log/slog"
	"net/http"
	"time"

	"golang.org/x/sys/unix"

	"github.com/levelrail/levelrail/controlplane/httpapi"
	"github.com/levelrail/levelrail/listener"
)

// The connections that each socket may have, of all and of one user. They are a listener's own, so that what happens on the
// TLS port or on one socket leaves the others open.
var socketBudgets = map[httpapi.Door]struct{ total, perPeer int }{
	httpapi.DoorAPI:     {1024, 256}, // of one administrator: the others have theirs
	httpapi.DoorGateway: {1024, 0},
	httpapi.DoorAgent:   {256, 0},
}

// descriptorsAside are those that no connection of the TLS port gets: the sockets' connections, the store and the rest.
const descriptorsAside = 1024 + 1024 + 256 + 512

// networkTime is how long a request on the TLS port and its response may take; a stream has a time for each line instead.
const networkTime = 90 * time.Second

// bounded gives a listener's HTTP server its bounds.
func (s *Server) bounded(srv *http.Server, kind httpapi.Door, settings Settings) {
	total, perPeer, mend := socketBudgets[kind].total, socketBudgets[kind].perPeer, "find out which program opens them: ss -xp"
	if kind == httpapi.DoorTLS {
		srv.ReadTimeout, srv.WriteTimeout = s.config.networkTime, s.config.networkTime
		total, perPeer = networkBudget(settings, s.config.Log), settings.MaxPerAddress
		mend = "LEVELRAIL_MAX_CONNECTIONS_PER_ADDRESS and LEVELRAIL_MAX_CONNECTIONS in " + environmentFile
	}
	budget := &listener.Budget{Total: total, PerPeer: perPeer, Peer: httpapi.Peer, Refused: func(peer string, open, closed int) {
		s.config.Log.Warn("connections were closed as they came: there are too many", "listener", kind, "peer", peer, "open", open, "closed", closed, "next", mend)
	}}
	srv.ConnState = budget.ConnState
}

// networkBudget is how many connections the TLS port may have: what is set, as far as this process may open so many files.
func networkBudget(settings Settings, log *slog.Logger) int {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		log.Error("the number of files that this process may open is not known", "error", err)
		return settings.MaxConnections
	}
	most := int(min(files.Cur, 1<<30)) - descriptorsAside
	if most < settings.MaxPerAddress { // run by hand, with few: half of them are better than none
		most = int(files.Cur / 2)
	}
	if settings.MaxConnections > most {
		log.Warn("the TLS port takes fewer connections than LEVELRAIL_MAX_CONNECTIONS, since this process may not open so many files",
			"set", settings.MaxConnections, "taken", most, "next", "raise LimitNOFILE: systemctl edit levelrail-server")
		return most
	}
	return settings.MaxConnections
}
