package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/levelrail/levelrail"
)

// identity is who this agent is and whom it serves: agent.json in the agent's directory.
type identity struct {
	NodeID    string `json:"node_id"`
	ClusterID string `json:"cluster_id,omitempty"` // the first cluster that it served; it serves no other
	Term      uint64 `json:"term"`                 // the highest that it has seen; orders of a lower one are refused

	path string
}

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

// greet takes a server's answer. It refuses a server of another cluster, and one that has been overtaken by an election.
func (id *identity) greet(cluster string, term uint64) error {
	switch {
	case cluster == "":
		return &levelrail.Error{Kind: levelrail.ErrRefused, Message: "the server does not say which cluster it is of", Next: "compare the versions of agent and server"}
	case id.ClusterID != "" && id.ClusterID != cluster:
		return &levelrail.Error{Kind: levelrail.ErrRefused,
			Message: fmt.Sprintf("this node belongs to the cluster %s, and the server is of the cluster %s", id.ClusterID, cluster),
			Next:    "point the agent to its own control plane; to move the node, stop levelrail-agent, remove " + id.path + " and start it again"}
	}
	if err := id.obey(term); err != nil {
		return err
	}
	if id.ClusterID == "" {
		id.ClusterID = cluster
		return id.save()
	}
	return nil
}

// obey takes note of a term, and refuses a lower one than was seen.
func (id *identity) obey(term uint64) error {
	switch {
	case term < id.Term:
		return &levelrail.Error{Kind: levelrail.ErrRefused, Message: fmt.Sprintf("the server gives orders of term %d, and term %d has begun", term, id.Term),
			Next: "wait: it will learn of the newer leader by itself"}
	case term > id.Term:
		id.Term = term
		return id.save()
	}
	return nil
}
