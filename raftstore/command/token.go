package command

import "github.com/levelrail/levelrail"

// TokenCreate makes an API token. Only its hash is in the command.
type TokenCreate struct {
	Token levelrail.Token `json:"token"`
}

func (TokenCreate) Kind() string                        { return "token.create" }
func (c TokenCreate) Subject() (levelrail.Kind, string) { return levelrail.KindToken, c.Token.ID }

func (c TokenCreate) Validate() error {
	if err := required("token id", c.Token.ID, "token name", c.Token.Name, "token hash", c.Token.SHA256); err != nil {
		return err
	}
	if !isHash(c.Token.SHA256) {
		return invalid("the hash of the token %s is not the hex of a SHA-256", c.Token.ID)
	}
	if len(c.Token.Abilities) == 0 {
		return invalid("the token %s may do nothing", c.Token.Name).WithNext("give it an ability: read, write, write:sensitive or root")
	}
	for _, a := range c.Token.Abilities {
		if !levelrail.Allows(levelrail.Abilities, a) {
			return invalid("there is no ability %q", a).WithNext("use read, write, write:sensitive or root")
		}
	}
	return nil
}

func (c TokenCreate) Apply(t *Tx) (any, error) {
	for _, other := range list[levelrail.Token](t, "") {
		if other.ID == c.Token.ID || other.SHA256 == c.Token.SHA256 {
			return nil, levelrail.Errorf(levelrail.ErrConflict, "the token %s is there already", other.ID)
		}
		live := other.RevokedAt == nil && (other.ExpiresAt == nil || t.now.Before(*other.ExpiresAt))
		if other.Name == c.Token.Name && live {
			return nil, levelrail.Errorf(levelrail.ErrConflict, "there is a token named %s already", other.Name).
				WithNext("choose another name, or levelrail tokens revoke %s", other.ID)
		}
	}
	c.Token.RevokedAt, c.Token.Owner, c.Token.Stamp = nil, orDefault(c.Token.Owner), t.stamp(levelrail.Stamp{}, false)
	put(t, c.Token)
	return nil, nil
}

// TokenRevoke closes a token for good. Repeating it does nothing.
type TokenRevoke struct {
	ID string `json:"id"`
}

func (TokenRevoke) Kind() string                        { return "token.revoke" }
func (c TokenRevoke) Subject() (levelrail.Kind, string) { return levelrail.KindToken, c.ID }
func (c TokenRevoke) Validate() error                   { return required("token id", c.ID) }

func (c TokenRevoke) Apply(t *Tx) (any, error) {
	tok, there := get[levelrail.Token](t, c.ID)
	if !there {
		return nil, levelrail.Errorf(levelrail.ErrNotFound, "there is no token %s", c.ID).WithNext("levelrail tokens list")
	}
	if tok.RevokedAt == nil {
		at := t.now
		tok.RevokedAt, tok.Stamp = &at, t.stamp(tok.Stamp, true)
		put(t, tok)
	}
	return nil, nil
}
