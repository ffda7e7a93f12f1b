package command_test

import (
	"strings"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/raftstore/command"
	"github.com/levelrail/levelrail/raftstore/command/commandtest"
)

// TestIncompleteCommandsAreInvalid: what can be seen without the state is refused before it reaches the log, with a
// sentence that names what is wrong.
func TestIncompleteCommandsAreInvalid(t *testing.T) {
	deploy := func(change func(*command.ModelDeploy)) command.Command {
		c := command.ModelDeploy{
			Model:    levelrail.Model{Name: "chat"},
			Revision: levelrail.Revision{Model: "chat", Number: 1, Spec: levelrail.ModelSpec{Engine: "ollama", Source: "llama3.1:8b"}},
			Key:      &levelrail.Key{ID: "key_1", Name: "default", Models: []string{"chat"}, SHA256: levelrail.HashSecret("k")},
			Job:      &levelrail.Job{ID: "job_1", Action: "deploy", Model: "chat"},
		}
		change(&c)
		return c
	}
	place := func(change func(*command.ReplicaPlace)) command.Command {
		c := command.ReplicaPlace{
			Replica:      levelrail.Replica{ID: "chat", Model: "chat", Revision: 1, Shards: []levelrail.Shard{{NodeID: "n", ReservationID: "r"}}, EngineKey: levelrail.SecretRef{Path: "replicas/chat/engine-key"}},
			Reservations: []levelrail.Reservation{{ID: "r", For: "model:chat", NodeID: "n"}},
			EngineKey:    &levelrail.Secret{Path: "replicas/chat/engine-key", Namespace: "models", Wrapped: []byte("w"), Sealed: []byte("s"), Version: 1},
		}
		change(&c)
		return c
	}
	token := func(change func(*levelrail.Token)) command.Command {
		tok := levelrail.Token{ID: "tok_1", Name: "ci", SHA256: levelrail.HashSecret("t"), Abilities: []levelrail.Ability{levelrail.AbilityRead}}
		change(&tok)
		return command.TokenCreate{Token: tok}
	}
	for _, c := range []command.Command{deploy(func(*command.ModelDeploy) {}), place(func(*command.ReplicaPlace) {}), token(func(*levelrail.Token) {})} {
		if err := c.Validate(); err != nil {
			t.Fatalf("%s is not usable as a beginning: %v", c.Kind(), err)
		}
	}
	for name, row := range map[string]struct {
		c     command.Command
		words string
	}{
		"model's name":              {deploy(func(c *command.ModelDeploy) { c.Model.Name = "Chat!" }), "not usable"},
		"second revision first":     {deploy(func(c *command.ModelDeploy) { c.Revision.Number = 2 }), "number 1"},
		"revision of another model": {deploy(func(c *command.ModelDeploy) { c.Revision.Model = "other" }), "number 1"},
		"no engine":                 {deploy(func(c *command.ModelDeploy) { c.Revision.Spec.Engine = "" }), "no engine"},
		"key of another model":      {deploy(func(c *command.ModelDeploy) { c.Key.Models = []string{"other"} }), "that model alone"},
		"key by its text":           {deploy(func(c *command.ModelDeploy) { c.Key.SHA256 = "lr-secret" }), "hex of a SHA-256"},
		"job of another model":      {deploy(func(c *command.ModelDeploy) { c.Job.Model = "other" }), "about the model"},
		"secret of another model": {deploy(func(c *command.ModelDeploy) {
			c.Secrets = []levelrail.Secret{{Path: "models/other/x", Namespace: "m", Wrapped: []byte("w"), Sealed: []byte("s"), Version: 1}}
		}), "does not belong"},
		"secret that is not sealed": {deploy(func(c *command.ModelDeploy) {
			c.Secrets = []levelrail.Secret{{Path: "models/chat/x", Namespace: "m", Version: 1}}
		}), "not sealed"},
		"secret without a version":    {command.SecretPut{Secret: levelrail.Secret{Path: "p", Namespace: "m", Wrapped: []byte("w"), Sealed: []byte("s")}}, "no version"},
		"update of another's":         {command.ModelUpdate{Model: levelrail.Model{Name: "chat"}, Revision: &levelrail.Revision{Model: "other", Number: 2}}, "of the model other"},
		"replica's id":                {place(func(c *command.ReplicaPlace) { c.Replica.Number = 1 }), "chat.1"},
		"replica that runs nowhere":   {place(func(c *command.ReplicaPlace) { c.Replica.Shards = nil }), "no shard"},
		"shard without a reservation": {place(func(c *command.ReplicaPlace) { c.Reservations = nil }), "without its reservation"},
		"reservation of another":      {place(func(c *command.ReplicaPlace) { c.Reservations[0].For = "app:web" }), "app:web"},
		"engine key elsewhere":        {place(func(c *command.ReplicaPlace) { c.EngineKey.Path = "elsewhere" }), "elsewhere"},
		"key that opens nothing":      {command.KeyCreate{Key: levelrail.Key{ID: "k", Name: "n", SHA256: levelrail.HashSecret("k")}}, "opens no model"},
		"rotation of nothing":         {command.KeyRotate{Key: levelrail.Key{ID: "k", Name: "n", Models: []string{"m"}, SHA256: levelrail.HashSecret("k")}}, "key to replace"},
		"token that may do nothing":   {token(func(t *levelrail.Token) { t.Abilities = nil }), "may do nothing"},
		"ability that is none":        {token(func(t *levelrail.Token) { t.Abilities = []levelrail.Ability{"fly"} }), "fly"},
		"token by its text":           {token(func(t *levelrail.Token) { t.SHA256 = strings.Repeat("G", 64) }), "hex of a SHA-256"},
		"residency that is none":      {command.ResidencyPut{Residency: levelrail.Residency{Model: "m", State: "dozing"}}, "dozing"},
		"job that goes on":            {command.JobFinish{ID: "j", State: levelrail.JobRunning}, "done or failed"},
		"batch without a number":      {command.UsageRecord{GatewayID: "g"}, "numbered from 1"},
		"usage without an hour":       {command.UsageRecord{GatewayID: "g", Sequence: 1, Rows: []levelrail.Usage{{KeyID: "k", Model: "m"}}}, "no hour"},
		"prune within an hour":        {command.UsagePrune{Before: time.Date(2026, 1, 1, 1, 30, 0, 0, time.UTC)}, "full hour"},
		"usage that was undropped":    {command.UsageRecord{GatewayID: "g", Sequence: 1, Dropped: -1}, "dropped -1"},
		"usage without a key":         {command.UsageRecord{GatewayID: "g", Sequence: 1, Rows: []levelrail.Usage{{Model: "m"}}}, "no key id"},
	} {
		t.Run(name, func(t *testing.T) {
			err := row.c.Validate()
			if levelrail.KindOf(err) != levelrail.ErrInvalid || !strings.Contains(err.Error(), row.words) {
				t.Errorf("it gave %v, which should speak of %q", err, row.words)
			}
		})
	}
}

// TestEveryKindNamesItsSubject: the audit of a command says which object it is about.
func TestEveryKindNamesItsSubject(t *testing.T) {
	for _, c := range append(commandtest.Samples(commandtest.ClusterID), commandtest.Removals()...) {
		if kind, id := c.Subject(); kind == "" || id == "" {
			t.Errorf("%s is about %q %q", c.Kind(), kind, id)
		}
		if removes := strings.HasSuffix(c.Kind(), ".remove") || strings.HasSuffix(c.Kind(), ".revoke") || c.Kind() == "model.delete" || c.Kind() == "usage.prune"; removes != command.Removes(c) {
			t.Errorf("%s: Removes says %v", c.Kind(), !removes)
		}
	}
}
