package caddymodule

import (
	"encoding/json"
	"net/http"

	"github.com/levelrail/levelrail/client/wire"
)

// usage takes a batch as the control plane does: once, by its number.
func (c *controlPlane) usage(w http.ResponseWriter, r *http.Request) {
	var b wire.UsageBatch
	if err := json.NewDecoder(r.Body).Decode(&b); err != nil {
		http.Error(w, err.Error(), 400)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counted == nil {
		c.counted = map[string]uint64{}
	}
	if b.Sequence > c.counted[b.GatewayID] {
		c.counted[b.GatewayID] = b.Sequence
		c.batches = append(c.batches, b)
	}
	json.NewEncoder(w).Encode(wire.UsageAccepted{Sequence: c.counted[b.GatewayID]})
}
