package httpapi

import (
	"fmt"
	"slices"
	"strings"
	"time"

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

// A peer of another cluster on this server's own sockets is proof as well: the store of its cluster was here and is gone, or
// the peer came from elsewhere. It keeps what it has and is refused. A server that has begun a cluster in the place of a
// store that is gone has no models; as long as such a peer is there it takes no changes, which would only be in the way of a
// restore.

// foreignFor is how long a peer of another cluster counts after its last try; it tries every few seconds.
const foreignFor = 30 * time.Second

// sameCluster returns the refusal for a peer of another cluster, and remembers it for the status.
func (s *Server) sameCluster(peer, cluster string) error {
	st := s.o.Store.Status()
	if cluster == "" || cluster == st.ClusterID || slices.Contains(st.Replaced, cluster) {
		return nil
	}
	cluster = clip(cluster)
	s.foreign.mu.Lock()
	defer s.foreign.mu.Unlock()
	if s.foreign.at == nil {
		s.foreign.at = map[string]foreignPeer{}
	}
	_, known := s.foreign.at[peer]
	if !known && len(s.foreign.at) < aheadMost {
		s.o.Log.Error("a peer belongs to another cluster and is refused", "peer", peer, "its_cluster", cluster, "here", st.ClusterID, "next", foreignNext)
	}
	if known || len(s.foreign.at) < aheadMost {
		s.foreign.at[peer] = foreignPeer{cluster, s.o.Clock()}
	}
	return levelrail.Errorf(levelrail.ErrRefused, "%s belongs to the cluster %s, and this server to %s", peer, cluster, st.ClusterID).WithNext("%s", foreignNext)
}

const foreignNext = "restore the store of its cluster (levelrail-server restore BACKUP); or, to begin anew here, let it go: " +
	"levelrail-agent leave, levelrail-gateway leave"

type foreignPeer struct {
	cluster string
	at      time.Time
}

// foreignPeers names the peers of other clusters that have tried lately, each with its cluster.
func (s *Server) foreignPeers() []string {
	s.foreign.mu.Lock()
	defer s.foreign.mu.Unlock()
	var out []string
	for peer, f := range s.foreign.at {
		if s.o.Clock().Sub(f.at) > foreignFor {
			delete(s.foreign.at, peer)
			continue
		}
		out = append(out, peer+" belongs to "+f.cluster)
	}
	slices.Sort(out)
	return out
}

// storeGone is the refusal of a change while this server's cluster is an empty one in the place of another.
func (s *Server) storeGone() error {
	peers := s.foreignPeers()
	if len(peers) == 0 {
		return nil
	}
	if d, err := s.read(); err != nil || len(d.Models) > 0 {
		return err
	}
	return levelrail.Errorf(levelrail.ErrRefused, "this server's store was empty when it started, and what runs here is another cluster's: %s", strings.Join(peers, "; ")).
		WithNext("%s", foreignNext)
}

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
