package command

import (
	"slices"

	"github.com/levelrail/levelrail"
)

// ModelDelete begins to take a model down: it is marked, and its keys open it no more. A key of several models stays for
// the others. The reconciler removes the replicas and ends with ModelRemove; weights stay. Repeating it does nothing.
type ModelDelete struct {
	Name string         `json:"name"`
	Job  *levelrail.Job `json:"job,omitempty"`
}

func (ModelDelete) Kind() string                        { return "model.delete" }
func (c ModelDelete) Subject() (levelrail.Kind, string) { return levelrail.KindModel, c.Name }

func (c ModelDelete) Validate() error {
	if err := required("model name", c.Name); err != nil {
		return err
	}
	return checkJob(c.Job, c.Name)
}

func (c ModelDelete) Apply(t *Tx) (any, error) {
	m, there := get[levelrail.Model](t, c.Name)
	if !there {
		return nil, levelrail.Errorf(levelrail.ErrNotFound, "there is no model %s", c.Name).WithNext("levelrail models list")
	}
	if m.Deleting {
		return nil, nil
	}
	m.Deleting, m.Stamp = true, t.stamp(m.Stamp, true)
	put(t, m)
	for _, k := range keysOf(t, c.Name, "") {
		if k.RevokedAt != nil {
			continue
		}
		if len(k.Models) == 1 {
			at := t.now
			k.RevokedAt = &at
		} else {
			k.Models = without(k.Models, c.Name)
		}
		k.Stamp = t.stamp(k.Stamp, true)
		putKey(t, k)
	}
	return nil, putNewJob(t, c.Job)
}

func without(names []string, name string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == name })
}
