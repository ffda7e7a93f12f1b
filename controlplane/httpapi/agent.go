package httpapi

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
	"github.com/levelrail/levelrail/controlplane/ledger"
	"github.com/levelrail/levelrail/controlplane/reconcile"
	"github.com/levelrail/levelrail/raftstore/command"
)

var (
	nodeID    = regexp.MustCompile(`^node_[a-z0-9]{8,64}$`)
	gatewayID = regexp.MustCompile(`^gw_[a-z0-9]{8,64}$`)
)

// byNode says that an agent asks. Its socket is root's alone, so what it says of its id is believed.
func byNode(ctx context.Context, id, name string) command.By {
	return command.By{Principal: levelrail.Principal{Kind: "node", ID: id, Name: name}, Ability: callerOf(ctx).ability}
}

// agentHello takes a node in, or recognises it. An agent of another cluster is refused: it would take its engines down for
// this one's assignments.
func (s *Server) agentHello(ctx context.Context, in *struct{ Body wire.Hello }) (*body[wire.Welcome], error) {
	h := in.Body
	d, err := s.read()
	if err != nil {
		return nil, err
	}
	switch {
	case !nodeID.MatchString(h.NodeID):
		return nil, levelrail.Errorf(levelrail.ErrInvalid, "%q is not the id of a node: node_ and letters and digits", clip(h.NodeID)).WithNext("let the agent make its id: remove /var/lib/levelrail/agent/agent.json")
	case h.Name == "":
		return nil, levelrail.Errorf(levelrail.ErrInvalid, "the node %s has no name", h.NodeID).WithNext("give the host a name: hostnamectl hostname NAME")
	}
	if err := s.sameCluster("the agent of "+clip(h.Name), h.ClusterID); err != nil {
		return nil, err
	}
	if st := s.o.Store.Status(); h.Lineage == st.Lineage && h.Term > st.Term {
		return nil, s.refusePutBack("the agent of "+clip(h.Name), fmt.Sprintf("term %d", h.Term), fmt.Sprintf("term %d", st.Term))
	}
	st, world := s.o.Store.Status(), s.o.World(d)
	welcome := wire.Welcome{ClusterID: d.Cluster.ID, Lineage: st.Lineage, Term: st.Term, Replaced: st.Replaced,
		Settings: map[string]string{"APP_HF_BASE_URL": world.HubBaseURL}}
	moved := slices.Contains(st.Replaced, h.ClusterID)
	if local := leftLocalNode(d, world.Observed); local != "" && d.Nodes[h.NodeID].ID == "" && (moved || h.ClusterID == "" && d.Nodes[local].Name == h.Name) {
		// A new agent beside a server that knows this machine by another id: the machine was made anew, and the server's
		// state was restored or kept. As another node of the same name it would leave the models of this one behind.
		s.o.Log.Info("an agent goes on as the node of this machine", "node", local, "instead_of", h.NodeID, "name", h.Name)
		welcome.NodeID = local
		return &body[wire.Welcome]{welcome}, nil
	}
	n, known := d.Nodes[h.NodeID]
	same := known && n.Name == h.Name && n.Version == h.Version && n.OS == h.OS && n.Local && maps.Equal(n.Labels["agent"], h.Labels)
	if !same {
		n.ID, n.Name, n.Version, n.OS, n.Local = h.NodeID, h.Name, h.Version, h.OS, true
		labels := maps.Clone(n.Labels)
		if labels == nil {
			labels = map[string]levelrail.Labels{}
		}
		labels["agent"] = h.Labels
		if len(h.Labels) == 0 {
			delete(labels, "agent")
		}
		n.Labels = labels
		if n.Devices == nil {
			n.Devices = []levelrail.Device{}
		}
		if d, _, err = s.propose(ctx, byNode(ctx, h.NodeID, h.Name), command.NodePut{Node: n}); err != nil {
			return nil, err
		}
		s.o.Log.Info("node joined or changed", "node", h.NodeID, "name", h.Name, "version", h.Version, "os", h.OS)
	}
	return &body[wire.Welcome]{welcome}, nil
}

// leftLocalNode is the one node of this server's machine, when no agent has reported as it; else it is empty.
func leftLocalNode(d *reconcile.Desired, observed ledger.Snapshot) string {
	local := ""
	for id, n := range d.Nodes {
		if !n.Local {
			continue
		}
		if _, heard := observed.Nodes[id]; heard || local != "" {
			return ""
		}
		local = id
	}
	return local
}

func (s *Server) knownNode(id string) error {
	d, err := s.read()
	if err != nil {
		return err
	}
	if _, known := d.Nodes[id]; !known {
		return levelrail.Errorf(levelrail.ErrNotFound, "the node %q is not part of this cluster", clip(id)).WithNext("say hello first: POST /api/v1/agent/hello")
	}
	return nil
}

// agentReport takes a node's word into the ledger. Nothing is stored here: the reconciler does that, where it must.
func (s *Server) agentReport(_ context.Context, in *struct{ Body wire.Report }) (*struct{}, error) {
	if err := s.knownNode(in.Body.NodeID); err != nil {
		return nil, err
	}
	return nil, s.o.Ledger.Report(in.Body)
}

// agentHubToken opens a model's token for the node that downloads it, and for no other.
func (s *Server) agentHubToken(_ context.Context, in *struct {
	Named
	NodeID string `query:"node_id" required:"true" maxLength:"80"`
}) (*body[wire.HubToken], error) {
	d, err := s.read()
	if err != nil {
		return nil, err
	}
	m, ok := d.Model(in.Name)
	if !ok {
		return nil, notFoundModel(in.Name)
	}
	here := slices.ContainsFunc(d.ReplicasOf(m.Name), func(r levelrail.Replica) bool {
		return slices.ContainsFunc(r.Shards, func(sh levelrail.Shard) bool { return sh.NodeID == in.NodeID })
	})
	if !here {
		return nil, levelrail.Errorf(levelrail.ErrForbidden, "the node %q runs no replica of %s", clip(in.NodeID), m.Name).WithNext("ask for models that are assigned to the node")
	}
	secret, there := d.Secrets[m.HubToken.Path]
	if m.HubToken.Path == "" || !there {
		return nil, levelrail.Errorf(levelrail.ErrNotFound, "the model %s has no Hugging Face token", m.Name).WithNext("levelrail models set-hf-token %s", m.Name)
	}
	token, err := s.o.Sealer.Open(secret)
	if err != nil {
		return nil, err
	}
	return &body[wire.HubToken]{wire.HubToken{Token: string(token)}}, nil
}
