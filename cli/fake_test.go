package cli

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

// fake is a server with real state behind a Unix socket. It speaks the wire of the API, so what these tests run goes
// through package client as in life. Scripts change its state by `fake …` lines.
type fake struct {
	t      *testing.T
	socket string
	server *httptest.Server

	mu      sync.Mutex
	made    int // counts ids and secrets
	models  map[string]*wire.Model
	keys    map[string][]*wire.Key // by model
	usage   wire.UsageReport
	flying  []wire.InFlight
	limits  []wire.LimitState
	total   []wire.LimitTotal
	heard   []string // gateways that answer
	silent  []string // gateways that do not
	tokens  []*wire.Token
	nodes   []wire.Node
	weights []wire.StoredWeights
	logs    []wire.LogLine
	status  wire.Status
	steps   map[string][]string // what happens to a model while it is watched
	fail    map[string]*levelrail.Error
	notes   []string
	changed chan struct{} // closed and made anew at each change
	asked   []string      // method, path and body of each request, the newest last
}

var fakeNow = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func newFake(t *testing.T) *fake {
	f := &fake{
		t: t, socket: filepath.Join(t.TempDir(), "api.sock"), models: map[string]*wire.Model{}, keys: map[string][]*wire.Key{},
		heard: []string{}, flying: []wire.InFlight{}, limits: []wire.LimitState{}, steps: map[string][]string{}, fail: map[string]*levelrail.Error{}, changed: make(chan struct{}),
		status: wire.Status{ClusterID: "clu_1", Version: levelrail.Version, Server: "srv_1", Leader: "srv_1", Role: "leader", Index: 7,
			StartedAt: fakeNow.Add(-26 * time.Hour), Gateways: wire.Counts{Total: 1, Ready: 1}, TLS: "127.0.0.1:7420", CAFile: "/var/lib/levelrail/server/tls/ca.pem"},
	}
	mux := http.NewServeMux()
	for route, h := range map[string]func(*http.Request) (any, *levelrail.Error){
		"GET /api/v1/status":                           f.getStatus,
		"GET /api/v1/models":                           f.listModels,
		"POST /api/v1/models":                          f.deploy,
		"GET /api/v1/models/{name}":                    f.getModel,
		"PUT /api/v1/models/{name}":                    f.update,
		"DELETE /api/v1/models/{name}":                 f.deleteModel,
		"POST /api/v1/models/{name}/restart":           f.restart,
		"POST /api/v1/models/{name}/rotate-engine-key": f.restart,
		"PUT /api/v1/models/{name}/hf-token":           f.restart,
		"POST /api/v1/models/{name}/rotate-key":        f.rotateKey,
		"GET /api/v1/models/{name}/keys":               f.listKeys,
		"POST /api/v1/models/{name}/keys":              f.createKey,
		"DELETE /api/v1/models/{name}/keys/{key}":      f.revokeKey,
		"POST /api/v1/models/{name}/keys/{key}/rotate": f.replaceKey,
		"GET /api/v1/models/{name}/usage":              f.getUsage,
		"GET /api/v1/models/{name}/requests":           f.listRequests,
		"DELETE /api/v1/models/{name}/requests/{id}":   f.cancelRequest,
		"GET /api/v1/models/{name}/explain":            f.explain,
		"GET /api/v1/nodes":                            f.listNodes,
		"GET /api/v1/nodes/{name}":                     f.getNode,
		"GET /api/v1/tokens":                           f.listTokens,
		"GET /api/v1/weights":                          f.listWeights,
		"DELETE /api/v1/weights/{name}":                f.deleteWeights,
		"POST /api/v1/tokens":                          f.createToken,
		"DELETE /api/v1/tokens/{id}":                   f.revokeToken,
	} {
		mux.HandleFunc(route, func(w http.ResponseWriter, r *http.Request) { f.answer(w, r, h) })
	}
	mux.HandleFunc("GET /api/v1/watch", f.watch)
	mux.HandleFunc("POST /api/v1/backups", f.sendBackup)
	mux.HandleFunc("GET /api/v1/models/{name}/logs", f.sendLogs)
	l, err := net.Listen("unix", f.socket)
	if err != nil {
		t.Fatal(err)
	}
	f.server = httptest.NewUnstartedServer(mux)
	f.server.Listener.Close()
	f.server.Listener = l
	f.server.Start()
	t.Cleanup(func() { f.server.CloseClientConnections(); f.server.Close() })
	return f
}

