package command

import "github.com/levelrail/levelrail"

// ModelRemove ends a deletion: the model, its revisions, its revoked keys, its secrets and its residency go. Replicas must
// be gone before. Usage, jobs, audit and weights stay.
type ModelRemove struct {
	Name string `json:"name"`
}

func (ModelRemove) Kind() string                        { return "model.remove" }
func (c ModelRemove) Subject() (levelrail.Kind, string) { return levelrail.KindModel, c.Name }
func (c ModelRemove) Validate() error                   { return required("model name", c.Name) }

func (c ModelRemove) Apply(t *Tx) (any, error) {
	m, there := get[levelrail.Model](t, c.Name)
	if !there {
		return nil, levelrail.Errorf(levelrail.ErrNotFound, "there is no model %s", c.Name).WithNext("levelrail models list")
	}
	if !m.Deleting {
		return nil, levelrail.Errorf(levelrail.ErrRefused, "the model %s is not being deleted", c.Name).WithNext("levelrail models delete %s", c.Name)
	}
	for _, r := range list[levelrail.Replica](t, "") {
		if r.Model == c.Name {
			return nil, levelrail.Errorf(levelrail.ErrRefused, "the model %s still has the replica %s", c.Name, r.ID).WithNext("remove its replicas first")
		}
	}
	for _, id := range ids(t, levelrail.KindRevision, c.Name+"/") {
		drop(t, levelrail.KindRevision, id)
	}
	for _, k := range keysOf(t, c.Name, "") {
		if len(k.Models) == 1 {
			dropKey(t, k)
		}
	}
	for _, path := range ids(t, levelrail.KindSecret, "models/"+c.Name+"/") {
		drop(t, levelrail.KindSecret, path)
	}
	drop(t, levelrail.KindResidency, c.Name)
	drop(t, levelrail.KindModel, c.Name)
	return nil, nil
}
