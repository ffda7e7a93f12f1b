package command

import "github.com/levelrail/levelrail"

// NodePut writes a node whole: at its first hello and whenever its devices, labels or versions change.
type NodePut struct {
	Node    levelrail.Node `json:"node"`
	IfIndex uint64         `json:"if_index,omitempty"` // refuse when another command has written it since
}

func (NodePut) Kind() string                        { return "node.put" }
func (c NodePut) Subject() (levelrail.Kind, string) { return levelrail.KindNode, c.Node.ID }

func (c NodePut) Validate() error { return required("node id", c.Node.ID, "node name", c.Node.Name) }

func (c NodePut) Apply(t *Tx) (any, error) {
	old, at, there := getAt[levelrail.Node](t, c.Node.ID)
	if err := unchanged(levelrail.KindNode, c.Node.ID, c.IfIndex, at); err != nil {
		return nil, err
	}
	c.Node.Stamp, c.Node.Owner = t.stamp(old.Stamp, there), orDefault(c.Node.Owner)
	put(t, c.Node)
	return nil, nil
}

// NodeRemove forgets a node that holds nothing any more.
type NodeRemove struct {
	ID string `json:"id"`
}

func (NodeRemove) Kind() string                        { return "node.remove" }
func (c NodeRemove) Subject() (levelrail.Kind, string) { return levelrail.KindNode, c.ID }
func (c NodeRemove) Validate() error                   { return required("node id", c.ID) }

func (c NodeRemove) Apply(t *Tx) (any, error) {
	node, there := get[levelrail.Node](t, c.ID)
	if !there {
		return nil, levelrail.Errorf(levelrail.ErrNotFound, "there is no node %s", c.ID).WithNext("levelrail nodes list")
	}
	for _, r := range list[levelrail.Replica](t, "") {
		for _, s := range r.Shards {
			if s.NodeID == c.ID {
				return nil, levelrail.Errorf(levelrail.ErrRefused, "the node %s still holds the replica %s of the model %s", node.Name, r.ID, r.Model).
					WithNext("levelrail models delete %s, or move it to another node", r.Model)
			}
		}
	}
	for _, r := range list[levelrail.Reservation](t, "") {
		if r.NodeID == c.ID {
			return nil, levelrail.Errorf(levelrail.ErrRefused, "the node %s still holds a reservation for %s", node.Name, r.For).WithNext("take down what it is for")
		}
	}
	drop(t, levelrail.KindNode, c.ID)
	return nil, nil
}
