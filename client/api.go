package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/levelrail/levelrail/client/wire"
)

const root = "/api/v1"

func seg(s string) string { return "/" + url.PathEscape(s) }

func list[T any](ctx context.Context, c *Client, path string) ([]T, error) {
	var l wire.List[T]
	err := c.do(ctx, http.MethodGet, root+path, nil, nil, &l)
	return l.Items, err
}

func one[T any](ctx context.Context, c *Client, method, path string, in any) (T, error) {
	var out T
	err := c.do(ctx, method, root+path, nil, in, &out)
	return out, err
}

// Status says how the control plane stands. Ability read.
func (c *Client) Status(ctx context.Context) (wire.Status, error) {
	return one[wire.Status](ctx, c, http.MethodGet, "/status", nil)
}

// Deploy asks for a new model. The same spec under the same name answers with Unchanged and without a key; another spec
// is a conflict that tells the difference. Ability write:sensitive.
func (c *Client) Deploy(ctx context.Context, d wire.Deploy) (wire.Deployed, error) {
	return one[wire.Deployed](ctx, c, http.MethodPost, "/models", d)
}

// Models lists all models by name. Ability read.
func (c *Client) Models(ctx context.Context) ([]wire.Model, error) {
	return list[wire.Model](ctx, c, "/models")
}

// Model returns one model, or not_found. Ability read.
func (c *Client) Model(ctx context.Context, name string) (wire.Model, error) {
	return one[wire.Model](ctx, c, http.MethodGet, "/models"+seg(name), nil)
}

// UpdateModel makes a new revision of a model, or answers Unchanged. Ability write:sensitive.
func (c *Client) UpdateModel(ctx context.Context, name string, u wire.Update) (wire.Deployed, error) {
	return one[wire.Deployed](ctx, c, http.MethodPut, "/models"+seg(name), u)
}

// DeleteModel begins to take a model down; its weights stay. It is gone when Model answers not_found. Ability write.
func (c *Client) DeleteModel(ctx context.Context, name string) (wire.Changed, error) {
	return one[wire.Changed](ctx, c, http.MethodDelete, "/models"+seg(name), nil)
}

// Weights lists the sets of weights that lie on nodes. Ability read.
func (c *Client) Weights(ctx context.Context) ([]wire.StoredWeights, error) {
	return list[wire.StoredWeights](ctx, c, "/weights")
}

// DeleteWeights deletes a set of weights from a node's disk and returns it as it was. node may be empty when one node has a set
// of that name. A set that a model uses is refused. Ability write.
func (c *Client) DeleteWeights(ctx context.Context, name, node string) (wire.StoredWeights, error) {
	path := "/weights" + seg(name)
	if node != "" {
		path += "?" + url.Values{"node": {node}}.Encode()
	}
	return one[wire.StoredWeights](ctx, c, http.MethodDelete, path, nil)
}

// RestartModel starts a model's engines anew. Ability write.
func (c *Client) RestartModel(ctx context.Context, name string) (wire.Changed, error) {
	return one[wire.Changed](ctx, c, http.MethodPost, "/models"+seg(name)+"/restart", nil)
}

// RotateEngineKey gives a model's engines new keys and starts them anew. Ability write:sensitive.
func (c *Client) RotateEngineKey(ctx context.Context, name string) (wire.Changed, error) {
	return one[wire.Changed](ctx, c, http.MethodPost, "/models"+seg(name)+"/rotate-engine-key", nil)
}

// RotateKey replaces the model's key named default at once and returns the new one. Ability write:sensitive.
func (c *Client) RotateKey(ctx context.Context, name string) (wire.NewKey, error) {
	return one[wire.NewKey](ctx, c, http.MethodPost, "/models"+seg(name)+"/rotate-key", nil)
}

// SetHubToken seals a Hugging Face token for the model and restarts it; an empty token takes the old one away. Ability
// write:sensitive.
func (c *Client) SetHubToken(ctx context.Context, name, token string) (wire.Changed, error) {
	return one[wire.Changed](ctx, c, http.MethodPut, "/models"+seg(name)+"/hf-token", wire.HubToken{Token: token})
}

// Keys lists the keys of a model, revoked ones too. Ability read.
func (c *Client) Keys(ctx context.Context, model string) ([]wire.Key, error) {
	return list[wire.Key](ctx, c, "/models"+seg(model)+"/keys")
}

// ModelUsage reports what each key of a model used since a duration back (24h) or a time (RFC 3339). Ability read.
func (c *Client) ModelUsage(ctx context.Context, model, since string) (wire.UsageReport, error) {
	var out wire.UsageReport
	err := c.do(ctx, http.MethodGet, root+"/models"+seg(model)+"/usage", url.Values{"since": {since}}, nil, &out)
	return out, err
}

