package httpapi

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
	"github.com/levelrail/levelrail/controlplane/reconcile"
	"github.com/levelrail/levelrail/raftstore/command"
)

func typeOf[T any]() reflect.Type { return reflect.TypeFor[T]() }

func statusText(status int) string { return strconv.Itoa(status) }

func (s *Server) read() (*reconcile.Desired, error) {
	d, err := s.o.Reader.Read()
	if err != nil {
		return nil, s.internal("read its state", err)
	}
	return d, nil
}

// propose writes a command and returns the state that has it.
func (s *Server) propose(ctx context.Context, by command.By, cmd command.Command) (*reconcile.Desired, command.Result, error) {
	res, err := s.o.Store.Propose(ctx, by, cmd)
	if err != nil {
		return nil, res, s.internal("do it", err)
	}
	d, err := s.o.Reader.ReadAt(ctx, res.Index)
	if err != nil {
		return nil, res, s.internal("read its state", err)
	}
	return d, res, nil
}

func (s *Server) listModels(context.Context, *none) (*body[wire.List[wire.Model]], error) {
	d, err := s.read()
	if err != nil {
		return nil, err
	}
	w := s.o.World(d)
	out := &body[wire.List[wire.Model]]{}
	out.Body.Items = []wire.Model{}
	for _, m := range d.Models {
		out.Body.Items = append(out.Body.Items, w.Model(m))
	}
	return out, nil
}

func (s *Server) model(d *reconcile.Desired, name string) (wire.Model, error) {
	m, ok := d.Model(name)
	if !ok {
		return wire.Model{}, notFoundModel(name)
	}
	return s.o.World(d).Model(m), nil
}

func (s *Server) getModel(_ context.Context, in *Named) (*body[wire.Model], error) {
	d, err := s.read()
	if err != nil {
		return nil, err
	}
	m, err := s.model(d, in.Name)
	if at, used := s.o.Ledger.LastActive(in.Name); used {
		at = at.UTC().Truncate(time.Second)
		m.LastActiveAt = &at
	}
	return &body[wire.Model]{m}, err
}

// changing is a request that changes a model and has no body.
type changing struct {
	Named
	Once
}

// job is a new job of a model; its id follows from the idempotency key where there is one.
func (s *Server) job(id func(string) string, action, model string, revision int) *levelrail.Job {
	return &levelrail.Job{ID: id("job"), Action: action, Model: model, Revision: revision, Owner: levelrail.DefaultOwner}
}

func (s *Server) changed(d *reconcile.Desired, name string, job *levelrail.Job) (*body[wire.Changed], error) {
	m, err := s.model(d, name)
	if levelrail.KindOf(err) == levelrail.ErrNotFound {
		// Taken down between the command and the reading of it.
		m, err = wire.Model{Name: name, Condition: levelrail.Condition{Reason: levelrail.Stopping}}, nil
	}
	return &body[wire.Changed]{wire.Changed{Model: m, JobID: job.ID}}, err
}

func (s *Server) deleteModel(ctx context.Context, in *changing) (*body[wire.Changed], error) {
	by := s.by(ctx, in.IdempotencyKey, "delete", in.Name)
	job := s.job(s.mint(by).ID, "delete", in.Name, 0)
	d, _, err := s.propose(ctx, by, command.ModelDelete{Name: in.Name, Job: job})
	if err != nil {
		return nil, err
	}
	return s.changed(d, in.Name, job)
}

// rotateEngineKey gives each engine of a model a new key, which the gateway shows it. An engine takes its key at its start, so
// the command is a restart with new keys, in one step: no moment has a key that is known to one side only.
func (s *Server) rotateEngineKey(ctx context.Context, in *changing) (*body[wire.Changed], error) {
	d, err := s.read()
	if err != nil {
		return nil, err
	}
	m, ok := d.Model(in.Name)
	if !ok {
		return nil, notFoundModel(in.Name)
	}
	by := s.by(ctx, in.IdempotencyKey, "rotate-engine-key", in.Name)
	c := command.ModelRestart{Name: in.Name, Job: s.job(s.mint(by).ID, "restart", in.Name, m.Revision)}
	for _, r := range d.ReplicasOf(in.Name) {
		path := r.EngineKey.Path
		secret, err := s.o.Sealer.Seal("replicas/"+r.ID, path, d.Secrets[path], []byte(levelrail.NewSecret("lre")))
		if err != nil {
			return nil, s.internal("seal the engine's key", err)
		}
		c.EngineKeys = append(c.EngineKeys, secret)
	}
	d, _, err = s.propose(ctx, by, c)
	if err != nil {
		return nil, err
	}
	return s.changed(d, in.Name, c.Job)
}

func (s *Server) restartModel(ctx context.Context, in *changing) (*body[wire.Changed], error) {
	d, err := s.read()
	if err != nil {
		return nil, err
	}
	m, ok := d.Model(in.Name)
	if !ok {
		return nil, notFoundModel(in.Name)
	}
	by := s.by(ctx, in.IdempotencyKey, "restart", in.Name)
	job := s.job(s.mint(by).ID, "restart", in.Name, m.Revision)
	d, _, err = s.propose(ctx, by, command.ModelRestart{Name: in.Name, Job: job})
	if err != nil {
		return nil, err
	}
	return s.changed(d, in.Name, job)
}

// setToken is the body of a new hub token.
type setToken struct {
	Named
	Once
	Body wire.HubToken
}