func (f *fake) answer(w http.ResponseWriter, r *http.Request, h func(*http.Request) (any, *levelrail.Error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, r.Method+" "+r.URL.Path)
	err := f.fail[r.Method+" "+r.URL.Path]
	var out any
	if err == nil {
		out, err = h(r)
	}
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		w.WriteHeader(err.Kind.Status())
		out = wire.ErrorBody{Error: *err}
	}
	json.NewEncoder(w).Encode(out)
}

func (f *fake) change() {
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fake) model(r *http.Request) (*wire.Model, *levelrail.Error) {
	m := f.models[r.PathValue("name")]
	if m == nil {
		return nil, levelrail.Errorf(levelrail.ErrNotFound, "there is no model %q", r.PathValue("name")).WithNext("levelrail models list")
	}
	return m, nil
}

func body[T any](r *http.Request) (T, *levelrail.Error) {
	var v T
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil {
		return v, levelrail.Errorf(levelrail.ErrInvalid, "the body cannot be read: %v", err)
	}
	return v, nil
}

func (f *fake) id(prefix string) string { f.made++; return fmt.Sprintf("%s_%04d", prefix, f.made) }

func (f *fake) newKey(model, name string, seconds int64) *wire.NewKey {
	k := &wire.Key{ID: f.id("key"), Name: name, Models: []string{model}, CreatedAt: fakeNow, CreatedBy: "socket:uid 0"}
	secret := "lr-" + strings.Repeat(fmt.Sprintf("%04d", f.made), 16)
	k.Prefix = levelrail.SecretPrefix(secret)
	if seconds > 0 {
		at := fakeNow.Add(time.Duration(seconds) * time.Second)
		k.ExpiresAt = &at
	}
	f.keys[model] = append(f.keys[model], k)
	return &wire.NewKey{Key: *k, Secret: secret}
}

func (f *fake) getStatus(*http.Request) (any, *levelrail.Error) {
	st := f.status
	for _, m := range f.models {
		st.Models.Total++
		if m.Condition.Ready {
			st.Models.Ready++
		}
	}
	for _, n := range f.nodes {
		st.Nodes.Total++
		if n.Online {
			st.Nodes.Ready++
		}
	}
	return st, nil
}

func (f *fake) listModels(*http.Request) (any, *levelrail.Error) {
	items := []wire.Model{}
	for _, name := range slices.Sorted(maps.Keys(f.models)) {
		items = append(items, *f.models[name])
	}
	return wire.List[wire.Model]{Items: items}, nil
}

func (f *fake) getModel(r *http.Request) (any, *levelrail.Error) {
	m, err := f.model(r)
	return m, err
}

func (f *fake) deploy(r *http.Request) (any, *levelrail.Error) {
	d, err := body[wire.Deploy](r)
	if err != nil {
		return nil, err
	}
	if bad := levelrail.CheckModelName(d.Name); bad != nil {
		return nil, bad.(*levelrail.Error)
	}
	spec := levelrail.ModelSpec{Engine: d.Engine, Source: d.Model, SourceCommit: d.SourceCommit, SHA256: d.SHA256, GPUs: d.GPUs, Context: d.Context,
		Quantization: d.Quantization, Replicas: 1, Options: d.Options, ServedNames: d.ServedNames}
	if m := f.models[d.Name]; m != nil {
		if fmt.Sprint(m.Spec) == fmt.Sprint(spec) {
			return wire.Deployed{Model: *m, Unchanged: true}, nil
		}
		return nil, levelrail.Errorf(levelrail.ErrConflict, "%s runs something else: model %s → %s", d.Name, m.Model, d.Model).WithNext("levelrail models update %s", d.Name)
	}
	m := &wire.Model{Name: d.Name, Engine: d.Engine, Model: d.Model, Revision: 1, Spec: spec, ServedNames: levelrail.ServedNames(d.Name, spec), Domain: d.Domain,
		URL: "http://127.0.0.1:7421/v1", NodeID: "node_1", NodeName: "gpu-01", Residency: levelrail.ResidencyAlways, HubTokenSet: d.HubToken != "",
		Condition: levelrail.Condition{Reason: levelrail.Pending, Since: fakeNow}, CreatedAt: fakeNow, CreatedBy: "socket:uid 0", UpdatedAt: fakeNow}
	if d.Domain != "" {
		m.URL = "https://" + d.Domain + "/v1"
	}
	f.models[d.Name] = m
	f.change()
	return wire.Deployed{Model: *m, Key: f.newKey(d.Name, "default", 0), JobID: "job_1", Notes: f.notes}, nil
}

