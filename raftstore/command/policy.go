package command

import "github.com/levelrail/levelrail"

// PolicyPut writes an access rule whole.
type PolicyPut struct {
	Policy  levelrail.Policy `json:"policy"`
	IfIndex uint64           `json:"if_index,omitempty"`
}

func (PolicyPut) Kind() string                        { return "policy.put" }
func (c PolicyPut) Subject() (levelrail.Kind, string) { return levelrail.KindPolicy, c.Policy.Name }
func (c PolicyPut) Validate() error                   { return required("policy's name", c.Policy.Name) }

func (c PolicyPut) Apply(t *Tx) (any, error) {
	old, at, there := getAt[levelrail.Policy](t, c.Policy.Name)
	if err := unchanged(levelrail.KindPolicy, c.Policy.Name, c.IfIndex, at); err != nil {
		return nil, err
	}
	c.Policy.Owner, c.Policy.Stamp = orDefault(c.Policy.Owner), t.stamp(old.Stamp, there)
	put(t, c.Policy)
	return nil, nil
}

// PolicyRemove takes an access rule away.
type PolicyRemove struct {
	Name string `json:"name"`
}

func (PolicyRemove) Kind() string                        { return "policy.remove" }
func (c PolicyRemove) Subject() (levelrail.Kind, string) { return levelrail.KindPolicy, c.Name }
func (c PolicyRemove) Validate() error                   { return required("policy's name", c.Name) }

func (c PolicyRemove) Apply(t *Tx) (any, error) {
	if _, there := get[levelrail.Policy](t, c.Name); !there {
		return nil, levelrail.Errorf(levelrail.ErrNotFound, "there is no policy %s", c.Name)
	}
	drop(t, levelrail.KindPolicy, c.Name)
	return nil, nil
}
