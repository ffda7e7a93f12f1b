// Package view says how things look on the wire: models, nodes, keys and tokens for people, assignments for agents, routes
// and keys for gateways. Everything here follows from what is stored and what nodes last reported.
//
// It is pure but for opening sealed engine keys and hub tokens through the function that it is given. It promises that no
// secret is in an answer for people: only an assignment and a route carry an engine's key, and they go to agents and
// gateways alone. Board keeps the finished views and tells what has changed; sending them is httpapi's.
package view

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
	"github.com/levelrail/levelrail/controlplane/ledger"
	"github.com/levelrail/levelrail/controlplane/reconcile"
	"github.com/levelrail/levelrail/engine"
)

// DefaultGateway is where the gateway of this machine serves when none has said so.
const DefaultGateway = "http://127.0.0.1:7421/v1"

// EngineSockets is the directory of the engines' sockets on every node.
const EngineSockets = "/run/levelrail/engines"

// World is what views are made of.
type World struct {
	Desired    *reconcile.Desired
	Observed   ledger.Snapshot
	Term       uint64
	Limits     wire.Limits
	HubBaseURL string
	PublicHost string // APP_PUBLIC_HOST
	// Open returns the text of a sealed secret. An engine whose key cannot be opened gets an empty one and cannot be
	// reached, which its model's status says.
	Open func(levelrail.Secret) (string, error)
}

// Model is a model as people see it.
func (w World) Model(m levelrail.Model) wire.Model {
	spec := w.Desired.Spec(m.Name, m.Revision)
	v := wire.Model{
		Name: m.Name, Engine: spec.Engine, Model: spec.Source, Revision: m.Revision, Spec: spec,
		ServedNames: levelrail.ServedNames(m.Name, spec), Domain: m.Domain, URL: w.URL(m), NodeID: m.NodeID,
		Residency: m.Residency, IdleTTLSeconds: int64(time.Duration(m.IdleTTL) / time.Second), HubTokenSet: m.HubToken.Path != "",
		Condition: w.Condition(m), Limits: &w.Limits, Owner: m.Owner, CreatedAt: m.Stamp.CreatedAt, CreatedBy: by(m.Stamp.CreatedBy), UpdatedAt: m.Stamp.UpdatedAt,
	}
	for _, r := range w.Desired.ReplicasOf(m.Name) {
		if len(r.Shards) > 0 && r.Number == 0 {
			v.NodeID, v.Devices = r.Shards[0].NodeID, r.Shards[0].Devices
		}
		if st, _, _ := reconcile.Observe(w.Observed, r); st != nil {
			v.Replicas = append(v.Replicas, *st)
			if r.Number == 0 {
				v.Compute = st.Compute
			}
		}
	}
	v.NodeName = w.Desired.Nodes[v.NodeID].Name
	return v
}

// Condition is a model's Ready condition, with what only this server can tell: a hub token or an engine's key that its
// master key does not open.
func (w World) Condition(m levelrail.Model) levelrail.Condition {
	c := reconcile.Status(w.Desired, w.Observed, m)
	c.Since = c.Since.UTC()
	if m.Deleting {
		return c
	}
	for _, r := range w.Desired.ReplicasOf(m.Name) {
		if _, err := w.open(r.EngineKey); err != nil {
			return levelrail.Condition{Reason: levelrail.EndpointUnreachable, Message: "the key of its engine cannot be opened: " + err.Error(),
				Next: "start the server with the master key that sealed it, or delete the model and deploy it again", Since: r.Stamp.UpdatedAt}
		}
	}
	if m.HubToken.Path != "" && !c.Ready {
		if _, err := w.open(m.HubToken); err != nil {
			return levelrail.Condition{Reason: levelrail.HFTokenUnavailable, Message: "its Hugging Face token cannot be opened: " + err.Error(),
				Next: "levelrail models set-hf-token " + m.Name, Since: m.Stamp.UpdatedAt}
		}
	}
	return c
}

func (w World) open(ref levelrail.SecretRef) (string, error) {
	if ref.Path == "" {
		return "", nil
	}
	secret, there := w.Desired.Secrets[ref.Path]
	if !there {
		return "", levelrail.Errorf(levelrail.ErrNotFound, "there is no secret at %s", ref.Path)
	}
	return w.Open(secret)
}

// URL is the base address of a model, /v1 included: its own host name where it has one that a gateway serves, else the
// shared address of a connected gateway.
func (w World) URL(m levelrail.Model) string {
	if m.Domain != "" {
		return "https://" + m.Domain + "/v1"
	}
	url := DefaultGateway
	for _, g := range w.Observed.Gateways {
		if g.Public && w.Host(m) != "" {
			return "https://" + w.Host(m) + "/v1"
		}
		if g.URL != "" {
			url = g.URL
		}
	}
	return url
}

// Host is a model's host name: its domain, else the name that needs no configuration, NAME.1-2-3-4.sslip.io, where
// APP_PUBLIC_HOST is a public IP; else none.
func (w World) Host(m levelrail.Model) string {
	if m.Domain != "" {
		return m.Domain
	}
	ip, err := netip.ParseAddr(w.PublicHost)
	if err != nil || !ip.IsGlobalUnicast() || ip.IsPrivate() {
		return ""
	}
	label := strings.ReplaceAll(ip.Unmap().WithZone("").StringExpanded(), ":", "-")
	if ip.Unmap().Is4() {
		label = strings.ReplaceAll(ip.Unmap().String(), ".", "-")
	}
	return m.Name + "." + label + ".sslip.io"
}

