package command

import (
	"strings"

	"github.com/levelrail/levelrail"
)

// ModelDeploy makes a model whole: the model, its revision 1, its first key, the job that brings it up, and the sealed
// values that it refers to (paths under models/NAME/).
type ModelDeploy struct {
	Model    levelrail.Model    `json:"model"`
	Revision levelrail.Revision `json:"revision"`
	Key      *levelrail.Key     `json:"key,omitempty"`
	Job      *levelrail.Job     `json:"job,omitempty"`
	Secrets  []levelrail.Secret `json:"secrets,omitempty"`
}

func (ModelDeploy) Kind() string                        { return "model.deploy" }
func (c ModelDeploy) Subject() (levelrail.Kind, string) { return levelrail.KindModel, c.Model.Name }

func (c ModelDeploy) Validate() error {
	if err := levelrail.CheckModelName(c.Model.Name); err != nil {
		return err
	}
	if c.Revision.Number != 1 || c.Revision.Model != c.Model.Name {
		return invalid("the first revision of the model %s is number 1 of its own, not %s", c.Model.Name, c.Revision.ObjectID())
	}
	if err := checkRevision(c.Revision); err != nil {
		return err
	}
	if c.Key != nil {
		if err := checkKey(*c.Key); err != nil {
			return err
		}
		if len(c.Key.Models) != 1 || c.Key.Models[0] != c.Model.Name {
			return invalid("the key of a new model opens that model alone")
		}
	}
	if err := checkJob(c.Job, c.Model.Name); err != nil {
		return err
	}
	return checkModelSecrets(c.Secrets, c.Model.Name)
}

func (c ModelDeploy) Apply(t *Tx) (any, error) {
	if old, there := get[levelrail.Model](t, c.Model.Name); there {
		if old.Deleting {
			return nil, levelrail.Errorf(levelrail.ErrConflict, "the model %s is being deleted, and its name is free once that has ended", c.Model.Name).
				WithNext("levelrail models get %s, and deploy again when it is gone", c.Model.Name)
		}
		return nil, levelrail.Errorf(levelrail.ErrConflict, "there is a model %s already", c.Model.Name).
			WithNext("levelrail models update %s, or choose another name", c.Model.Name)
	}
	if err := freeDomain(t, c.Model); err != nil {
		return nil, err
	}
	m := c.Model
	m.Revision, m.Restarts, m.Deleting = 1, 0, false
	m.Owner, m.Stamp = orDefault(m.Owner), t.stamp(levelrail.Stamp{}, false)
	put(t, m)
	putRevision(t, c.Revision)
	if c.Key != nil {
		if err := putNewKey(t, *c.Key, ""); err != nil {
			return nil, err
		}
	}
	if err := putNewJob(t, c.Job); err != nil {
		return nil, err
	}
	return nil, putSecrets(t, c.Secrets)
}

func checkRevision(r levelrail.Revision) error {
	return required("engine", r.Spec.Engine, "source", r.Spec.Source)
}

func putRevision(t *Tx, r levelrail.Revision) {
	r.CreatedAt, r.CreatedBy = t.now, t.by.Principal
	put(t, r)
}

// checkModelSecrets holds that a model's command touches no other model's secrets.
func checkModelSecrets(secrets []levelrail.Secret, model string) error {
	for _, s := range secrets {
		if err := checkSecret(s); err != nil {
			return err
		}
		if !strings.HasPrefix(s.Path, "models/"+model+"/") {
			return invalid("the secret %s does not belong to the model %s", s.Path, model)
		}
	}
	return nil
}

// freeDomain refuses a domain that another model has: the host name decides which model a request is for.
func freeDomain(t *Tx, m levelrail.Model) error {
	if m.Domain == "" {
		return nil
	}
	for _, other := range list[levelrail.Model](t, "") {
		if other.Name != m.Name && strings.EqualFold(other.Domain, m.Domain) {
			return levelrail.Errorf(levelrail.ErrConflict, "the domain %s belongs to the model %s", m.Domain, other.Name).WithNext("choose another domain")
		}
	}
	return nil
}
