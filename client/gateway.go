package client

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/levelrail/levelrail/client/wire"
)

// Usage brings what a gateway has counted: a wire.UsageBatch in JSON. The same batch may be sent again until it is answered:
// it is applied once. Gateway's socket.
func (c *Client) Usage(ctx context.Context, batch json.RawMessage) (wire.UsageAccepted, error) {
	return one[wire.UsageAccepted](ctx, c, http.MethodPost, "/gateway/usage", batch)
}

// Wake asks for a sleeping model to be started. Asking again changes nothing, and a model that is awake stays so.
// Gateway's socket.
func (c *Client) Wake(ctx context.Context, w wire.Wake) error {
	return c.do(ctx, http.MethodPost, root+"/gateway/wake", nil, w, nil)
}

// Activity says which models were used through a gateway, and how long ago. Gateway's socket.
func (c *Client) Activity(ctx context.Context, a wire.Activity) error {
	return c.do(ctx, http.MethodPost, root+"/gateway/activity", nil, a, nil)
}

// Seen says how far a gateway has come in its watch, for whoever waits until a revoked key opens nothing any more.
// Gateway's socket.
func (c *Client) Seen(ctx context.Context, s wire.Seen) error {
	return c.do(ctx, http.MethodPost, root+"/gateway/seen", nil, s, nil)
}

// Answer answers a question that came with the watch. Gateway's socket.
func (c *Client) Answer(ctx context.Context, question string, a wire.Answer) error {
	return c.do(ctx, http.MethodPost, root+"/gateway/answers"+seg(question), nil, a, nil)
}

// Leases says what a gateway uses of keys whose limits it shares with others, and returns what it may use. A word with
// Wait is answered when there is some, or others have said that there is none. Gateway's socket.
func (c *Client) Leases(ctx context.Context, r wire.LeaseReport) (wire.Leases, error) {
	return one[wire.Leases](ctx, c, http.MethodPost, "/gateway/leases", r)
}
