package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
	"github.com/levelrail/levelrail/controlplane/reconcile"
	"github.com/levelrail/levelrail/engine"
	"github.com/levelrail/levelrail/raftstore/command"
)

type deploying struct {
	Once
	Body wire.Deploy
}

// deployModel makes a model, or says that it stands already, or how it differs. Everything that can be told without the
// node is checked before anything is written.
func (s *Server) deployModel(ctx context.Context, in *deploying) (*statusBody[wire.Deployed], error) {
	w := in.Body
	if in.IdempotencyKey == "" {
		in.IdempotencyKey = strings.TrimSpace(w.IdempotencyKey)
	}
	w.IdempotencyKey = ""
	d, err := s.read()
	if err != nil {
		return nil, err
	}
	if err := levelrail.CheckModelName(w.Name); err != nil {
		return nil, err
	}
	m := levelrail.Model{Name: w.Name, Revision: 1, Residency: levelrail.ResidencyAlways, Owner: levelrail.DefaultOwner}
	spec, err := checkSpec(levelrail.ModelSpec{Engine: w.Engine, Source: w.Model, SourceCommit: w.SourceCommit, SHA256: w.SHA256, GPUs: w.GPUs, Context: w.Context,
		Quantization: w.Quantization, Replicas: 1, Options: w.Options, ServedNames: w.ServedNames})
	if err != nil {
		return nil, err
	}
	if m.Domain, err = checkDomain(w.Domain); err != nil {
		return nil, err
	}
	if err := checkResidency(w.Residency, w.IdleTTLSeconds); err != nil {
		return nil, err
	}
	token, err := cleanToken(w.HubToken)
	if err != nil {
		return nil, err
	}
	if w.Node != "" {
		n, ok := d.FindNode(w.Node)
		if !ok {
			return nil, levelrail.Errorf(levelrail.ErrInvalid, "there is no node %q, or several have that name", clip(w.Node)).WithNext("choose one of levelrail nodes list, by its id")
		}
		m.NodeID = n.ID
	}

	by := s.by(ctx, in.IdempotencyKey, "deploy", requestText(w))
	mint := s.mint(by)
	keyID := mint.ID("key")
	if old, there := d.Model(m.Name); there && !old.Deleting {
		if replay, err := s.isReplay(by, keyID); err != nil {
			return nil, err
		} else if !replay {
			return s.deployedAlready(d, old, m, spec, token)
		}
	}

	text := mint.Secret("lr")
	key := levelrail.Key{ID: keyID, Name: "default", Models: []string{m.Name}, SHA256: levelrail.HashSecret(text), Prefix: levelrail.SecretPrefix(text), Owner: levelrail.DefaultOwner}
	cmd := command.ModelDeploy{Model: m, Key: &key, Job: s.job(mint.ID, "deploy", m.Name, 1),
		Revision: levelrail.Revision{Model: m.Name, Number: 1, Spec: spec}}
	if token != "" {
		path := hubTokenPath(m.Name)
		secret, err := s.o.Sealer.Seal("models/"+m.Name, path, d.Secrets[path], []byte(token))
		if err != nil {
			return nil, s.internal("seal the token", err)
		}
		cmd.Model.HubToken, cmd.Secrets = levelrail.SecretRef{Path: path}, []levelrail.Secret{secret}
	}
	notes := s.notes(d, m)
	d, _, err = s.propose(ctx, by, cmd)
	if err != nil {
		return nil, err
	}
	out := &statusBody[wire.Deployed]{Status: http.StatusCreated, Body: wire.Deployed{JobID: cmd.Job.ID, Notes: notes}}
	if out.Body.Model, err = s.model(d, m.Name); err != nil {
		return nil, err
	}
	if out.Body.Key, err = s.newKey(keyID, text); err != nil {
		return nil, err
	}
	return out, nil
}

