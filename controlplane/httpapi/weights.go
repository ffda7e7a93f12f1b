package httpapi

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

// weightsGone is how long a node has to delete a set of weights and to report that it is gone.
const weightsGone = 30 * time.Second

// storedWeights are the sets that nodes reported last, by name and node.
func (s *Server) storedWeights() ([]wire.StoredWeights, error) {
	d, err := s.read()
	if err != nil {
		return nil, err
	}
	out := []wire.StoredWeights{}
	for id, n := range s.o.Ledger.Snapshot().Nodes {
		node, known := d.Nodes[id]
		if !known {
			continue
		}
		for _, w := range n.Weights {
			for _, place := range w.Nodes {
				one := wire.StoredWeights{Name: place.Model, NodeID: id, Node: node.Name, Online: n.Online, Source: w.Source, Commit: w.Commit, Files: len(w.Files), FetchedAt: w.LastUsed}
				for _, f := range w.Files {
					one.Bytes += f.Bytes
				}
				_, one.Used = d.Model(place.Model)
				out = append(out, one)
			}
		}
	}
	slices.SortFunc(out, func(a, b wire.StoredWeights) int {
		if a.Name != b.Name {
			return strings.Compare(a.Name, b.Name)
		}
		return strings.Compare(a.Node+a.NodeID, b.Node+b.NodeID)
	})
	return out, nil
}

func (s *Server) listWeights(context.Context, *none) (*body[wire.List[wire.StoredWeights]], error) {
	all, err := s.storedWeights()
	if err != nil {
		return nil, err
	}
	return &body[wire.List[wire.StoredWeights]]{wire.List[wire.StoredWeights]{Items: all}}, nil
}

type weightsWish struct {
	Named
	Node string `query:"node" maxLength:"256" doc:"the node's id or name; needed where several have a set of that name"`
}

// deleteWeights orders the agent of a node to delete a set, and answers when the node no longer reports it.
func (s *Server) deleteWeights(ctx context.Context, in *weightsWish) (*body[wire.StoredWeights], error) {
	find := func() ([]wire.StoredWeights, error) {
		all, err := s.storedWeights()
		return slices.DeleteFunc(all, func(w wire.StoredWeights) bool {
			return w.Name != in.Name || in.Node != "" && w.Node != in.Node && w.NodeID != in.Node
		}), err
	}
	found, err := find()
	switch {
	case err != nil:
		return nil, err
	case len(found) == 0:
		return nil, levelrail.Errorf(levelrail.ErrNotFound, "no node reports weights named %q", clip(in.Name)).WithNext("levelrail weights list")
	case slices.ContainsFunc(found, func(w wire.StoredWeights) bool { return w.NodeID != found[0].NodeID }):
		return nil, levelrail.Errorf(levelrail.ErrInvalid, "several nodes have weights named %s", in.Name).WithNext("say which: levelrail weights delete %s --node %s", in.Name, found[0].Node)
	}
	w := found[0]
	switch {
	case w.Used:
		return nil, levelrail.Errorf(levelrail.ErrRefused, "the model %s is deployed and uses these weights", w.Name).WithNext("levelrail models delete %s first", w.Name)
	case !w.Online:
		return nil, levelrail.Errorf(levelrail.ErrUnavailable, "the node %s, which has the weights, does not report", w.Node).WithNext("systemctl status levelrail-agent on %s", w.Node)
	}
	o := wire.WeightsOrder{ID: levelrail.NewID("wgo"), Name: w.Name}
	takeBack, err := s.orders.put(w.NodeID, o.ID, o, struct{}{})
	if err != nil {
		return nil, s.internal("order the weights to be deleted", err)
	}
	defer takeBack()
	ctx, cancel := context.WithTimeout(ctx, weightsGone)
	defer cancel()
	look := time.NewTicker(100 * time.Millisecond)
	defer look.Stop()
	in.Node = w.NodeID
	for {
		select {
		case <-look.C:
			if left, err := find(); err == nil && len(left) == 0 {
				return &body[wire.StoredWeights]{w}, nil
			}
		case <-s.stopping:
			return nil, levelrail.Errorf(levelrail.ErrUnavailable, "the server is stopping").WithNext("levelrail weights list says whether they are gone")
		case <-ctx.Done():
			return nil, levelrail.Errorf(levelrail.ErrTimeout, "the node %s has not deleted the weights of %s within %s", w.Node, w.Name, weightsGone).
				WithNext("on %s: journalctl -u levelrail-agent says why", w.Node)
		}
	}
}