func (f *fake) update(r *http.Request) (any, *levelrail.Error) {
	u, err := body[wire.Update](r)
	if err != nil {
		return nil, err
	}
	m, err := f.model(r)
	if err != nil {
		return nil, err
	}
	was := fmt.Sprint(m.Spec, m.Domain)
	set(&m.Spec.Engine, u.Engine)
	set(&m.Spec.Source, u.Model)
	set(&m.Spec.GPUs, u.GPUs)
	set(&m.Spec.Context, u.Context)
	set(&m.Spec.Quantization, u.Quantization)
	set(&m.Spec.SourceCommit, u.SourceCommit)
	set(&m.Spec.SHA256, u.SHA256)
	set(&m.Spec.Options, u.Options)
	set(&m.Spec.ServedNames, u.ServedNames)
	set(&m.Domain, u.Domain)
	m.Engine, m.Model = m.Spec.Engine, m.Spec.Source
	if fmt.Sprint(m.Spec, m.Domain) == was {
		return wire.Deployed{Model: *m, Unchanged: true}, nil
	}
	m.Revision++ // the condition and replicas stay those of the engine of before, until a step tells of a new one
	f.change()
	return wire.Deployed{Model: *m, JobID: "job_2"}, nil
}

func set[T any](field *T, value *T) {
	if value != nil {
		*field = *value
	}
}

func (f *fake) deleteModel(r *http.Request) (any, *levelrail.Error) {
	m, err := f.model(r)
	if err != nil {
		return nil, err
	}
	delete(f.models, m.Name)
	delete(f.keys, m.Name)
	m.Condition = levelrail.Condition{Reason: levelrail.Stopping, Since: fakeNow}
	f.change()
	return wire.Changed{Model: *m, JobID: "job_3"}, nil
}

func (f *fake) restart(r *http.Request) (any, *levelrail.Error) {
	m, err := f.model(r)
	if err != nil {
		return nil, err
	}
	if r.Method == http.MethodPut {
		t, err := body[wire.HubToken](r)
		if err != nil {
			return nil, err
		}
		m.HubTokenSet = t.Token != ""
	}
	return wire.Changed{Model: *m, JobID: "job_4"}, nil
}

func (f *fake) rotateKey(r *http.Request) (any, *levelrail.Error) {
	m, err := f.model(r)
	if err != nil {
		return nil, err
	}
	for _, k := range f.keys[m.Name] {
		if k.Name == "default" && k.RevokedAt == nil {
			k.RevokedAt = &fakeNow
		}
	}
	return f.newKey(m.Name, "default", 0), nil
}

func (f *fake) listKeys(r *http.Request) (any, *levelrail.Error) {
	m, err := f.model(r)
	if err != nil {
		return nil, err
	}
	return wire.List[*wire.Key]{Items: f.keys[m.Name]}, nil
}

func (f *fake) createKey(r *http.Request) (any, *levelrail.Error) {
	m, err := f.model(r)
	if err != nil {
		return nil, err
	}
	k, err := body[wire.CreateKey](r)
	if err != nil {
		return nil, err
	}
	made := f.newKey(m.Name, k.Name, k.ExpiresInSeconds)
	for _, k2 := range []*wire.Key{f.keys[m.Name][len(f.keys[m.Name])-1], &made.Key} {
		k2.Limits, k2.AllowPaths, k2.AllowModels = k.Limits, k.AllowPaths, k.AllowModels
	}
	return made, nil
}

