package command

import "github.com/levelrail/levelrail"

// SecretPut writes a sealed value. Its version is one more than the stored one's, so a value sealed for an old state is
// refused.
type SecretPut struct {
	Secret levelrail.Secret `json:"secret"`
}

func (SecretPut) Kind() string                        { return "secret.put" }
func (c SecretPut) Subject() (levelrail.Kind, string) { return levelrail.KindSecret, c.Secret.Path }
func (c SecretPut) Validate() error                   { return checkSecret(c.Secret) }

func (c SecretPut) Apply(t *Tx) (any, error) {
	return nil, putSecrets(t, []levelrail.Secret{c.Secret})
}

// SecretRemove forgets a sealed value.
type SecretRemove struct {
	Path string `json:"path"`
}

func (SecretRemove) Kind() string                        { return "secret.remove" }
func (c SecretRemove) Subject() (levelrail.Kind, string) { return levelrail.KindSecret, c.Path }
func (c SecretRemove) Validate() error                   { return required("secret's path", c.Path) }

func (c SecretRemove) Apply(t *Tx) (any, error) {
	if _, there := get[levelrail.Secret](t, c.Path); !there {
		return nil, levelrail.Errorf(levelrail.ErrNotFound, "there is no secret at %s", c.Path)
	}
	drop(t, levelrail.KindSecret, c.Path)
	return nil, nil
}

func checkSecret(s levelrail.Secret) error {
	if err := required("secret's path", s.Path, "secret's namespace", s.Namespace); err != nil {
		return err
	}
	if len(s.Sealed) == 0 || len(s.Wrapped) == 0 {
		return invalid("the secret at %s is not sealed", s.Path)
	}
	if s.Version < 1 {
		return invalid("the secret at %s has no version", s.Path)
	}
	return nil
}

func putSecrets(t *Tx, secrets []levelrail.Secret) error {
	for _, s := range secrets {
		old, there := get[levelrail.Secret](t, s.Path)
		if s.Version != old.Version+1 {
			return levelrail.Errorf(levelrail.ErrConflict, "the secret at %s is at version %d, so the next one is %d and not %d", s.Path, old.Version, old.Version+1, s.Version).
				WithNext("repeat the change")
		}
		s.Stamp = t.stamp(old.Stamp, there)
		put(t, s)
	}
	return nil
}
