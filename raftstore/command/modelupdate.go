package command

import (
	"github.com/levelrail/levelrail"
)

// ModelUpdate changes a model. With a Revision the model gets that new spec and wants it; without one it wants the stored
// revision that Model.Revision names (0: the same as before). Name, owner, restarts and the rest of its history stay; the
// other fields of Model are taken as they are. The answer is ModelUpdated.
type ModelUpdate struct {
	Model      levelrail.Model     `json:"model"`
	IfRevision int                 `json:"if_revision,omitempty"` // refuse when the wanted revision is another; 0 does not ask
	Revision   *levelrail.Revision `json:"revision,omitempty"`
	Job        *levelrail.Job      `json:"job,omitempty"`
	Secrets    []levelrail.Secret  `json:"secrets,omitempty"`
}

// ModelUpdated answers ModelUpdate.
type ModelUpdated struct {
	Revision int `json:"revision"` // that the model wants now
}

func (ModelUpdate) Kind() string                        { return "model.update" }
func (c ModelUpdate) Subject() (levelrail.Kind, string) { return levelrail.KindModel, c.Model.Name }

func (c ModelUpdate) Validate() error {
	if err := levelrail.CheckModelName(c.Model.Name); err != nil {
		return err
	}
	if c.Revision != nil {
		if c.Revision.Model != c.Model.Name {
			return invalid("the revision is of the model %s, not of %s", c.Revision.Model, c.Model.Name)
		}
		if err := checkRevision(*c.Revision); err != nil {
			return err
		}
	}
	if err := checkJob(c.Job, c.Model.Name); err != nil {
		return err
	}
	return checkModelSecrets(c.Secrets, c.Model.Name)
}

func (c ModelUpdate) Apply(t *Tx) (any, error) {
	old, err := standing(t, c.Model.Name)
	if err != nil {
		return nil, err
	}
	if c.IfRevision != 0 && c.IfRevision != old.Revision {
		return nil, levelrail.Errorf(levelrail.ErrConflict, "the model %s is at revision %d, and the change was made for revision %d", old.Name, old.Revision, c.IfRevision).
			WithNext("levelrail models get %s, then repeat the change", old.Name)
	}
	if err := freeDomain(t, c.Model); err != nil {
		return nil, err
	}
	m := c.Model
	m.Restarts, m.Deleting, m.Owner, m.Stamp = old.Restarts, old.Deleting, old.Owner, t.stamp(old.Stamp, true)
	switch {
	case c.Revision != nil:
		highest := 0
		for _, r := range list[levelrail.Revision](t, m.Name+"/") {
			highest = max(highest, r.Number)
		}
		if c.Revision.Number != highest+1 {
			return nil, levelrail.Errorf(levelrail.ErrConflict, "the next revision of the model %s is %d, not %d", m.Name, highest+1, c.Revision.Number).
				WithNext("levelrail models get %s, then repeat the change", m.Name)
		}
		m.Revision = c.Revision.Number
		putRevision(t, *c.Revision)
	case m.Revision == 0:
		m.Revision = old.Revision
	default:
		if _, there := get[levelrail.Revision](t, levelrail.RevisionID(m.Name, m.Revision)); !there {
			return nil, levelrail.Errorf(levelrail.ErrNotFound, "the model %s has no revision %d", m.Name, m.Revision).WithNext("levelrail models get %s", m.Name)
		}
	}
	put(t, m)
	if err := putNewJob(t, c.Job); err != nil {
		return nil, err
	}
	return ModelUpdated{Revision: m.Revision}, putSecrets(t, c.Secrets)
}

// standing is a model that is there and not being deleted.
func standing(t *Tx, name string) (levelrail.Model, error) {
	m, there := get[levelrail.Model](t, name)
	if !there {
		return m, levelrail.Errorf(levelrail.ErrNotFound, "there is no model %s", name).WithNext("levelrail models list")
	}
	if m.Deleting {
		return m, levelrail.Errorf(levelrail.ErrConflict, "the model %s is being deleted", name).WithNext("levelrail models get %s", name)
	}
	return m, nil
}