// deployedAlready answers a deploy under a name that is taken.
func (s *Server) deployedAlready(d *reconcile.Desired, old, want levelrail.Model, spec levelrail.ModelSpec, token string) (*statusBody[wire.Deployed], error) {
	diff := differences(d.Spec(old.Name, old.Revision), spec)
	if old.Domain != want.Domain {
		diff = append(diff, difference{"domain", orNone(old.Domain), orNone(want.Domain), "--domain " + shell(want.Domain)})
	}
	if token != "" && !s.sameToken(d, old, token) {
		diff = append(diff, difference{"hf_token", map[bool]string{true: "set", false: "none"}[old.HubToken.Path != ""], "another", ""})
	}
	moved := old.NodeID != want.NodeID
	if moved {
		diff = append(diff, difference{"node", nodeName(d, old.NodeID), nodeName(d, want.NodeID), ""})
	}
	if len(diff) == 0 {
		m, err := s.model(d, old.Name)
		return &statusBody[wire.Deployed]{Status: http.StatusOK, Body: wire.Deployed{Model: m, Unchanged: true}}, err
	}
	var texts, flags []string
	for _, f := range diff {
		texts = append(texts, fmt.Sprintf("%s: %s → %s", f.field, f.have, f.want))
		if f.flag != "" {
			flags = append(flags, f.flag)
		}
	}
	e := levelrail.Errorf(levelrail.ErrConflict, "%s is deployed already, with another spec: %s", old.Name, strings.Join(texts, "; "))
	switch {
	case len(flags) > 0:
		return nil, e.WithNext("levelrail models update %s %s", old.Name, strings.Join(flags, " "))
	case moved:
		return nil, e.WithNext("levelrail models delete %s, and deploy it again on the other node", old.Name)
	}
	return nil, e.WithNext("levelrail models set-hf-token %s", old.Name)
}

func (s *Server) sameToken(d *reconcile.Desired, m levelrail.Model, token string) bool {
	secret, there := d.Secrets[m.HubToken.Path]
	if !there {
		return false
	}
	have, err := s.o.Sealer.Open(secret)
	return err == nil && string(have) == token
}

func nodeName(d *reconcile.Desired, id string) string {
	if id == "" {
		return "the control plane's own host"
	}
	if n, ok := d.Nodes[id]; ok {
		return n.Name
	}
	return id
}

// notes are what a deploy says once beside its answer.
func (s *Server) notes(d *reconcile.Desired, m levelrail.Model) []string {
	var out []string
	first := len(d.Models) == 0 && !slices.ContainsFunc(d.Jobs, func(j levelrail.Job) bool { return j.Action == "deploy" })
	if f := s.o.Facts(); first && f.MadeKeyFile != "" {
		out = append(out, "keep a copy of the master key "+f.MadeKeyFile+" in a safe place: without it a backup's secrets cannot be opened")
	}
	if m.Domain != "" {
		public := slices.ContainsFunc(s.o.World(d).Observed.Gateways, func(g gatewayOf) bool { return g.Public })
		if !public {
			out = append(out, "no gateway has a public site yet, so https://"+m.Domain+" is not served: run `levelrail-gateway public on` on the gateway's host")
		}
	}
	return out
}

type updating struct {
	Named
	Once
	Body wire.Update
}

// updateModel gives a model a new revision, or says that nothing would change.
func (s *Server) updateModel(ctx context.Context, in *updating) (*body[wire.Deployed], error) {
	d, err := s.read()
	if err != nil {
		return nil, err
	}
	old, ok := d.Model(in.Name)
	if !ok {
		return nil, notFoundModel(in.Name)
	}
	by := s.by(ctx, in.IdempotencyKey, "update", in.Name, requestText(in.Body))
	mint := s.mint(by)
	have := d.Spec(old.Name, old.Revision)
	spec, err := checkSpec(merge(have, in.Body))
	if err != nil {
		return nil, err
	}
	m := old
	if in.Body.Domain != nil {
		if m.Domain, err = checkDomain(*in.Body.Domain); err != nil {
			return nil, err
		}
	}
	diff := differences(have, spec)
	job := s.job(mint.ID, "update", m.Name, old.Revision)
	replay := by.IdempotencyKey != "" && slices.ContainsFunc(d.Jobs, func(j levelrail.Job) bool { return j.ID == job.ID })
	if len(diff) == 0 && m.Domain == old.Domain && !replay {
		v, err := s.model(d, m.Name)
		return &body[wire.Deployed]{wire.Deployed{Model: v, Unchanged: true}}, err
	}
	cmd := command.ModelUpdate{Model: m, IfRevision: old.Revision}
	if len(diff) > 0 {
		// A revision that an update was rolled back from keeps its number, so the next one follows the highest.
		next := old.Revision + 1
		for _, r := range d.Revisions {
			if r.Model == m.Name {
				next = max(next, r.Number+1)
			}
		}
		cmd.Revision = &levelrail.Revision{Model: m.Name, Number: next, Spec: spec}
		job.Revision = next
		cmd.Job = job
	}
	d, _, err = s.propose(ctx, by, cmd)
	if err != nil {
		return nil, err
	}
	out := &body[wire.Deployed]{}
	if cmd.Job != nil {
		out.Body.JobID = job.ID
	}
	if m.Domain != old.Domain {
		out.Body.Notes = s.notes(d, m)
	}
	out.Body.Model, err = s.model(d, m.Name)
	return out, err
}

