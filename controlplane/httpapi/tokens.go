package httpapi

import (
	"context"
	"slices"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
	"github.com/levelrail/levelrail/controlplane/reconcile"
	"github.com/levelrail/levelrail/controlplane/view"
	"github.com/levelrail/levelrail/raftstore/command"
)

func (s *Server) listTokens(context.Context, *none) (*body[wire.List[wire.Token]], error) {
	d, err := s.read()
	if err != nil {
		return nil, err
	}
	out := &body[wire.List[wire.Token]]{}
	out.Body.Items = []wire.Token{}
	for _, t := range d.Tokens {
		out.Body.Items = append(out.Body.Items, view.Token(t))
	}
	slices.SortStableFunc(out.Body.Items, func(a, b wire.Token) int { return a.CreatedAt.Compare(b.CreatedAt) })
	return out, nil
}

func (s *Server) createToken(ctx context.Context, in *struct {
	Once
	Body wire.CreateToken
}) (*body[wire.NewToken], error) {
	if err := checkLabel("token", in.Body.Name); err != nil {
		return nil, err
	}
	if len(in.Body.Abilities) == 0 {
		return nil, levelrail.Errorf(levelrail.ErrInvalid, "a token without an ability may do nothing").WithNext("name one of read, write, write:sensitive, root")
	}
	var abilities []levelrail.Ability
	for _, a := range in.Body.Abilities {
		if !slices.Contains(levelrail.Abilities, a) {
			return nil, levelrail.Errorf(levelrail.ErrInvalid, "there is no ability %q", clip(string(a))).WithNext("use one of read, write, write:sensitive, root")
		}
		if !slices.Contains(abilities, a) {
			abilities = append(abilities, a)
		}
	}
	by := s.by(ctx, in.IdempotencyKey, "create-token", requestText(in.Body))
	mint := s.mint(by)
	text := mint.Secret("lrt")
	t := levelrail.Token{ID: mint.ID("tok"), Name: in.Body.Name, Abilities: abilities, SHA256: levelrail.HashSecret(text), Prefix: levelrail.SecretPrefix(text), Owner: levelrail.DefaultOwner}
	var err error
	if t.ExpiresAt, err = s.expiry(in.Body.ExpiresInSeconds); err != nil {
		return nil, err
	}
	d, _, err := s.propose(ctx, by, command.TokenCreate{Token: t})
	if err != nil {
		return nil, err
	}
	made, ok := findToken(d, t.ID)
	if !ok {
		return nil, levelrail.Errorf(levelrail.ErrConflict, "the token %s was made and has been removed since", t.ID).WithNext("levelrail tokens list")
	}
	return &body[wire.NewToken]{wire.NewToken{Token: view.Token(made), Secret: text}}, nil
}

func (s *Server) revokeToken(ctx context.Context, in *struct {
	Once
	ID string `path:"id" maxLength:"64"`
}) (*body[wire.Token], error) {
	d, _, err := s.propose(ctx, s.by(ctx, in.IdempotencyKey, "revoke-token", in.ID), command.TokenRevoke{ID: in.ID})
	if err != nil {
		return nil, err
	}
	t, ok := findToken(d, in.ID)
	if !ok {
		return nil, levelrail.Errorf(levelrail.ErrNotFound, "there is no token %q", clip(in.ID)).WithNext("levelrail tokens list")
	}
	return &body[wire.Token]{view.Token(t)}, nil
}

func findToken(d *reconcile.Desired, id string) (levelrail.Token, bool) {
	for _, t := range d.Tokens {
		if t.ID == id {
			return t, true
		}
	}
	return levelrail.Token{}, false
}
