package httpapi

import (
	"context"
	"regexp"
	"slices"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
	"github.com/levelrail/levelrail/controlplane/view"
	"github.com/levelrail/levelrail/raftstore"
	"github.com/levelrail/levelrail/raftstore/command"
)

// longest is how far away an expiry may lie.
const longest = 10 * 365 * 24 * time.Hour

var label = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// KeyRules bound what keys a model may have (APP_MODEL_MAX_KEYS, APP_MODEL_KEY_…).
type KeyRules struct {
	Max      int           // live keys of a model; 0 or less: no limit
	MaxLimit int64         // the largest limit of a key
	Grace    time.Duration // how long a rotated key works on where nobody says
	MaxGrace time.Duration
}

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

// storedKey is a key as it is stored.
type storedKey struct {
	levelrail.Key
	index    uint64 // of the command that wrote it
	lastUsed *time.Time
}

func (k storedKey) view() wire.Key { return view.Key(k.Key, k.lastUsed) }

func readKey(tx *raftstore.Tx, id string) (k storedKey, there bool, err error) {
	if k.Key, k.index, err = raftstore.GetIndexed[levelrail.Key](tx, id); err == nil && k.index != 0 {
		k.lastUsed, err = raftstore.KeyLastUsed(tx, id)
	}
	return k, k.index != 0, err
}

// key looks a key up by its id.
func (s *Server) key(id string) (k storedKey, there bool, err error) {
	err = s.o.Store.View(func(tx *raftstore.Tx) (err error) { k, there, err = readKey(tx, id); return err })
	if err != nil {
		err = s.internal("look up the key", err)
	}
	return k, there, err
}

// keyOf looks up a key of a model. Neither of the two need be there.
func (s *Server) keyOf(model, id string) (storedKey, error) {
	d, err := s.read()
	if err != nil {
		return storedKey{}, err
	}
	if _, ok := d.Model(model); !ok {
		return storedKey{}, notFoundModel(model)
	}
	k, there, err := s.key(id)
	if err == nil && (!there || !slices.Contains(k.Models, model)) {
		err = levelrail.Errorf(levelrail.ErrNotFound, "the model %s has no key %q", model, clip(id)).WithNext("levelrail models keys list %s", model)
	}
	return k, err
}

// newKey is a key with its text, for the one answer that has it.
func (s *Server) newKey(id, text string) (*wire.NewKey, error) {
	k, there, err := s.key(id)
	if err != nil {
		return nil, err
	}
	if !there {
		return nil, levelrail.Errorf(levelrail.ErrConflict, "the key %s was made and has been removed since", id).WithNext("levelrail models keys list")
	}
	return &wire.NewKey{Key: k.view(), Secret: text}, nil
}

// isReplay tells whether this very request has made its key before.
func (s *Server) isReplay(by command.By, keyID string) (bool, error) {
	if by.IdempotencyKey == "" {
		return false, nil
	}
	_, there, err := s.key(keyID)
	return there, err
}

// makeKey proposes the command that makes a key, waits a moment for the connected gateways to know it, and answers with the
// key and its text. A gateway that does not say so in time learns of the key with its watch, as ever.
func (s *Server) makeKey(ctx context.Context, by command.By, cmd command.Command, id, text string) (*body[wire.NewKey], error) {
	before := s.connected()
	_, res, err := s.propose(ctx, by, cmd)
	if err != nil {
		return nil, err
	}
	made, err := s.newKey(id, text)
	if err != nil {
		return nil, err
	}
	s.awaitSeen(ctx, before, res.Index)
	return &body[wire.NewKey]{*made}, nil
}

