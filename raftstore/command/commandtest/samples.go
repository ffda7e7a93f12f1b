// Package commandtest has one sample of every kind of command, in an order in which each is taken by a store that began
// empty. Between them they write an object of every shape that the state has, also of those that no feature uses yet.
package commandtest

import (
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/raftstore/command"
)

// At is the time in the samples.
var At = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// ClusterID is the cluster of the samples.
const ClusterID = "clu_sample"

// By is who proposes the samples.
var By = command.By{Principal: levelrail.Principal{Kind: "token", ID: "tok_ops", Name: "ops"}, Ability: levelrail.AbilityWriteSensitive, IdempotencyKey: "try-1"}

func ptr[T any](v T) *T { return &v }

func secret(path string, version int) levelrail.Secret {
	return levelrail.Secret{Path: path, Namespace: "models", KeyID: "mk_1", Wrapped: []byte("wrapped-" + path), Sealed: []byte("sealed-" + path), Version: version}
}

func hash(of string) string { return levelrail.HashSecret(of) }

// Samples lists the commands for a cluster.
func Samples(clusterID string) []command.Command {
	team := levelrail.Owner{Organisation: "acme", Project: "search"}
	card := "GPU-3f1c0000-0000-0000-0000-000000000001"
	slice := "MIG-3f1c0000-0000-0000-0000-00000000000a"
	return []command.Command{
		command.ClusterInit{Cluster: levelrail.Cluster{ID: clusterID}},

		// A device has a kind, a parent and a class, and figures that may be absent; labels are kept per source.
		command.NodePut{Node: levelrail.Node{
			ID: "node_a", Name: "gpu-01", Local: true, PublicKey: "ed25519:AAAA", Version: "0.1.0", OS: "debian 13",
			Labels: map[string]levelrail.Labels{"agent": {"driver": "570.1"}, "operator": {"rack": "r7"}, "cloud": {"zone": "eu-1a"}},
			Devices: []levelrail.Device{
				{UUID: card, Index: 0, Kind: "card", Class: "NVIDIA H200", MemoryBytes: ptr(int64(150_754_820_096))},
				{UUID: slice, Index: 0, Kind: "mig", Parent: card, Class: "NVIDIA H200 MIG 1g.18gb", MemoryBytes: nil},
			},
		}},
		command.NodePut{Node: levelrail.Node{ID: "node_b", Name: "gpu-02", OS: "debian 12", Version: "0.1.0", Devices: []levelrail.Device{}}},

		// A model has numbered revisions; its targets are replicas, external endpoints and peers, with weights and
		// fallbacks; served names may hold a slash; a secret is referred to by its path.
		command.ModelDeploy{
			Model: levelrail.Model{
				Name: "chat", Revision: 1, Domain: "chat.example.com", NodeID: "node_a",
				Routes: []levelrail.Target{
					{Kind: "replica", Replica: "chat", Weight: 80},
					{Kind: "external", URL: "https://api.example.com/v1", Weight: 20, Key: levelrail.SecretRef{Path: "models/chat/external-key"}},
					{Kind: "peer", Peer: "cluster-eu", Weight: 0},
				},
				Fallback: []string{"external", "peer"},
				HubToken: levelrail.SecretRef{Path: "models/chat/hub-token"}, Residency: levelrail.ResidencyOnDemand, IdleTTL: levelrail.Duration(20 * time.Minute),
				Labels: map[string]string{"team": "search"}, Owner: team,
			},
			Revision: levelrail.Revision{Model: "chat", Number: 1, Spec: levelrail.ModelSpec{
				Engine: "llamacpp", Source: "org/chat-GGUF:Q4_K_M", SourceCommit: "0123abcd", GPUs: levelrail.GPURequest{Mode: levelrail.GPUDevices, Devices: []string{slice}},
				Context: 8192, Replicas: 1, Options: levelrail.Options{"parallel": "4"}, ServedNames: []string{"acme/chat", "gpt-4o"},
			}},
			Key: &levelrail.Key{ID: "key_1", Name: "default", Models: []string{"chat"}, SHA256: hash("lr-1"), Prefix: "lr-00001", Owner: team, Tags: []string{"billing:search"},
				AllowPaths: []string{"/v1/chat/completions"}, AllowNames: []string{"acme/chat"}, Limits: levelrail.KeyLimits{RPM: 60, TPM: 1000, TPD: 10000, MaxParallel: 4}},
			Job:     &levelrail.Job{ID: "job_1", Action: "deploy", Model: "chat", Revision: 1, Owner: team},
			Secrets: []levelrail.Secret{secret("models/chat/hub-token", 1), secret("models/chat/external-key", 1)},
		},
		command.ModelUpdate{
			Model: levelrail.Model{Name: "chat", Domain: "chat.example.com", Residency: levelrail.ResidencyOnDemand, HubToken: levelrail.SecretRef{Path: "models/chat/hub-token"}}, IfRevision: 1,
			Revision: &levelrail.Revision{Model: "chat", Number: 2, Spec: levelrail.ModelSpec{Engine: "llamacpp", Source: "org/chat-GGUF:Q8_0", GPUs: levelrail.GPURequest{Mode: levelrail.GPUCount, Count: 2}, Replicas: 2}},
			Job:      &levelrail.Job{ID: "job_2", Action: "update", Model: "chat", Revision: 2},
			Secrets:  []levelrail.Secret{secret("models/chat/hub-token", 2)},
		},
		command.ModelRestart{Name: "chat", Job: &levelrail.Job{ID: "job_3", Action: "restart", Model: "chat"}},

		// A replica names the revision that it runs and is a list of shards, each with a reservation.
		command.ReplicaPlace{
			Replica: levelrail.Replica{ID: "chat", Model: "chat", Revision: 2, Restarts: 1, Run: true, EngineKey: levelrail.SecretRef{Path: "replicas/chat/engine-key"}, Owner: team,
				Shards: []levelrail.Shard{
					{NodeID: "node_a", ReservationID: "res_1", Devices: []string{slice}, Compute: "CUDA0"},
					{NodeID: "node_b", ReservationID: "res_2", Compute: "cpu"},
				}},
			Reservations: []levelrail.Reservation{
				{ID: "res_1", For: "model:chat", Want: levelrail.GPURequest{Mode: levelrail.GPUDevices, Devices: []string{slice}}, NodeID: "node_a", Devices: []string{slice}, Bytes: ptr(int64(18 << 30)), Owner: team},
				{ID: "res_2", For: "model:chat", Want: levelrail.GPURequest{Mode: levelrail.GPUNone}, NodeID: "node_b", Devices: []string{}, Owner: team},
			},
			EngineKey: ptr(secret("replicas/chat/engine-key", 1)),
		},
		command.ReplicaPut{Replica: levelrail.Replica{ID: "chat", Model: "chat", Revision: 1, Restarts: 1, Run: false, EngineKey: levelrail.SecretRef{Path: "replicas/chat/engine-key"}, Owner: team,
			Shards: []levelrail.Shard{{NodeID: "node_a", ReservationID: "res_3", Devices: []string{slice}}}},
			Reservations: []levelrail.Reservation{{ID: "res_3", For: "model:chat", Want: levelrail.GPURequest{Mode: levelrail.GPUAll}, NodeID: "node_a", Devices: []string{slice}, Owner: team}}},

		// A reservation's owner may be of any kind.
		command.ReservationPut{Reservation: levelrail.Reservation{ID: "res_app", For: "app:web", Want: levelrail.GPURequest{Mode: levelrail.GPUCount, Count: 1}, NodeID: "node_a", Devices: []string{card}, Bytes: ptr(int64(8 << 30)), Owner: team}},

		// A key stands by itself, with an owner and scopes; a rotation leaves the old one open for a while.
		command.KeyCreate{Key: levelrail.Key{ID: "key_2", Name: "batch", Models: []string{"chat"}, SHA256: hash("lr-2"), Prefix: "lr-00002", ExpiresAt: ptr(At.Add(90 * 24 * time.Hour)), Owner: team}},
		command.KeyRotate{Key: levelrail.Key{ID: "key_3", Name: "batch", Models: []string{"chat"}, SHA256: hash("lr-3"), Prefix: "lr-00003", Replaces: "key_2", Owner: team}, RetireAt: ptr(At.Add(time.Hour))},
		command.KeyRevoke{ID: "key_1"},
		command.TokenCreate{Token: levelrail.Token{ID: "tok_1", Name: "ci", Abilities: []levelrail.Ability{levelrail.AbilityRead, levelrail.AbilityWrite}, SHA256: hash("lrt-1"), Prefix: "lrt-0001", Policies: []string{"readers"}, Owner: team}},
		command.TokenRevoke{ID: "tok_1"},

		command.SecretPut{Secret: secret("apps/web/password", 1)},
		command.SecretRemove{Path: "apps/web/password"},

		// Weights are objects of their own: files with checksums and roles, where they lie, last use.
		command.WeightsPut{Weights: levelrail.Weights{ID: "org/chat-GGUF:Q4_K_M@0123abcd", Source: "org/chat-GGUF:Q4_K_M", Commit: "0123abcd",
			Files: []levelrail.WeightsFile{
				{Path: "chat.Q4_K_M.gguf", SHA256: hash("model"), Bytes: 4 << 30, Role: levelrail.RoleModel},
				{Path: "mmproj.gguf", SHA256: hash("projector"), Bytes: 600 << 20, Role: levelrail.RoleProjector},
			},
			Nodes: []levelrail.WeightsNode{{NodeID: "node_a", Model: "chat"}}, LastUsed: At, Owner: team}},

		command.SettingsPut{Document: levelrail.SettingsDocument{Name: "cluster", Version: 1, Values: map[string]string{"APP_MODEL_IDLE_TTL": "20m", "APP_HF_BASE_URL": "https://hub.example.com"}}},
		command.ResidencyPut{Residency: levelrail.Residency{Model: "chat", State: "asleep"}},
		command.JobFinish{ID: "job_1", State: levelrail.JobFailed, Reason: levelrail.InsufficientDisk, Message: "the weights need 4.0 GiB and 1.2 GiB are free"},

		// Usage rows carry owner and tags as of the request.
		command.UsageRecord{GatewayID: "gw_1", Sequence: 1, Rows: []levelrail.Usage{
			{Hour: At, KeyID: "key_1", Model: "chat", Counts: levelrail.Counts{Requests: 10, OK: 8, ClientErrors: 1, ServerErrors: 1, Limited: 1, Aborted: 1, WithUsage: 8, InputTokens: 800, OutputTokens: 400,
				ResponseBytes: 9000, DurationMS: 12000, FirstByteMS: 900},
				Owner: team, Tags: []string{"billing:search"}},
			{Hour: At, KeyID: "key_3", Model: "chat", Counts: levelrail.Counts{Requests: 1, OK: 1}, Owner: team},
		}},
		// A batch also says when keys were used, and what the gateway had no room for.
		command.UsageRecord{GatewayID: "gw_1", Sequence: 2, Rows: []levelrail.Usage{}, LastUsed: map[string]time.Time{"key_3": At.Add(-time.Minute), "key_none": At}, Dropped: 3},
		command.CertificatePut{Certificate: levelrail.Certificate{Serial: "01ab", Subject: "levelrail://" + clusterID + "/node/node_a", NotAfter: At.Add(365 * 24 * time.Hour), PEM: "-----BEGIN CERTIFICATE-----\n"}},
		command.PolicyPut{Policy: levelrail.Policy{Name: "readers", Principals: []string{"token:tok_1"}, Resources: []string{"model:chat", "model:*"}, Abilities: []levelrail.Ability{levelrail.AbilityRead}, Owner: team}},
	}
}

// Removals lists the commands that take the samples away again, after Samples.
func Removals() []command.Command {
	return []command.Command{
		command.PolicyRemove{Name: "readers"},
		command.UsagePrune{Before: At.Add(time.Hour)},
		command.ModelDelete{Name: "chat", Job: &levelrail.Job{ID: "job_4", Action: "delete", Model: "chat"}},
		command.ReplicaRemove{ID: "chat"},
		command.ModelRemove{Name: "chat"},
		command.ReservationRemove{ID: "res_app"},
		command.WeightsRemove{ID: "org/chat-GGUF:Q4_K_M@0123abcd"},
		command.NodeRemove{ID: "node_b"},
	}
}