func (s *Server) setHubToken(ctx context.Context, in *setToken) (*body[wire.Changed], error) {
	d, err := s.read()
	if err != nil {
		return nil, err
	}
	m, ok := d.Model(in.Name)
	if !ok {
		return nil, notFoundModel(in.Name)
	}
	token, err := cleanToken(in.Body.Token)
	if err != nil {
		return nil, err
	}
	update := command.ModelUpdate{Model: m, IfRevision: m.Revision}
	path := hubTokenPath(m.Name)
	if token == "" {
		update.Model.HubToken = levelrail.SecretRef{}
	} else {
		secret, err := s.o.Sealer.Seal("models/"+m.Name, path, d.Secrets[path], []byte(token))
		if err != nil {
			return nil, s.internal("seal the token", err)
		}
		update.Model.HubToken, update.Secrets = levelrail.SecretRef{Path: path}, []levelrail.Secret{secret}
	}
	by := s.by(ctx, in.IdempotencyKey, "hf-token", in.Name, token)
	second := by // the second command of one request has a key of its own, so that a repeat does neither twice
	if by.IdempotencyKey != "" {
		second.IdempotencyKey += " restart"
	}
	if _, _, err := s.propose(ctx, by, update); err != nil {
		return nil, err
	}
	if _, sealed := d.Secrets[path]; token == "" && sealed {
		// Nothing refers to it any more, so that it is there or not makes no difference but to who reads a backup.
		if _, _, err := s.propose(ctx, command.By{Principal: by.Principal, Ability: by.Ability}, command.SecretRemove{Path: path}); err != nil && levelrail.KindOf(err) != levelrail.ErrNotFound {
			return nil, err
		}
	}
	job := s.job(s.mint(second).ID, "restart", m.Name, m.Revision)
	d, _, err = s.propose(ctx, second, command.ModelRestart{Name: m.Name, Job: job})
	if err != nil {
		return nil, err
	}
	return s.changed(d, m.Name, job)
}

func hubTokenPath(model string) string { return "models/" + model + "/hub-token" }

// minter mints ids and key texts: at random, or following from the idempotency key, so that a repeat is answered as the
// first time.
type minter struct {
	ID     func(prefix string) string
	Secret func(prefix string) string
}

func (s *Server) mint(by command.By) minter {
	if by.IdempotencyKey == "" {
		return minter{levelrail.NewID, levelrail.NewSecret}
	}
	d := s.o.Sealer.Derive("mint", by.Principal.String(), by.IdempotencyKey, by.RequestHash)
	return minter{d.ID, d.Secret}
}

func (s *Server) listNodes(context.Context, *none) (*body[wire.List[wire.Node]], error) {
	d, err := s.read()
	if err != nil {
		return nil, err
	}
	w := s.o.World(d)
	out := &body[wire.List[wire.Node]]{}
	out.Body.Items = []wire.Node{}
	for _, n := range sortedNodes(d) {
		out.Body.Items = append(out.Body.Items, w.Node(n))
	}
	return out, nil
}

func (s *Server) getNode(_ context.Context, in *struct {
	ID string `path:"id" maxLength:"256" doc:"the node's id or name"`
}) (*body[wire.Node], error) {
	d, err := s.read()
	if err != nil {
		return nil, err
	}
	n, ok := d.FindNode(in.ID)
	if !ok {
		return nil, levelrail.Errorf(levelrail.ErrNotFound, "there is no node %q, or several have that name", clip(in.ID)).WithNext("levelrail nodes list, and use the id")
	}
	return &body[wire.Node]{s.o.World(d).Node(n)}, nil
}

func (s *Server) getStatus(context.Context, *none) (*body[wire.Status], error) {
	d, err := s.read()
	if err != nil {
		return nil, err
	}
	f, st, w := s.o.Facts(), s.o.Store.Status(), s.o.World(d)
	out := wire.Status{ClusterID: d.Cluster.ID, Version: levelrail.Version, Server: st.ServerID, Leader: st.LeaderID, Role: st.Role, Index: d.Index,
		StartedAt: f.StartedAt, TLS: f.TLSAddress, CAFile: f.CAFile, Warnings: f.Warnings}
	missing := map[string]bool{} // what a node's models wait for alike
	for _, m := range d.Models {
		out.Models.Total++
		c := w.Condition(m)
		if c.Ready {
			out.Models.Ready++
		}
		if c.Reason == levelrail.WeightsNotMounted && !missing[m.NodeID+c.Message] {
			missing[m.NodeID+c.Message] = true
			out.Warnings = append(out.Warnings, fmt.Sprintf("%s: %s. Next: %s", c.Reason, c.Message, c.Next))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(w.Observed.Nodes)) {
		for _, r := range w.Observed.Nodes[id].Replicas {
			if len(r.NotIsolated) > 0 {
				out.Warnings = append(out.Warnings, fmt.Sprintf("NOT ISOLATED: %s on %s, by %s: levelrail models get %s", clip(r.Replica), d.Nodes[id].Name, clip(strings.Join(r.NotIsolated, ", ")), clip(r.Model)))
			}
		}
	}
	for id, n := range d.Nodes {
		out.Nodes.Total++
		if w.Observed.Nodes[id].Online {
			out.Nodes.Ready++
		} else if w.Observed.Listened() {
			out.Warnings = append(out.Warnings, fmt.Sprintf("the node %s does not report: systemctl status levelrail-agent there", n.Name))
		}
	}
	if w := s.putBackWarning(); w != "" {
		out.Warnings = append(out.Warnings, w)
	}
	for _, peer := range s.foreignPeers() {
		out.Warnings = append(out.Warnings, fmt.Sprintf("%s, and this server to %s: %s", peer, d.Cluster.ID, foreignNext))
	}
	out.Gateways = wire.Counts{Total: len(w.Observed.Gateways), Ready: len(w.Observed.Gateways)}
	return &body[wire.Status]{out}, nil
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
