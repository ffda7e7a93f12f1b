package httpapi

import (
	"context"
	"regexp"
	"slices"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
	"github.com/levelrail/levelrail/controlplane/reconcile"
	"github.com/levelrail/levelrail/controlplane/view"
	"github.com/levelrail/levelrail/raftstore/command"
)

// longest is how far away an expiry may lie.
const longest = 10 * 365 * 24 * time.Hour

var label = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

func checkLabel(what, name string) error {
	if label.MatchString(name) {
		return nil
	}
	return levelrail.Errorf(levelrail.ErrInvalid, "the name %q of the %s is not usable: it has 1 to 64 letters, digits, dots, dashes and underscores", clip(name), what).
		WithNext("choose a name such as ci or laptop-1")
}

func (s *Server) expiry(in int64) (*time.Time, error) {
	if in == 0 {
		return nil, nil
	}
	if in < 0 || seconds(in) > longest || in > int64(longest/time.Second) {
		return nil, levelrail.Errorf(levelrail.ErrInvalid, "an expiry lies between one second and ten years ahead, not %d seconds", in).WithNext("leave it out for a key that does not expire")
	}
	at := s.o.Clock().UTC().Add(seconds(in)).Truncate(time.Second)
	return &at, nil
}

func findKey(d *reconcile.Desired, id string) (levelrail.Key, bool) {
	for _, k := range d.Keys {
		if k.ID == id {
			return k, true
		}
	}
	return levelrail.Key{}, false
}

// newKey is a key with its text, for the one answer that has it.
func newKey(d *reconcile.Desired, id, text string) (*wire.NewKey, error) {
	k, ok := findKey(d, id)
	if !ok {
		return nil, levelrail.Errorf(levelrail.ErrConflict, "the key %s was made and has been removed since", id).WithNext("levelrail models keys list")
	}
	return &wire.NewKey{Key: view.Key(k), Secret: text}, nil
}

func (s *Server) listKeys(_ context.Context, in *Named) (*body[wire.List[wire.Key]], error) {
	d, err := s.read()
	if err != nil {
		return nil, err
	}
	if _, ok := d.Model(in.Name); !ok {
		return nil, notFoundModel(in.Name)
	}
	out := &body[wire.List[wire.Key]]{}
	out.Body.Items = []wire.Key{}
	for _, k := range d.Keys {
		if slices.Contains(k.Models, in.Name) {
			out.Body.Items = append(out.Body.Items, view.Key(k))
		}
	}
	slices.SortStableFunc(out.Body.Items, func(a, b wire.Key) int { return a.CreatedAt.Compare(b.CreatedAt) })
	return out, nil
}

func (s *Server) createKey(ctx context.Context, in *struct {
	Named
	Once
	Body wire.CreateKey
}) (*body[wire.NewKey], error) {
	d, err := s.read()
	if err != nil {
		return nil, err
	}
	if _, ok := d.Model(in.Name); !ok {
		return nil, notFoundModel(in.Name)
	}
	if err := checkLabel("key", in.Body.Name); err != nil {
		return nil, err
	}
	by := s.by(ctx, in.IdempotencyKey, "create-key", in.Name, requestText(in.Body))
	mint := s.mint(by)
	text := mint.Secret("lr")
	key := levelrail.Key{ID: mint.ID("key"), Name: in.Body.Name, Models: []string{in.Name}, SHA256: levelrail.HashSecret(text), Prefix: levelrail.SecretPrefix(text), Owner: levelrail.DefaultOwner}
	if key.ExpiresAt, err = s.expiry(in.Body.ExpiresInSeconds); err != nil {
		return nil, err
	}
	live := 0
	for _, k := range d.Keys {
		if slices.Contains(k.Models, in.Name) && k.Live(s.o.Clock()) {
			live++
		}
	}
	if most := s.o.MaxKeys(); most > 0 && live >= most && !isReplay(d, by, key.ID) {
		return nil, levelrail.Errorf(levelrail.ErrRefused, "%s has %d live keys, and APP_MODEL_MAX_KEYS allows %d", in.Name, live, most).
			WithNext("levelrail models keys list %s, and revoke one that is not used", in.Name)
	}
	d, _, err = s.propose(ctx, by, command.KeyCreate{Key: key})
	if err != nil {
		return nil, err
	}
	made, err := newKey(d, key.ID, text)
	if err != nil {
		return nil, err
	}
	return &body[wire.NewKey]{*made}, nil
}

func (s *Server) revokeKey(ctx context.Context, in *struct {
	Named
	Once
	ID string `path:"id" maxLength:"64"`
}) (*body[wire.Key], error) {
	d, err := s.read()
	if err != nil {
		return nil, err
	}
	if _, ok := d.Model(in.Name); !ok {
		return nil, notFoundModel(in.Name)
	}
	if k, ok := findKey(d, in.ID); !ok || !slices.Contains(k.Models, in.Name) {
		return nil, levelrail.Errorf(levelrail.ErrNotFound, "the model %s has no key %q", in.Name, clip(in.ID)).WithNext("levelrail models keys list %s", in.Name)
	}
	d, _, err = s.propose(ctx, s.by(ctx, in.IdempotencyKey, "revoke-key", in.ID), command.KeyRevoke{ID: in.ID})
	if err != nil {
		return nil, err
	}
	k, ok := findKey(d, in.ID)
	if !ok {
		return nil, levelrail.Errorf(levelrail.ErrNotFound, "the key %s went with its model", in.ID)
	}
	return &body[wire.Key]{view.Key(k)}, nil
}

// rotateKey puts a new key in the place of the one named default, which closes at once. A model that has none gets one.
func (s *Server) rotateKey(ctx context.Context, in *changing) (*body[wire.NewKey], error) {
	d, err := s.read()
	if err != nil {
		return nil, err
	}
	if _, ok := d.Model(in.Name); !ok {
		return nil, notFoundModel(in.Name)
	}
	by := s.by(ctx, in.IdempotencyKey, "rotate-key", in.Name)
	mint := s.mint(by)
	text := mint.Secret("lr")
	key := levelrail.Key{ID: mint.ID("key"), Name: "default", Models: []string{in.Name}, SHA256: levelrail.HashSecret(text), Prefix: levelrail.SecretPrefix(text), Owner: levelrail.DefaultOwner}
	var cmd command.Command = command.KeyCreate{Key: key}
	for _, k := range d.Keys {
		if k.Name == "default" && slices.Equal(k.Models, key.Models) && k.Live(s.o.Clock()) {
			key.Replaces, key.AllowPaths, key.AllowNames, key.Limits, key.ExpiresAt, key.Tags = k.ID, k.AllowPaths, k.AllowNames, k.Limits, k.ExpiresAt, k.Tags
			cmd = command.KeyRotate{Key: key}
		}
	}
	d, _, err = s.propose(ctx, by, cmd)
	if err != nil {
		return nil, err
	}
	made, err := newKey(d, key.ID, text)
	if err != nil {
		return nil, err
	}
	return &body[wire.NewKey]{*made}, nil
}

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

func sortedNodes(d *reconcile.Desired) []levelrail.Node {
	out := make([]levelrail.Node, 0, len(d.Nodes))
	for _, n := range d.Nodes {
		out = append(out, n)
	}
	slices.SortFunc(out, func(a, b levelrail.Node) int {
		if a.Name != b.Name {
			if a.Name < b.Name {
				return -1
			}
			return 1
		}
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
	return out
}