func (f *fake) findKey(r *http.Request, id string) (*wire.Key, *levelrail.Error) {
	for _, k := range f.keys[r.PathValue("name")] {
		if k.ID == id {
			return k, nil
		}
	}
	return nil, levelrail.Errorf(levelrail.ErrNotFound, "%s has no key %q", r.PathValue("name"), id).WithNext("levelrail models keys list %s", r.PathValue("name"))
}

func (f *fake) replaceKey(r *http.Request) (any, *levelrail.Error) {
	old, err := f.findKey(r, r.PathValue("key"))
	if err != nil {
		return nil, err
	}
	in, err := body[wire.RotateKey](r)
	if err != nil {
		return nil, err
	}
	grace := int64(3600)
	if in.GraceSeconds != nil {
		grace = *in.GraceSeconds
	}
	if grace == 0 {
		old.RevokedAt = &fakeNow
	} else {
		at := fakeNow.Add(time.Duration(grace) * time.Second)
		old.ExpiresAt = &at
	}
	made := f.newKey(r.PathValue("name"), old.Name, 0)
	for _, k := range []*wire.Key{f.keys[r.PathValue("name")][len(f.keys[r.PathValue("name")])-1], &made.Key} {
		k.Limits, k.AllowPaths, k.AllowModels, k.Replaces = old.Limits, old.AllowPaths, old.AllowModels, old.ID
	}
	return made, nil
}

func (f *fake) getUsage(r *http.Request) (any, *levelrail.Error) {
	m, err := f.model(r)
	if err != nil {
		return nil, err
	}
	back, bad := time.ParseDuration(r.URL.Query().Get("since"))
	since := fakeNow.Add(-back)
	if bad != nil {
		if since, bad = time.Parse(time.RFC3339, r.URL.Query().Get("since")); bad != nil {
			return nil, levelrail.Errorf(levelrail.ErrInvalid, "since cannot be read")
		}
	}
	out := f.usage
	out.Model, out.Since, out.Items, out.Keys = m.Name, since.Truncate(time.Hour), []levelrail.Usage{}, []wire.UsageOfKey{}
	for _, u := range f.usage.Items {
		if u.Hour.Before(out.Since) {
			continue
		}
		out.Items = append(out.Items, u)
		out.Total.Add(u.Counts)
		i := slices.IndexFunc(out.Keys, func(k wire.UsageOfKey) bool { return k.KeyID == u.KeyID })
		if i < 0 {
			one := wire.UsageOfKey{KeyID: u.KeyID}
			if k, err := f.findKey(r, u.KeyID); err == nil {
				one.KeyName, one.KeyPrefix = k.Name, k.Prefix
			}
			out.Keys = append(out.Keys, one)
			i = len(out.Keys) - 1
		}
		out.Keys[i].Usage.Add(u.Counts)
	}
	return out, nil
}

func (f *fake) listRequests(r *http.Request) (any, *levelrail.Error) {
	if _, err := f.model(r); err != nil {
		return nil, err
	}
	return wire.Requests{Items: f.flying, Gateways: f.heard, Silent: f.silent}, nil
}

func (f *fake) cancelRequest(r *http.Request) (any, *levelrail.Error) {
	for i, q := range f.flying {
		if q.ID == r.PathValue("id") {
			f.flying = slices.Delete(f.flying, i, i+1)
			return wire.CancelledRequest{ID: q.ID, Gateways: []string{q.GatewayID}}, nil
		}
	}
	return nil, levelrail.Errorf(levelrail.ErrNotFound, "no gateway has the request %q of %s in flight", r.PathValue("id"), r.PathValue("name")).WithNext("levelrail models requests %s", r.PathValue("name"))
}

