package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

// identity is who this agent is and whom it serves: agent.json in the agent's directory.
type identity struct {
	NodeID    string `json:"node_id"`
	ClusterID string `json:"cluster_id,omitempty"` // the first cluster that it served; it serves no other
	Term      uint64 `json:"term"`                 // the highest that it has seen; orders of a lower one are refused
	// Lineage is of the history that Term belongs to. A restored backup begins another one, whose terms count anew.
	Lineage string `json:"lineage,omitempty"`
	// Replaced are lineages that a restored one has taken the place of, the latest last: a server that still has one of
	// them was left over, and gives no orders any more.
	Replaced []string `json:"replaced_lineages,omitempty"`

	path string
}

// replacedMost bounds the list of replaced lineages; who restores more often than that in the life of a node starts the
// oldest of those servers again at the risk of two masters.
const replacedMost = 32

// loadIdentity reads who the agent is, or makes it up at the first start.
func loadIdentity(dir string) (identity, error) {
	id := identity{path: filepath.Join(dir, "agent.json")}
	b, err := os.ReadFile(id.path)
	if errors.Is(err, fs.ErrNotExist) {
		id.NodeID = levelrail.NewID("node")
		return id, id.save()
	}
	if err != nil {
		return id, fmt.Errorf("read who this node is: %w", err)
	}
	if err := json.Unmarshal(b, &id); err != nil || id.NodeID == "" {
		return id, fmt.Errorf("read who this node is: %s is damaged (%v); restore it from a backup, or remove it to join as a new node", id.path, err)
	}
	return id, nil
}

func (id identity) save() error {
	b, err := json.MarshalIndent(id, "", "  ")
	if err != nil {
		return err
	}
	if err := writeFile(id.path, append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("remember who this node is: %w", err)
	}
	return nil
}

// greet takes a server's answer. It refuses a server of another cluster, one whose history was replaced by a restored
// backup, and one that has been overtaken by an election. It tells whether the server's history is a restored one that
// this agent has not followed before.
func (id *identity) greet(w wire.Welcome) (restored bool, err error) {
	cluster, lineage, term := w.ClusterID, w.Lineage, w.Term
	if cluster != "" && cluster != id.ClusterID && slices.Contains(w.Replaced, id.ClusterID) {
		// The server's cluster was replaced by a restored one, and this node goes over with it.
		id.ClusterID, id.Lineage, id.Term, id.Replaced = cluster, lineage, term, nil
		return true, id.save()
	}
	switch {
	case cluster == "":
		return false, &levelrail.Error{Kind: levelrail.ErrRefused, Message: "the server does not say which cluster it is of", Next: "compare the versions of agent and server"}
	case id.ClusterID != "" && id.ClusterID != cluster:
		return false, &levelrail.Error{Kind: levelrail.ErrRefused,
			Message: fmt.Sprintf("this node belongs to the cluster %s, and the server is of the cluster %s", id.ClusterID, cluster),
			Next:    "point the agent to its own control plane; to move the node: levelrail-agent leave"}
	case lineage != "" && slices.Contains(id.Replaced, lineage):
		return false, &levelrail.Error{Kind: levelrail.ErrRefused,
			Message: fmt.Sprintf("the server's history %s was replaced by a restored one, %s", lineage, id.Lineage),
			Next:    "stop this levelrail-server for good, since the restored one gives the orders; where it is the right one and another had taken its place: levelrail-server restore"}
	}
	if lineage != id.Lineage && lineage != "" && id.Lineage != "" {
		id.Replaced = append(id.Replaced, id.Lineage)
		id.Replaced = id.Replaced[max(0, len(id.Replaced)-replacedMost):]
		id.Lineage, id.Term = lineage, term
		return true, id.save()
	}
	if err := id.obey(term); err != nil {
		return false, err
	}
	if id.ClusterID == "" || id.Lineage == "" && lineage != "" {
		id.ClusterID, id.Lineage = cluster, lineage
		return false, id.save()
	}
	return false, nil
}

// become takes another node's place, as the server says. Only an agent that has served no cluster, or one that was replaced,
// does so.
func (id *identity) become(w wire.Welcome) error {
	if id.ClusterID != "" && !slices.Contains(w.Replaced, id.ClusterID) {
		return levelrail.Errorf(levelrail.ErrRefused, "the server takes this node for %s, and it has served the cluster %s as %s", w.NodeID, id.ClusterID, id.NodeID).
			WithNext("compare the versions of agent and server")
	}
	id.NodeID = w.NodeID
	return id.save()
}

// leave is `levelrail-agent leave`: the node forgets the cluster that it belongs to.
func leave(dir string, out io.Writer) error {
	if _, err := os.Stat(filepath.Join(dir, "agent.json")); errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintln(out, "This node has belonged to no cluster yet.")
		return nil
	}
	id, err := loadIdentity(dir)
	if err != nil {
		return err
	}
	if id.ClusterID == "" {
		fmt.Fprintln(out, "This node belongs to no cluster.")
		return nil
	}
	left := id.ClusterID
	id.ClusterID, id.Lineage, id.Term, id.Replaced = "", "", 0, nil
	if err := id.save(); err != nil {
		return err
	}
	fmt.Fprintf(out, "This node has left the cluster %s. Its models run on until the next cluster says what runs here; their weights stay.\nNext: systemctl restart levelrail-agent\n", left)
	return nil
}

// obey takes note of a term, and refuses a lower one than was seen.
func (id *identity) obey(term uint64) error {
	switch {
	case term < id.Term:
		return &levelrail.Error{Kind: levelrail.ErrRefused, Message: fmt.Sprintf("the server gives orders of term %d, and term %d has begun", term, id.Term),
			Next: "wait: a server that an election has overtaken learns of it by itself; one whose files were put back from a copy needs: levelrail-server restore"}
	case term > id.Term:
		id.Term = term
		return id.save()
	}
	return nil
}
