package command

import "github.com/levelrail/levelrail"

// ClusterInit writes the one record of the cluster, at first start. Repeating it does nothing.
type ClusterInit struct {
	Cluster levelrail.Cluster `json:"cluster"`
}

func (ClusterInit) Kind() string                      { return "cluster.init" }
func (ClusterInit) Subject() (levelrail.Kind, string) { return levelrail.KindCluster, "cluster" }

func (c ClusterInit) Validate() error { return required("cluster id", c.Cluster.ID) }

func (c ClusterInit) Apply(t *Tx) (any, error) {
	if c.Cluster.ID != t.cluster {
		return nil, levelrail.Errorf(levelrail.ErrConflict, "the store belongs to the cluster %s, not to %s", t.cluster, c.Cluster.ID)
	}
	if _, there := get[levelrail.Cluster](t, "cluster"); !there {
		c.Cluster.CreatedAt = t.now
		put(t, c.Cluster)
	}
	return nil, nil
}