func (f *fake) explain(r *http.Request) (any, *levelrail.Error) {
	k, err := f.findKey(r, r.URL.Query().Get("key"))
	if err != nil {
		return nil, err
	}
	e := wire.Explanation{Model: r.PathValue("name"), Key: *k, Opens: k.RevokedAt == nil && (k.ExpiresAt == nil || k.ExpiresAt.After(fakeNow)), Limits: f.limits, Total: f.total, Gateways: f.heard, Silent: f.silent}
	for i, l := range f.limits {
		if l.RefusedLast != nil && (e.RefusedBy == nil || l.RefusedLast.After(*e.RefusedBy.RefusedLast)) {
			e.RefusedBy = &f.limits[i]
		}
	}
	return e, nil
}

func (f *fake) revokeKey(r *http.Request) (any, *levelrail.Error) {
	k, err := f.findKey(r, r.PathValue("key"))
	if err != nil {
		return nil, err
	}
	k.RevokedAt = &fakeNow
	out := wire.Revoked{Key: *k, Gateways: f.heard, Silent: f.silent}
	if r.URL.Query().Get("now") == "true" {
		n := int64(len(f.flying))
		out.Ended = &n
	}
	return out, nil
}

func (f *fake) listNodes(*http.Request) (any, *levelrail.Error) {
	return wire.List[wire.Node]{Items: f.nodes}, nil
}

func (f *fake) listWeights(*http.Request) (any, *levelrail.Error) {
	all := []wire.StoredWeights{}
	for _, w := range f.weights {
		_, w.Used = f.models[w.Name]
		all = append(all, w)
	}
	return wire.List[wire.StoredWeights]{Items: all}, nil
}

func (f *fake) deleteWeights(r *http.Request) (any, *levelrail.Error) {
	name := r.PathValue("name")
	for i, w := range f.weights {
		if node := r.URL.Query().Get("node"); w.Name != name || node != "" && node != w.Node {
			continue
		}
		if _, used := f.models[name]; used {
			return nil, levelrail.Errorf(levelrail.ErrRefused, "the model %s is deployed and uses these weights", name).WithNext("levelrail models delete %s first", name)
		}
		f.weights = slices.Delete(f.weights, i, i+1)
		return w, nil
	}
	return nil, levelrail.Errorf(levelrail.ErrNotFound, "no node reports weights named %q", name).WithNext("levelrail weights list")
}

func (f *fake) getNode(r *http.Request) (any, *levelrail.Error) {
	for _, n := range f.nodes {
		if n.Name == r.PathValue("name") || n.ID == r.PathValue("name") {
			return n, nil
		}
	}
	return nil, levelrail.Errorf(levelrail.ErrNotFound, "there is no node %q", r.PathValue("name")).WithNext("levelrail nodes list")
}

func (f *fake) listTokens(*http.Request) (any, *levelrail.Error) {
	return wire.List[*wire.Token]{Items: f.tokens}, nil
}

func (f *fake) createToken(r *http.Request) (any, *levelrail.Error) {
	c, err := body[wire.CreateToken](r)
	if err != nil {
		return nil, err
	}
	t := &wire.Token{ID: f.id("tok"), Name: c.Name, Abilities: c.Abilities, Prefix: "lrt-0123", CreatedAt: fakeNow.Add(-72 * time.Hour), CreatedBy: "socket:uid 0"}
	if c.ExpiresInSeconds > 0 {
		at := fakeNow.Add(time.Duration(c.ExpiresInSeconds) * time.Second)
		t.ExpiresAt = &at
	}
	f.tokens = append(f.tokens, t)
	return wire.NewToken{Token: *t, Secret: "lrt-" + strings.Repeat("0123456789abcdef", 4)}, nil
}

func (f *fake) revokeToken(r *http.Request) (any, *levelrail.Error) {
	for _, t := range f.tokens {
		if t.ID == r.PathValue("id") {
			t.RevokedAt = &fakeNow
			return t, nil
		}
	}
	return nil, levelrail.Errorf(levelrail.ErrNotFound, "there is no token %q", r.PathValue("id")).WithNext("levelrail tokens list")
}

