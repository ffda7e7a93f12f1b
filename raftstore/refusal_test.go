package raftstore

import (
	"strings"
	"testing"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/raftstore/command"
	"github.com/levelrail/levelrail/raftstore/command/commandtest"
)

// TestRefusals: on a store that holds the samples, each of these is refused with the kind and the words that help, and the
// state stays as it was but for the audit.
func TestRefusals(t *testing.T) {
	s := OpenMemory(testConfig(t, ""))
	for _, c := range commandtest.Samples(s.Status().ClusterID) {
		propose(t, s, c)
	}
	newKey := func(id, name string, models ...string) levelrail.Key {
		return levelrail.Key{ID: id, Name: name, Models: models, SHA256: levelrail.HashSecret(id)}
	}
	chat := read[levelrail.Replica](t, s, "chat")
	lost := chat
	lost.Shards = []levelrail.Shard{{NodeID: "node_a", ReservationID: "res_9"}}
	old := chat
	old.Revision = 9
	for name, row := range map[string]struct {
		c     command.Command
		kind  levelrail.ErrorKind
		words string
	}{
		"another cluster":              {command.ClusterInit{Cluster: levelrail.Cluster{ID: "clu_other"}}, levelrail.ErrConflict, "clu_other"},
		"domain of another":            {func() command.Command { d := deploy("new"); d.Model.Domain = "CHAT.example.com"; return d }(), levelrail.ErrConflict, "belongs to the model chat"},
		"job's id again":               {command.ModelRestart{Name: "chat", Job: &levelrail.Job{ID: "job_1", Action: "restart", Model: "chat"}}, levelrail.ErrConflict, "job_1"},
		"replica again":                {command.ReplicaPlace{Replica: chat, Reservations: []levelrail.Reservation{{ID: "res_3", For: "model:chat", NodeID: "node_a"}}}, levelrail.ErrConflict, "replica chat already"},
		"replica without reservation":  {command.ReplicaPut{Replica: lost}, levelrail.ErrNotFound, "no reservation there"},
		"replica of no revision":       {command.ReplicaPut{Replica: old}, levelrail.ErrNotFound, "no revision 9"},
		"replica read before":          {command.ReplicaPut{Replica: chat, IfIndex: 1}, levelrail.ErrConflict, "changed meanwhile"},
		"no replica":                   {command.ReplicaRemove{ID: "nobody"}, levelrail.ErrNotFound, "nobody"},
		"key's name in use":            {command.KeyCreate{Key: newKey("key_9", "batch", "chat")}, levelrail.ErrConflict, "key_3"},
		"key's text again":             {command.KeyCreate{Key: levelrail.Key{ID: "key_9", Name: "x", Models: []string{"chat"}, SHA256: levelrail.HashSecret("lr-2")}}, levelrail.ErrConflict, "there already"},
		"key of no model":              {command.KeyCreate{Key: newKey("key_9", "x", "nothing")}, levelrail.ErrNotFound, "nothing"},
		"rotation of a revoked key":    {command.KeyRotate{Key: func() levelrail.Key { k := newKey("key_9", "x", "chat"); k.Replaces = "key_1"; return k }()}, levelrail.ErrRefused, "revoked"},
		"rotation of no key":           {command.KeyRotate{Key: func() levelrail.Key { k := newKey("key_9", "x", "chat"); k.Replaces = "key_8"; return k }()}, levelrail.ErrNotFound, "key_8"},
		"no token":                     {command.TokenRevoke{ID: "tok_9"}, levelrail.ErrNotFound, "tok_9"},
		"token's text again":           {command.TokenCreate{Token: levelrail.Token{ID: "tok_9", Name: "new", SHA256: levelrail.HashSecret("lrt-1"), Abilities: levelrail.Abilities}}, levelrail.ErrConflict, "tok_1"},
		"secret's version skipped":     {command.SecretPut{Secret: levelrail.Secret{Path: "models/chat/hub-token", Namespace: "models", Wrapped: []byte("w"), Sealed: []byte("s"), Version: 4}}, levelrail.ErrConflict, "version 2"},
		"no secret":                    {command.SecretRemove{Path: "no/where"}, levelrail.ErrNotFound, "no/where"},
		"no weights":                   {command.WeightsRemove{ID: "w"}, levelrail.ErrNotFound, "weights w"},
		"residency of no model":        {command.ResidencyPut{Residency: levelrail.Residency{Model: "nothing", State: "awake"}}, levelrail.ErrNotFound, "nothing"},
		"job that ended otherwise":     {command.JobFinish{ID: "job_1", State: levelrail.JobDone}, levelrail.ErrConflict, "failed already"},
		"no job":                       {command.JobFinish{ID: "job_9", State: levelrail.JobDone}, levelrail.ErrNotFound, "job_9"},
		"certificate of another":       {command.CertificatePut{Certificate: levelrail.Certificate{Serial: "01ab", Subject: "somebody else"}}, levelrail.ErrConflict, "issued to"},
		"no policy":                    {command.PolicyRemove{Name: "none"}, levelrail.ErrNotFound, "none"},
		"reservation of another":       {command.ReservationPut{Reservation: levelrail.Reservation{ID: "res_app", For: "app:other", NodeID: "node_a"}}, levelrail.ErrConflict, "app:web"},
		"reservation on no node":       {command.ReservationPut{Reservation: levelrail.Reservation{ID: "res_9", For: "app:other", NodeID: "node_9"}}, levelrail.ErrNotFound, "node_9"},
		"reservation that is run on":   {command.ReservationRemove{ID: "res_3"}, levelrail.ErrRefused, "replica chat"},
		"node with a reservation":      {command.NodeRemove{ID: "node_a"}, levelrail.ErrRefused, "still holds"},
		"removal of a model with more": {command.ModelRemove{Name: "chat"}, levelrail.ErrRefused, "not being deleted"},
	} {
		t.Run(name, func(t *testing.T) {
			keys, models := all[levelrail.Key](t, s, ""), all[levelrail.Model](t, s, "")
			if e := refused(t, s, row.c, row.kind); !strings.Contains(e.Message, row.words) && !strings.Contains(e.Next, row.words) {
				t.Errorf("the refusal does not speak of %q: %v", row.words, e)
			}
			if len(all[levelrail.Key](t, s, "")) != len(keys) || len(all[levelrail.Model](t, s, "")) != len(models) {
				t.Error("something was written")
			}
		})
	}
	propose(t, s, command.ModelDelete{Name: "chat"})
	refused(t, s, command.ModelRemove{Name: "chat"}, levelrail.ErrRefused)
}
