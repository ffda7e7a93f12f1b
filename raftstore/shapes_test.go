package raftstore

import (
	"reflect"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/raftstore/command"
	"github.com/levelrail/levelrail/raftstore/command/commandtest"
)

// conformShapes writes an object of every shape and reads it back: revisions, targets with weights and fallbacks, served
// names with a slash, shards, weights with roles, a reservation of an app, a MIG instance, labels per source, keys with
// owner and scopes, usage with owner and tags, jobs, references to secrets.
func conformShapes(t *testing.T, s *Store, _ *clock) {
	want := map[string]levelrail.Object{}
	for _, c := range commandtest.Samples(s.Status().ClusterID) {
		propose(t, s, c)
		remember(want, c)
	}
	same := func(got levelrail.Object, mend func(levelrail.Object) levelrail.Object) {
		t.Helper()
		key := string(got.ObjectKind()) + " " + got.ObjectID()
		w, ok := want[key]
		if !ok {
			t.Errorf("nobody wrote the %s", key)
			return
		}
		delete(want, key)
		if w = mend(w); !reflect.DeepEqual(got, w) {
			t.Errorf("the %s reads as\n%+v\nand was written as\n%+v", key, got, w)
		}
	}
	for _, n := range all[levelrail.Node](t, s, "") {
		same(n, func(o levelrail.Object) levelrail.Object {
			w := o.(levelrail.Node)
			w.Stamp, w.Owner = n.Stamp, levelrail.DefaultOwner
			return w
		})
	}
	for _, r := range all[levelrail.Revision](t, s, "chat/") {
		same(r, func(o levelrail.Object) levelrail.Object {
			w := o.(levelrail.Revision)
			w.CreatedAt, w.CreatedBy = commandtest.At, root.Principal
			return w
		})
	}
	for _, r := range all[levelrail.Replica](t, s, "") {
		same(r, func(o levelrail.Object) levelrail.Object {
			w := o.(levelrail.Replica)
			w.Stamp = r.Stamp
			return w
		})
	}
	for _, r := range all[levelrail.Reservation](t, s, "") {
		same(r, func(o levelrail.Object) levelrail.Object {
			w := o.(levelrail.Reservation)
			w.CreatedAt = commandtest.At
			return w
		})
	}
	for _, w := range all[levelrail.Weights](t, s, "") {
		same(w, func(o levelrail.Object) levelrail.Object { return o })
	}
	for _, k := range all[levelrail.Key](t, s, "") {
		same(k, func(o levelrail.Object) levelrail.Object {
			w := o.(levelrail.Key)
			w.Stamp, w.RevokedAt, w.ExpiresAt = k.Stamp, k.RevokedAt, k.ExpiresAt
			return w
		})
	}
	for _, u := range all[levelrail.Usage](t, s, "") {
		same(u, func(o levelrail.Object) levelrail.Object { return o })
	}
	for _, p := range all[levelrail.Policy](t, s, "") {
		same(p, func(o levelrail.Object) levelrail.Object {
			w := o.(levelrail.Policy)
			w.Stamp = p.Stamp
			return w
		})
	}
	for _, c := range all[levelrail.Certificate](t, s, "") {
		same(c, func(o levelrail.Object) levelrail.Object {
			w := o.(levelrail.Certificate)
			w.Stamp = c.Stamp
			return w
		})
	}
	for key := range want {
		t.Errorf("the %s was written and is not there", key)
	}

	m := read[levelrail.Model](t, s, "chat")
	if m.Revision != 2 || m.Restarts != 1 || m.HubToken.Path != "models/chat/hub-token" {
		t.Errorf("the model is %+v", m)
	}
	if j := read[levelrail.Job](t, s, "job_1"); j.State != levelrail.JobFailed || j.FinishedAt == nil || j.Reason != levelrail.InsufficientDisk {
		t.Errorf("the ended job is %+v", j)
	}
	if j := read[levelrail.Job](t, s, "job_2"); j.State != levelrail.JobRunning || j.FinishedAt != nil {
		t.Errorf("the running job is %+v", j)
	}
	if v := read[levelrail.Secret](t, s, "models/chat/hub-token"); v.Version != 2 || string(v.Sealed) != "sealed-models/chat/hub-token" {
		t.Errorf("the secret is %+v", v)
	}
	if old, now := read[levelrail.Key](t, s, "key_2"), read[levelrail.Key](t, s, "key_3"); old.ExpiresAt == nil || !old.ExpiresAt.Equal(commandtest.At.Add(time.Hour)) || now.Replaces != "key_2" {
		t.Errorf("after the rotation the keys are %+v and %+v", old, now)
	}
	if tok := read[levelrail.Token](t, s, "tok_1"); tok.RevokedAt == nil {
		t.Errorf("the revoked token is %+v", tok)
	}
	if r := read[levelrail.Residency](t, s, "chat"); r.State != "asleep" || !r.Since.Equal(commandtest.At) {
		t.Errorf("the residency is %+v", r)
	}
	if c := read[levelrail.Cluster](t, s, "cluster"); c.ID != s.Status().ClusterID {
		t.Errorf("the cluster is %+v", c)
	}
}

// remember notes the objects that a sample leaves.
func remember(want map[string]levelrail.Object, c command.Command) {
	put := func(o levelrail.Object) { want[string(o.ObjectKind())+" "+o.ObjectID()] = o }
	switch c := c.(type) {
	case command.NodePut:
		put(c.Node)
	case command.ModelDeploy:
		put(c.Revision)
		put(*c.Key)
	case command.ModelUpdate:
		put(*c.Revision)
	case command.ReplicaPlace:
		put(c.Replica)
	case command.ReplicaPut:
		put(c.Replica)
		put(c.Reservations[0])
	case command.ReservationPut:
		put(c.Reservation)
	case command.WeightsPut:
		put(c.Weights)
	case command.KeyCreate:
		put(c.Key)
	case command.KeyRotate:
		put(c.Key)
	case command.UsageRecord:
		for _, r := range c.Rows {
			put(r)
		}
	case command.PolicyPut:
		put(c.Policy)
	case command.CertificatePut:
		put(c.Certificate)
	}
}