// room refuses another live key of a model that has as many as it may.
func (s *Server) room(model string, by command.By, keyID, next string) error {
	most := s.o.Keys().Max
	if most <= 0 {
		return nil
	}
	live := 0
	err := s.o.Store.View(func(tx *raftstore.Tx) (err error) {
		live, err = raftstore.LiveKeys(tx, model, s.o.Clock(), most)
		return err
	})
	if err != nil {
		return s.internal("count the keys", err)
	}
	if live < most {
		return nil
	}
	if replay, err := s.isReplay(by, keyID); err != nil || replay {
		return err
	}
	return levelrail.Errorf(levelrail.ErrRefused, "%s has %d live keys, and APP_MODEL_MAX_KEYS allows %d", model, live, most).WithNext("%s", next)
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
	err = s.o.Store.View(func(tx *raftstore.Tx) error {
		return raftstore.KeysOf(tx, in.Name, func(k levelrail.Key) error {
			used, err := raftstore.KeyLastUsed(tx, k.ID)
			out.Body.Items = append(out.Body.Items, view.Key(k, used))
			return err
		})
	})
	if err != nil {
		return nil, s.internal("list the keys", err)
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
	m, ok := d.Model(in.Name)
	if !ok {
		return nil, notFoundModel(in.Name)
	}
	if err := checkLabel("key", in.Body.Name); err != nil {
		return nil, err
	}
	if err := s.checkScope(in.Body, d.Spec(m.Name, m.Revision).Engine); err != nil {
		return nil, err
	}
	by := s.by(ctx, in.IdempotencyKey, "create-key", in.Name, requestText(in.Body))
	mint := s.mint(by)
	text := mint.Secret("lr")
	key := levelrail.Key{ID: mint.ID("key"), Name: in.Body.Name, Models: []string{in.Name}, SHA256: levelrail.HashSecret(text), Prefix: levelrail.SecretPrefix(text),
		AllowPaths: in.Body.AllowPaths, AllowNames: in.Body.AllowModels, Limits: in.Body.Limits, Owner: levelrail.DefaultOwner}
	if key.ExpiresAt, err = s.expiry(in.Body.ExpiresInSeconds); err != nil {
		return nil, err
	}
	if err := s.room(in.Name, by, key.ID, "levelrail models keys list "+in.Name+", and revoke one that is not used"); err != nil {
		return nil, err
	}
	return s.makeKey(ctx, by, command.KeyCreate{Key: key}, key.ID, text)
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
	old, there, err := s.standingKey(in.Name, "default")
	if err != nil {
		return nil, err
	}
	if there {
		cmd = command.KeyRotate{Key: inPlaceOf(old, key)}
	}
	return s.makeKey(ctx, by, cmd, key.ID, text)
}

// standingKey is a model's live key of a name that no other has been made in place of.
func (s *Server) standingKey(model, name string) (found levelrail.Key, there bool, err error) {
	err = s.o.Store.View(func(tx *raftstore.Tx) error {
		replaced := map[string]bool{}
		var live []levelrail.Key
		err := raftstore.KeysNamed(tx, model, name, func(k levelrail.Key) error {
			replaced[k.Replaces] = true
			if k.Live(s.o.Clock()) {
				live = append(live, k)
			}
			return nil
		})
		for _, k := range live {
			if !replaced[k.ID] {
				found, there = k, true
			}
		}
		return err
	})
	if err != nil {
		err = s.internal("look up the key", err)
	}
	return found, there, err
}

// inPlaceOf gives a new key what the old one has: name, models, scope, limits and expiry.
func inPlaceOf(old, key levelrail.Key) levelrail.Key {
	key.Replaces, key.Name, key.Models, key.AllowPaths, key.AllowNames = old.ID, old.Name, old.Models, old.AllowPaths, old.AllowNames
	key.Limits, key.ExpiresAt, key.Tags, key.Owner = old.Limits, old.ExpiresAt, old.Tags, old.Owner
	return key
}

// replaceKey makes a key in place of another, which works on for a while.
func (s *Server) replaceKey(ctx context.Context, in *struct {
	Named
	Once
	ID   string `path:"id" maxLength:"64"`
	Body wire.RotateKey
}) (*body[wire.NewKey], error) {
	old, err := s.keyOf(in.Name, in.ID)
	if err != nil {
		return nil, err
	}
	rules, grace := s.o.Keys(), time.Duration(0)
	switch g := in.Body.GraceSeconds; {
	case g == nil:
		grace = min(rules.Grace, rules.MaxGrace)
	case *g < 0 || *g > int64(rules.MaxGrace/time.Second):
		return nil, levelrail.Errorf(levelrail.ErrInvalid, "a rotated key works on for 0 to %d seconds (APP_MODEL_KEY_MAX_GRACE), not %d", int64(rules.MaxGrace/time.Second), *g).
			WithNext("levelrail models keys rotate %s %s --grace %s", in.Name, old.ID, min(rules.Grace, rules.MaxGrace))
	default:
		grace = seconds(*g)
	}
	by := s.by(ctx, in.IdempotencyKey, "replace-key", in.Name, in.ID, requestText(in.Body))
	mint := s.mint(by)
	text := mint.Secret("lr")
	key := inPlaceOf(old.Key, levelrail.Key{ID: mint.ID("key"), SHA256: levelrail.HashSecret(text), Prefix: levelrail.SecretPrefix(text)})
	cmd := command.KeyRotate{Key: key}
	if grace > 0 {
		at := s.o.Clock().UTC().Add(grace).Truncate(time.Second)
		cmd.RetireAt = &at
		if err := s.room(in.Name, by, key.ID, "levelrail models keys rotate "+in.Name+" "+old.ID+" --grace 0s, which retires the old key at once"); err != nil {
			return nil, err
		}
	}
	return s.makeKey(ctx, by, cmd, key.ID, text)
}

// revokeKey closes a key, and waits until the gateways that are connected say that they refuse it. Asked to, it then has them
// end what the key has under way: first refused, so that nothing comes after what was ended.
func (s *Server) revokeKey(ctx context.Context, in *struct {
	Named
	Once
	ID  string `path:"id" maxLength:"64"`
	Now bool   `query:"now" doc:"end its requests that are under way as well, those that wait or whose body still comes among them"`
}) (*body[wire.Revoked], error) {
	if _, err := s.keyOf(in.Name, in.ID); err != nil {
		return nil, err
	}
	before := s.connected()
	if _, _, err := s.propose(ctx, s.by(ctx, in.IdempotencyKey, "revoke-key", in.ID), command.KeyRevoke{ID: in.ID}); err != nil {
		return nil, err
	}
	k, there, err := s.key(in.ID)
	if err != nil {
		return nil, err
	}
	if !there {
		return nil, levelrail.Errorf(levelrail.ErrNotFound, "the key %s went with its model", in.ID)
	}
	out := wire.Revoked{Key: k.view()}
	out.Gateways, out.Silent = s.awaitSeen(ctx, before, k.index)
	if !in.Now {
		return &body[wire.Revoked]{out}, nil
	}
	a, err := s.ask(ctx, wire.Question{Ask: wire.AskRevoke, KeyID: in.ID})
	if err != nil {
		return nil, err
	}
	ended := int64(0)
	for _, one := range a.by {
		ended += one.Ended
	}
	out.Ended = &ended
	for _, gateway := range a.silent {
		if !slices.Contains(out.Silent, gateway) {
			out.Silent = append(out.Silent, gateway)
		}
	}
	out.Gateways = slices.DeleteFunc(out.Gateways, func(g string) bool { return slices.Contains(out.Silent, g) })
	s.o.Log.Info("the requests of a revoked key were ended", "key", in.ID, "requests", ended, "by", callerOf(ctx).principal.String())
	return &body[wire.Revoked]{out}, nil
}