// CreateKey makes a further key of a model; its text is in the answer and nowhere else. Ability write:sensitive.
func (c *Client) CreateKey(ctx context.Context, model string, k wire.CreateKey) (wire.NewKey, error) {
	return one[wire.NewKey](ctx, c, http.MethodPost, "/models"+seg(model)+"/keys", k)
}

// ReplaceKey makes a key in place of another, which works on for the grace time; its text is in the answer and nowhere
// else. Ability write:sensitive.
func (c *Client) ReplaceKey(ctx context.Context, model, id string, r wire.RotateKey) (wire.NewKey, error) {
	return one[wire.NewKey](ctx, c, http.MethodPost, "/models"+seg(model)+"/keys"+seg(id)+"/rotate", r)
}

// Requests lists what is in flight for a model on all gateways that answer. Ability read.
func (c *Client) Requests(ctx context.Context, model string) (wire.Requests, error) {
	return one[wire.Requests](ctx, c, http.MethodGet, "/models"+seg(model)+"/requests", nil)
}

// CancelRequest ends a request in flight: not_found when no gateway has it, unavailable when one that did not answer may.
// Ability write.
func (c *Client) CancelRequest(ctx context.Context, model, id string) (wire.CancelledRequest, error) {
	return one[wire.CancelledRequest](ctx, c, http.MethodDelete, "/models"+seg(model)+"/requests"+seg(id), nil)
}

// Explain says where the limits of a key stand. Ability read.
func (c *Client) Explain(ctx context.Context, model, keyID string) (wire.Explanation, error) {
	var out wire.Explanation
	err := c.do(ctx, http.MethodGet, root+"/models"+seg(model)+"/explain", url.Values{"key": {keyID}}, nil, &out)
	return out, err
}

// RevokeKey ends a key of a model, with now also its requests that are under way, and says which of the connected gateways
// refuse it now. Ability write.
func (c *Client) RevokeKey(ctx context.Context, model, id string, now bool) (wire.Revoked, error) {
	path := "/models" + seg(model) + "/keys" + seg(id)
	if now {
		path += "?now=true"
	}
	return one[wire.Revoked](ctx, c, http.MethodDelete, path, nil)
}

// Nodes lists all nodes. Ability read.
func (c *Client) Nodes(ctx context.Context) ([]wire.Node, error) {
	return list[wire.Node](ctx, c, "/nodes")
}

// Node returns one node by id or name, or not_found. Ability read.
func (c *Client) Node(ctx context.Context, node string) (wire.Node, error) {
	return one[wire.Node](ctx, c, http.MethodGet, "/nodes"+seg(node), nil)
}

// Tokens lists the API tokens, revoked ones too. Ability root.
func (c *Client) Tokens(ctx context.Context) ([]wire.Token, error) {
	return list[wire.Token](ctx, c, "/tokens")
}

// CreateToken makes an API token; its text is in the answer and nowhere else. Ability root.
func (c *Client) CreateToken(ctx context.Context, t wire.CreateToken) (wire.NewToken, error) {
	return one[wire.NewToken](ctx, c, http.MethodPost, "/tokens", t)
}

// RevokeToken ends a token at once. Ability root.
func (c *Client) RevokeToken(ctx context.Context, id string) (wire.Token, error) {
	return one[wire.Token](ctx, c, http.MethodDelete, "/tokens"+seg(id), nil)
}

// CA returns the PEM certificate of the authority that signs the server's TLS certificate. It needs no token.
func (c *Client) CA(ctx context.Context) ([]byte, error) {
	return one[[]byte](ctx, c, http.MethodGet, "/ca.pem", nil)
}

// OpenAPI returns the OpenAPI 3.1 document of the API as JSON. It needs no token.
func (c *Client) OpenAPI(ctx context.Context) ([]byte, error) {
	return one[[]byte](ctx, c, http.MethodGet, "/openapi.json", nil)
}

// Hello is an agent's first word. It fails with refused when the agent belongs to another cluster. Agent's socket.
func (c *Client) Hello(ctx context.Context, h wire.Hello) (wire.Welcome, error) {
	return one[wire.Welcome](ctx, c, http.MethodPost, "/agent/hello", h)
}

// Report tells the server how a node stands. Agent's socket, after Hello.
func (c *Client) Report(ctx context.Context, r wire.Report) error {
	return c.do(ctx, http.MethodPost, root+"/agent/report", nil, r, nil)
}

// HubToken fetches a model's Hugging Face token for the download that needs it: not_found when none is set, refused when
// it cannot be decrypted. Agent's socket, and only the agent of a node that runs the model.
func (c *Client) HubToken(ctx context.Context, nodeID, model string) (string, error) {
	var t wire.HubToken
	err := c.do(ctx, http.MethodGet, root+"/agent/models"+seg(model)+"/hf-token", url.Values{"node_id": {nodeID}}, nil, &t)
	return t.Token, err
}
