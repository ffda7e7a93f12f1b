package httpapi

import (
	"fmt"
	"slices"

	"github.com/levelrail/levelrail"
)

// An agent or a gateway that has followed this history further than the store goes is proof that the store's files were
// put back from a copy: raft itself never goes back. Positions, terms and ids would then be given out a second time. Such
// a peer is refused and keeps what it has, and the status says what to do, until the history gets a new lineage.

// restoreNext is what to do about files that were put back.
const restoreNext = "stop the server (systemctl stop 'levelrail-server*'), then: levelrail-server restore /var/lib/levelrail/server"

// refusePutBack returns the refusal for a peer that is ahead of the store, and remembers it for the status.
func (s *Server) refusePutBack(peer, has, have string) error {
	err := levelrail.Errorf(levelrail.ErrRefused, "this server's store is older than what %s has followed of it (%s, and here is %s): its files were put back from a copy",
		peer, has, have).WithNext("%s", restoreNext)
	s.ahead.mu.Lock()
	defer s.ahead.mu.Unlock()
	if !slices.Contains(s.ahead.peers, peer) && len(s.ahead.peers) < aheadMost {
		s.ahead.peers = append(s.ahead.peers, peer)
		s.o.Log.Error("the store is older than what is known of it", "peer", peer, "peer_has", has, "here", have, "next", restoreNext)
	}
	return err
}

// aheadMost bounds the peers that are named.
const aheadMost = 16

// putBackWarning is the line for the status; empty when no peer is ahead.
func (s *Server) putBackWarning() string {
	s.ahead.mu.Lock()
	defer s.ahead.mu.Unlock()
	if len(s.ahead.peers) == 0 {
		return ""
	}
	return fmt.Sprintf("the store was put back from a copy: %d of its peers have followed it further (%s) and take no orders: %s",
		len(s.ahead.peers), s.ahead.peers[0], restoreNext)
}
