package client

import (
	"context"
	"net/http"

	"github.com/levelrail/levelrail/client/wire"
)

// Usage brings what a gateway has counted. The same batch may be sent again until it is answered: it is applied once.
// Gateway's socket.
func (c *Client) Usage(ctx context.Context, b wire.UsageBatch) (wire.UsageAccepted, error) {
	return one[wire.UsageAccepted](ctx, c, http.MethodPost, "/gateway/usage", b)
}
