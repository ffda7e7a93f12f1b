package wire

import (
	"time"

	"github.com/levelrail/levelrail"
)

// WatchGateway is the body of a gateway's watch: POST /api/v1/watch?after=TOKEN&kinds=route,route_key.
type WatchGateway struct {
	GatewayID string `json:"gateway_id"` // gw_…, kept in the gateway's state directory
	Version   string `json:"version"`
	URL       string `json:"url,omitempty"`    // the address it serves, for `models get`
	Public    bool   `json:"public,omitempty"` // it serves the public site (https for any host name that a model has)
}

// Route is what a gateway knows of one model. Its id in the watch is the model's name.
type Route struct {
	Model     string          `json:"model"`
	Engine    string          `json:"engine"` // whose route table applies
	Names     []string        `json:"names"`  // served names, the model's own first
	Domain    string          `json:"domain,omitempty"`
	Targets   []RouteTarget   `json:"targets"`
	Fallback  []string        `json:"fallback,omitempty"`
	Serving   bool            `json:"serving"` // the engine is loaded
	Asleep    bool            `json:"asleep"`  // a wake would start it
	Reason    string          `json:"reason"`
	Message   string          `json:"message,omitempty"`
	Limits    Limits          `json:"limits"`
	CreatedAt time.Time       `json:"created_at"`
	Owner     levelrail.Owner `json:"owner"`
}

// RouteTarget is one place that requests may go to.
type RouteTarget struct {
	Kind    string `json:"kind"`              // replica, external, peer
	ID      string `json:"id"`                // replica id; a new address gets a new id
	Network string `json:"network"`           // unix, tcp
	Address string `json:"address"`           // socket path, or host:port
	Weight  int    `json:"weight"`            //
	Key     string `json:"key,omitempty"`     // secret: what to show the target
	Serving bool   `json:"serving,omitempty"` //
}

// Limits are the server's limits for gateways (the reference's table); 0 or less means none.
type Limits struct {
	MaxBodyBytes       int64 `json:"max_body_bytes"`
	MaxN               int64 `json:"max_n"`
	MaxGenLen          int64 `json:"max_gen_len"`
	MaxInflight        int64 `json:"max_inflight"`
	RetryAfterSeconds  int64 `json:"retry_after_seconds"`
	DialTimeoutSeconds int64 `json:"dial_timeout_seconds"`
	HeaderTimeout      int64 `json:"header_timeout_seconds"`
	IdleTimeout        int64 `json:"idle_timeout_seconds"`
}

// RouteKey is what a gateway knows of one key. Its id in the watch is the key's id; revoked keys are deleted lines.
type RouteKey struct {
	ID          string              `json:"id"`
	Name        string              `json:"name"`
	SHA256      string              `json:"sha256"`
	Prefix      string              `json:"prefix"`
	Models      []string            `json:"models"`
	AllowPaths  []string            `json:"allow_paths,omitempty"`
	AllowModels []string            `json:"allow_models,omitempty"`
	Limits      levelrail.KeyLimits `json:"limits"`
	ExpiresAt   *time.Time          `json:"expires_at,omitempty"`
	Owner       levelrail.Owner     `json:"owner"`
	Tags        []string            `json:"tags,omitempty"`
}