// merge lays an update over a spec.
func merge(spec levelrail.ModelSpec, u wire.Update) levelrail.ModelSpec {
	set(&spec.Engine, u.Engine)
	set(&spec.Source, u.Model)
	set(&spec.SourceCommit, u.SourceCommit)
	set(&spec.SHA256, u.SHA256)
	set(&spec.GPUs, u.GPUs)
	set(&spec.Context, u.Context)
	set(&spec.Quantization, u.Quantization)
	set(&spec.Options, u.Options)
	set(&spec.ServedNames, u.ServedNames)
	return spec
}

func set[T any](into *T, from *T) {
	if from != nil {
		*into = *from
	}
}

var (
	hexDigest  = regexp.MustCompile(`^[0-9a-f]{64}$`)
	commitName = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z._/-]{0,127}$`)
	hostLabel  = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
)

const maxServedNames = 16

// checkSpec brings a spec into its one form and refuses what no node could run.
func checkSpec(spec levelrail.ModelSpec) (levelrail.ModelSpec, error) {
	spec.Engine, spec.Source, spec.Quantization = strings.TrimSpace(spec.Engine), strings.TrimSpace(spec.Source), strings.TrimSpace(spec.Quantization)
	spec.SourceCommit, spec.SHA256 = strings.TrimSpace(spec.SourceCommit), strings.ToLower(strings.TrimSpace(spec.SHA256))
	e, err := engine.Get(spec.Engine)
	if err != nil {
		return spec, err
	}
	for _, f := range []struct{ what, text string }{{"model", spec.Source}, {"quantization", spec.Quantization}} {
		if err := printable(f.what, f.text, 512); err != nil {
			return spec, err
		}
	}
	switch {
	case spec.Source == "":
		return spec, levelrail.Errorf(levelrail.ErrInvalid, "no model is named").WithNext("name it with --model: a repository org/name, an Ollama tag, or a path on the node")
	case spec.SHA256 != "" && !hexDigest.MatchString(spec.SHA256):
		return spec, levelrail.Errorf(levelrail.ErrInvalid, "the checksum is not the 64 hex digits of a SHA-256").WithNext("sha256sum FILE prints it")
	case spec.SourceCommit != "" && !commitName.MatchString(spec.SourceCommit):
		return spec, levelrail.Errorf(levelrail.ErrInvalid, "the commit %q is not usable", clip(spec.SourceCommit)).WithNext("use the commit's hash, or the name of a branch or tag")
	case spec.Context < 0:
		return spec, levelrail.Errorf(levelrail.ErrInvalid, "the context is a count of tokens, not %d", spec.Context).WithNext("leave it out for the default")
	case len(spec.ServedNames) > maxServedNames:
		return spec, levelrail.Errorf(levelrail.ErrInvalid, "%d served names are given, and %d are the most", len(spec.ServedNames), maxServedNames)
	}
	spec.ServedNames = slices.Clone(spec.ServedNames) // an update's are those of the state, which is shared
	for i, n := range spec.ServedNames {
		spec.ServedNames[i] = strings.TrimSpace(n)
		if spec.ServedNames[i] == "" {
			return spec, levelrail.Errorf(levelrail.ErrInvalid, "a served name is empty").WithNext("leave it out")
		}
		if err := printable("served name", n, 128); err != nil {
			return spec, err
		}
	}
	if len(spec.ServedNames) == 0 {
		spec.ServedNames = nil
	}
	for k, v := range spec.Options {
		if err := printable("option", k+"="+v, 1024); err != nil {
			return spec, err
		}
	}
	if len(spec.Options) == 0 {
		spec.Options = nil
	}
	if spec.GPUs, err = checkGPUs(spec.GPUs); err != nil {
		return spec, err
	}
	return spec, e.Check(spec)
}

// checkGPUs refuses a request for GPUs whose parts do not fit together.
func checkGPUs(g levelrail.GPURequest) (levelrail.GPURequest, error) {
	next := `one of {}, {"mode":"all"}, {"mode":"none"}, {"mode":"count","count":2}, {"mode":"devices","devices":["0","GPU-…"]}`
	bad := func(format string, args ...any) (levelrail.GPURequest, error) {
		return g, levelrail.Errorf(levelrail.ErrInvalid, format, args...).WithNext("%s", next)
	}
	switch g.Mode {
	case levelrail.GPUUnset, levelrail.GPUAll, levelrail.GPUNone:
		if g.Count != 0 || len(g.Devices) != 0 {
			return bad("the request for GPUs has a count or devices, but the mode %q", g.Mode)
		}
		return levelrail.GPURequest{Mode: g.Mode}, nil
	case levelrail.GPUCount:
		if g.Count < 1 || g.Count > 1024 || len(g.Devices) != 0 {
			return bad("a request for a count of GPUs needs a count of 1 or more, and no devices")
		}
		return levelrail.GPURequest{Mode: g.Mode, Count: g.Count}, nil
	case levelrail.GPUDevices:
		if len(g.Devices) == 0 || len(g.Devices) > 1024 || g.Count != 0 {
			return bad("a request for named GPUs needs devices, and no count")
		}
		var ids []string
		for _, id := range g.Devices {
			id = strings.TrimSpace(id)
			if id == "" || len(id) > 80 || strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r > '~' }) {
				return bad("a device is an index or a UUID, not %q", clip(id))
			}
			if !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
		return levelrail.GPURequest{Mode: g.Mode, Devices: ids}, nil
	}
	return bad("there is no mode %q of asking for GPUs", clip(string(g.Mode)))
}

func checkDomain(text string) (string, error) {
	domain := strings.TrimSuffix(strings.ToLower(strings.TrimSpace(text)), ".")
	if domain == "" {
		return "", nil
	}
	labels := strings.Split(domain, ".")
	ok := len(domain) <= 253 && len(labels) >= 2
	for _, l := range labels {
		ok = ok && hostLabel.MatchString(l)
	}
	if !ok || strings.Trim(labels[len(labels)-1], "0123456789") == "" {
		return "", levelrail.Errorf(levelrail.ErrInvalid, "%q is not a host name", clip(text)).WithNext("write it like llm.example.com, without https:// and without a path")
	}
	return domain, nil
}

func checkResidency(mode string, idle int64) error {
	if (mode == "" || mode == string(levelrail.ResidencyAlways)) && idle == 0 {
		return nil
	}
	return levelrail.Errorf(levelrail.ErrInvalid, "this release keeps every model loaded: residency on_demand and an idle time are not part of it").
		WithNext("leave residency and idle_ttl_seconds out")
}

// cleanToken trims a token and refuses one that could not go into a header. The token is in no message.
func cleanToken(text string) (string, error) {
	token := strings.TrimSpace(text)
	if len(token) > 4096 {
		return "", levelrail.Errorf(levelrail.ErrInvalid, "the Hugging Face token is longer than 4096 characters").WithNext("copy it again from https://huggingface.co/settings/tokens")
	}
	if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", levelrail.Errorf(levelrail.ErrInvalid, "the Hugging Face token holds a space, a control character or something that is not ASCII").
			WithNext("copy it again from https://huggingface.co/settings/tokens")
	}
	return token, nil
}

func printable(what, text string, longest int) error {
	if len(text) > longest {
		return levelrail.Errorf(levelrail.ErrInvalid, "the %s is longer than %d characters", what, longest)
	}
	if strings.ContainsFunc(text, func(r rune) bool { return unicode.IsControl(r) || r == unicode.ReplacementChar }) {
		return levelrail.Errorf(levelrail.ErrInvalid, "the %s holds a control character", what)
	}
	return nil
}

func seconds(n int64) time.Duration { return time.Duration(n) * time.Second }