func (f *fake) sendLogs(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.model(r); err != nil {
		f.answer0(w, err)
		return
	}
	f.asked = append(f.asked, r.Method+" "+r.URL.RequestURI())
	n, _ := strconv.Atoi(r.URL.Query().Get("lines"))
	enc := json.NewEncoder(w)
	for _, l := range f.logs[max(0, len(f.logs)-n):] {
		enc.Encode(l)
	}
	if err := f.fail["logs"]; err != nil {
		enc.Encode(wire.ErrorBody{Error: *err})
	}
}

func (f *fake) answer0(w http.ResponseWriter, err *levelrail.Error) {
	w.WriteHeader(err.Kind.Status())
	json.NewEncoder(w).Encode(wire.ErrorBody{Error: *err})
}

// watch tells of one model: its state, then what its steps make of it, one line a step, then what others do to it.
func (f *fake) watch(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Query().Get("id")
	line := func(l wire.WatchLine) {
		json.NewEncoder(w).Encode(l)
		w.(http.Flusher).Flush()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.fail["watch"]; err != nil {
		f.answer0(w, err)
		return
	}
	was := ""
	put := func() {
		if m := f.models[name]; m != nil {
			if b, _ := json.Marshal(m); string(b) != was {
				was = string(b)
				line(wire.WatchLine{Type: wire.WatchPut, Kind: wire.WatchModel, ID: name, Token: "l.1", Object: b})
			}
		} else if was != "" {
			line(wire.WatchLine{Type: wire.WatchDelete, Kind: wire.WatchModel, ID: name, Token: "l.1"})
			was = ""
		}
	}
	line(wire.WatchLine{Type: wire.WatchReset})
	put()
	line(wire.WatchLine{Type: wire.WatchSynced, Token: "l.1"})
	for r.Context().Err() == nil {
		if steps := f.steps[name]; len(steps) > 0 {
			f.steps[name] = steps[1:]
			switch steps[0] {
			case "hang up":
				return
			default:
				f.step(name, steps[0])
			}
			put()
			continue
		}
		changed := f.changed
		f.mu.Unlock()
		select {
		case <-changed:
		case <-r.Context().Done():
		}
		f.mu.Lock()
		put()
	}
}

// step makes something of a model: "ready", "deleted", "REASON: message; next", or "phase DONE/TOTAL" in bytes.
func (f *fake) step(name, what string) {
	m := f.models[name]
	if m == nil {
		f.t.Errorf("a step for %s, which is not deployed: %s", name, what)
		return
	}
	replica := wire.ReplicaStatus{Replica: name, Model: name, Revision: m.Revision, Unit: "levelrail-model-" + name + ".service", UnitState: "activating/start"}
	if len(m.Replicas) > 0 {
		replica = m.Replicas[0]
	}
	c := levelrail.Condition{Since: fakeNow}
	word, rest, _ := strings.Cut(what, " ")
	switch {
	case what == "ready":
		c.Ready, c.Reason = true, levelrail.ModelLoaded
		replica.UnitState, replica.MainPID = "active/running", 4711
	case what == "deleted":
		delete(f.models, name)
		f.change()
		return
	case what == "restarted":
		replica.Restarts++
		c.Reason = levelrail.Starting
	case what == "revised":
		replica.Revision = m.Revision
		c.Reason = levelrail.Starting
	case strings.Contains("downloading verifying importing loading", word) && rest != "":
		done, total, _ := strings.Cut(rest, "/")
		c.Reason = levelrail.Downloading
		c.Progress = &levelrail.Progress{Phase: word}
		c.Progress.DoneBytes, _ = strconv.ParseInt(done, 10, 64)
		if n, err := strconv.ParseInt(total, 10, 64); err == nil {
			c.Progress.TotalBytes = &n
		}
	default:
		reason, message, _ := strings.Cut(what, ": ")
		message, next, _ := strings.Cut(message, "; ")
		c.Reason, c.Message, c.Next = levelrail.Reason(reason), message, next
	}
	m.Condition, replica.Condition = c, c
	m.Replicas = []wire.ReplicaStatus{replica}
	f.change()
}
