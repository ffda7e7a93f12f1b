package reconcile

import (
	"fmt"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/controlplane/ledger"
)

// Status is a model's Ready condition. What the agent says of the replica is passed on as it is; what is worked out here
// is where there is no such word: not placed, not taken up yet, the node silent, being taken down.
func Status(d *Desired, o ledger.Snapshot, m levelrail.Model) levelrail.Condition {
	if m.Deleting {
		return levelrail.Condition{Reason: levelrail.Stopping, Message: "being taken down; its weights stay", Since: m.Stamp.UpdatedAt}
	}
	replicas := d.ReplicasOf(m.Name)
	if len(replicas) == 0 {
		if _, v := d.place(o, m, d.Spec(m.Name, m.Revision), levelrail.Replica{}, nil); v != nil {
			return v.condition(m)
		}
		return levelrail.Condition{Reason: levelrail.Pending, Message: "being placed on a node", Since: m.Stamp.UpdatedAt}
	}
	r := replicas[0]
	node, known := d.Nodes[r.Shards[0].NodeID]
	if !known {
		v := &verdict{reason: levelrail.NodeUnknown, message: "the node " + r.Shards[0].NodeID + " is not part of this cluster any more",
			next: "levelrail models delete " + m.Name + ", then deploy it on another node"}
		return v.condition(m)
	}
	status, report, heard := Observe(o, r)
	if v := silent(o, node, report, heard); v != nil {
		return v.condition(m)
	}
	if r.Revision != m.Revision {
		if _, v := d.reserve(o, m, r, nil); v != nil {
			c := v.condition(m)
			c.Message = join(c.Message, fmt.Sprintf("revision %d stays as it is meanwhile", r.Revision))
			return c
		}
		return levelrail.Condition{Reason: levelrail.Starting, Message: fmt.Sprintf("revision %d is being handed to the node %s", m.Revision, node.Name), Since: m.Stamp.UpdatedAt}
	}
	if status == nil {
		return levelrail.Condition{Reason: levelrail.Pending, Message: fmt.Sprintf("the node %s has not taken it up yet", node.Name), Since: r.Stamp.UpdatedAt}
	}
	// A word about the revision or the run of before says nothing about what is wanted now, unless the node said it since.
	c := status.Condition
	behind := status.Revision != r.Revision || status.Restarts < r.Restarts || r.Restarts < m.Restarts
	if behind && (c.Reason == levelrail.ModelLoaded || c.Since.Before(r.Stamp.UpdatedAt)) {
		c = levelrail.Condition{Ready: c.Ready, Reason: levelrail.Starting, Message: fmt.Sprintf("the node %s has yet to start revision %d", node.Name, r.Revision), Since: r.Stamp.UpdatedAt}
	}
	// An agent's Ready says that something serves; a model's, that what is wanted does.
	if c.Ready && c.Reason != levelrail.ModelLoaded {
		c.Ready = false
		if status.Revision != r.Revision {
			c.Message = join(c.Message, fmt.Sprintf("revision %d serves meanwhile", status.Revision))
		} else {
			c.Message = join(c.Message, "the engine that runs serves meanwhile")
		}
	}
	return c
}

func join(message, more string) string {
	if message == "" {
		return more
	}
	return message + "; " + more
}