// Node is a node as people see it.
func (w World) Node(n levelrail.Node) wire.Node {
	v := wire.Node{Node: n}
	if v.Node.Devices == nil {
		v.Node.Devices = []levelrail.Device{}
	}
	if r, heard := w.Observed.Nodes[n.ID]; heard {
		at := r.ReceivedAt
		v.Online, v.LastReport, v.GPUNote = r.Online, &at, r.GPUNote
		v.Readings, v.Disk, v.Engines = r.Readings, r.Disk, r.Engines
	}
	for _, r := range w.Desired.Replicas {
		if len(r.Shards) > 0 && r.Shards[0].NodeID == n.ID && !slices.Contains(v.Models, r.Model) {
			v.Models = append(v.Models, r.Model)
		}
	}
	return v
}

// Key is a key as people see it, with when it was last used (nil: not known).
func Key(k levelrail.Key, lastUsed *time.Time) wire.Key {
	return wire.Key{ID: k.ID, Name: k.Name, Models: k.Models, Prefix: k.Prefix, AllowPaths: k.AllowPaths, AllowModels: k.AllowNames, Limits: k.Limits,
		ExpiresAt: k.ExpiresAt, RevokedAt: k.RevokedAt, LastUsedAt: lastUsed, Replaces: k.Replaces, CreatedAt: k.Stamp.CreatedAt, CreatedBy: by(k.Stamp.CreatedBy)}
}

// Token is a token as people see it.
func Token(t levelrail.Token) wire.Token {
	return wire.Token{ID: t.ID, Name: t.Name, Abilities: t.Abilities, Prefix: t.Prefix, ExpiresAt: t.ExpiresAt, RevokedAt: t.RevokedAt,
		CreatedAt: t.Stamp.CreatedAt, CreatedBy: by(t.Stamp.CreatedBy)}
}

func by(p levelrail.Principal) string {
	if p.Name != "" {
		return p.Name + " (" + p.String() + ")"
	}
	return p.String()
}

// Assignment is what a replica's node is told.
func (w World) Assignment(r levelrail.Replica, m levelrail.Model) wire.Assignment {
	spec := w.Desired.Spec(r.Model, r.Revision)
	key, _ := w.open(r.EngineKey) // the condition says why, where it does not open
	return wire.Assignment{
		Replica: r.ID, Model: r.Model, Number: r.Number, Revision: r.Revision, Restarts: r.Restarts, Run: r.Run, Spec: spec,
		ServedNames: levelrail.ServedNames(r.Model, spec), Devices: r.Shards[0].Devices, EngineKey: key,
		HubTokenSet: m.HubToken.Path != "", HubBaseURL: w.HubBaseURL, Term: w.Term, Index: w.Desired.Index,
	}
}

// Route is what gateways are told of a model.
func (w World) Route(m levelrail.Model) wire.Route {
	spec := w.Desired.Spec(m.Name, m.Revision)
	c := w.Condition(m)
	v := wire.Route{Model: m.Name, Engine: spec.Engine, Names: levelrail.ServedNames(m.Name, spec), Domain: w.Host(m), Targets: []wire.RouteTarget{},
		Fallback: m.Fallback, Asleep: c.Reason == levelrail.Idle, Reason: string(c.Reason), Message: c.Message, Limits: w.Limits, Context: int64(spec.Context), CreatedAt: m.Stamp.CreatedAt, Owner: m.Owner}
	for _, r := range w.Desired.ReplicasOf(m.Name) {
		key, err := w.open(r.EngineKey)
		if err != nil {
			continue
		}
		serving := reconcile.Serving(w.Observed, r)
		v.Serving = v.Serving || serving
		v.Targets = append(v.Targets, wire.RouteTarget{Kind: "replica", ID: r.ID, Network: "unix", Address: EngineSockets + "/" + r.ID + "/engine.sock",
			Weight: 1, Key: key, Serving: serving})
	}
	running := spec
	// What an engine serves is what it was started as: until the next revision is handed over, that one's names and context.
	for _, r := range w.Desired.ReplicasOf(m.Name) {
		if old := w.Desired.Spec(m.Name, r.Revision); r.Number == 0 && r.Revision != m.Revision && old.Engine != "" {
			running = old
			v.Engine, v.Names, v.Context = running.Engine, levelrail.ServedNames(m.Name, running), int64(running.Context)
		}
	}
	if e, err := engine.Get(running.Engine); err == nil {
		v.Parallel = int64(e.Slots(running))
	}
	return v
}

// RouteKey is what gateways are told of a key.
func RouteKey(k levelrail.Key) wire.RouteKey {
	return wire.RouteKey{ID: k.ID, Name: k.Name, SHA256: k.SHA256, Prefix: k.Prefix, Models: k.Models, AllowPaths: k.AllowPaths, AllowModels: k.AllowNames,
		Limits: k.Limits, ExpiresAt: k.ExpiresAt, Owner: k.Owner, Tags: k.Tags}
}
