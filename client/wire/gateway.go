package wire

import (
	"time"

	"github.com/levelrail/levelrail"
)

// WatchGateway is the body of a gateway's watch: POST /api/v1/watch?after=TOKEN&kinds=route,route_key,question,share.
type WatchGateway struct {
	GatewayID string `json:"gateway_id"` // gw_…, kept in the gateway's state directory
	Version   string `json:"version"`
	ClusterID string `json:"cluster_id,omitempty"` // whose routes and keys the gateway has; empty: none
	URL       string `json:"url,omitempty"`        // the address it serves, for `models get`
	Public    bool   `json:"public,omitempty"`     // it serves the public site (https for any host name that a model has)
	// Of a watch of the kind share: the process (LeaseReport.Boot), and of how many gateways it last heard; 0: of none.
	Boot     string `json:"boot,omitempty"`
	Gateways int    `json:"gateways,omitempty"`
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
	Parallel  int64           `json:"parallel,omitempty"` // requests that one of its engines works on at a time; more would wait inside it. 0: not bounded, or not known
	Limits    Limits          `json:"limits"`
	Context   int64           `json:"context,omitempty"` // tokens that a request may use; 0: the engine's own rule
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
	MaxPrompts         int64 `json:"max_prompts"`    // elements of prompt, input or documents
	MaxTextBytes       int64 `json:"max_text_bytes"` // of a body, without pictures and sounds
	MaxGenLen          int64 `json:"max_gen_len"`
	MaxInflight        int64 `json:"max_inflight"`
	RetryAfterSeconds  int64 `json:"retry_after_seconds"`
	DialTimeoutSeconds int64 `json:"dial_timeout_seconds"`
	HeaderTimeout      int64 `json:"header_timeout_seconds"`
	IdleTimeout        int64 `json:"idle_timeout_seconds"`
	// RetryAfterExact makes refusals for a key's limits say the true wait instead of RetryAfterSeconds.
	RetryAfterExact       bool   `json:"retry_after_exact,omitempty"`
	WakeWaitSeconds       int64  `json:"wake_wait_seconds"`        // 0: a sleeping model is answered at once
	WakeRetryAfterSeconds int64  `json:"wake_retry_after_seconds"` //
	ActivityTouchSeconds  int64  `json:"activity_touch_seconds"`   // least time between two Activity reports of a model
	UsageFlushSeconds     int64  `json:"usage_flush_seconds"`      //
	UsageBatchRows        int64  `json:"usage_batch_rows"`         // rows of one UsageBatch
	UsageMaxBuffered      int64  `json:"usage_max_buffered_rows"`  // hourly sums kept unsent; more are dropped and logged
	UsageScanBytes        int64  `json:"usage_scan_bytes"`         // longest event of a stream that is kept whole; 0: no token counting
	UsageStream           string `json:"usage_stream"`             // asked, limited, always
	OverGenLen            string `json:"over_gen_len,omitempty"`   // refuse (or ""), clamp
	UnknownFields         string `json:"unknown_fields,omitempty"` // pass, refuse; "": as the engine's table has it
	QueueWaitSeconds      int64  `json:"queue_wait_seconds"`       // for a slot of a model; 0: it is refused at once
	BodyTimeoutSeconds    int64  `json:"body_timeout_seconds"`     // that a body may take
	BodyMinRate           int64  `json:"body_min_rate"`            // bytes that give it a second more
	BodyMemory            int64  `json:"body_memory_bytes"`        // of all bodies whose requests have no slot yet
	BodyMemoryKey         int64  `json:"body_memory_key_bytes"`    // of one key's
	KeepAliveSeconds      int64  `json:"keep_alive_seconds"`       // silence after which a stream that waits gets a comment; 0: never
	MaxStaleSeconds       int64  `json:"max_stale_seconds"`        // that a gateway serves without the control plane; 0: for ever
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

// UsageBatch is what a gateway has counted. POST /api/v1/gateway/usage on the gateway's socket. Sequences of one gateway
// count up by one; a batch sent again has the same sequence and rows and is applied once.
type UsageBatch struct {
	GatewayID string               `json:"gateway_id"`
	Sequence  uint64               `json:"sequence"`               // 1, 2, 3…
	Rows      []levelrail.Usage    `json:"rows"`                   // sums since the batch before
	LastUsed  map[string]time.Time `json:"last_used,omitempty"`    // by key id
	Dropped   int64                `json:"dropped_rows,omitempty"` // sums that did not fit the bound since the batch before
}

// UsageAccepted answers a batch: everything up to Sequence is stored and may be forgotten. A gateway whose own sequence is
// lower (a lost state directory) goes on from Sequence.
type UsageAccepted struct {
	Sequence uint64 `json:"sequence"`
}

// Wake asks for a sleeping model. POST /api/v1/gateway/wake; it is the same however often it is asked.
type Wake struct {
	GatewayID string `json:"gateway_id"`
	Model     string `json:"model"`
}

// Activity says which models were used. POST /api/v1/gateway/activity. Used means a request admitted for inference; a
// model with requests in flight is named in each report.
type Activity struct {
	GatewayID string          `json:"gateway_id"`
	Models    []ModelActivity `json:"models"`
}

// ModelActivity is one model's use through one gateway.
type ModelActivity struct {
	Model       string `json:"model"`
	IdleSeconds int64  `json:"idle_seconds"` // since the last request ended, by the gateway's running clock; 0 while any is in flight
	InFlight    int64  `json:"in_flight"`
}

// Seen says how far a gateway has come in its watch. POST /api/v1/gateway/seen, at once after each line of kind route_key
// and after each synced. Who makes or revokes a key waits for it.
type Seen struct {
	GatewayID string `json:"gateway_id"`
	Token     string `json:"token"`
}

// Question is the watch kind that asks one gateway something; it answers with POST /api/v1/gateway/answers/{id} and a
// body of Answer.
const WatchQuestion = "question"

// What a question asks for.
const (
	AskRequests = "requests" // what is in flight
	AskCancel   = "cancel"   // to end one request
	AskExplain  = "explain"  // where a key's limits stand
	AskRevoke   = "revoke"   // to end all requests of a key
)

// Question asks a gateway what only it knows.
type Question struct {
	ID      string `json:"id"`
	Ask     string `json:"ask"` // requests, cancel, explain, revoke
	Model   string `json:"model"`
	KeyID   string `json:"key_id,omitempty"`  // explain, revoke
	Request string `json:"request,omitempty"` // cancel: the request's id
}

// Answer is a gateway's answer.
type Answer struct {
	GatewayID string       `json:"gateway_id"`
	Requests  []InFlight   `json:"requests,omitempty"`
	Cancelled bool         `json:"cancelled,omitempty"`
	Ended     int64        `json:"ended,omitempty"` // revoke: how many
	Limits    []LimitState `json:"limits,omitempty"`
}

// InFlight is one request in flight. GET /api/v1/models/{name}/requests lists those of all gateways.
type InFlight struct {
	ID         string    `json:"id"`
	GatewayID  string    `json:"gateway_id"`
	KeyID      string    `json:"key_id"`
	KeyPrefix  string    `json:"key_prefix"`
	Route      string    `json:"route"`
	Stream     bool      `json:"stream"`
	State      string    `json:"state"`                    // reading, queued, waking, waiting, answering
	Received   int64     `json:"received_bytes,omitempty"` // of a body that does not come at once
	StartedAt  time.Time `json:"started_at"`
	AgeSeconds int64     `json:"age_seconds"`
	Tokens     int64     `json:"tokens_so_far"` // events with content, about one token each
	Bytes      int64     `json:"bytes"`
}

// LimitState is where one limit of a key (or the model's slots) stands at a gateway.
type LimitState struct {
	GatewayID    string     `json:"gateway_id"`
	Limit        string     `json:"limit"` // rpm, tpm, tpd, max_parallel, model_inflight, body_memory (bytes)
	Most         int64      `json:"most"`
	Used         int64      `json:"used"`
	Lease        *int64     `json:"lease,omitempty"`         // the part of Most that this gateway may use; absent: all of it
	FreesSeconds int64      `json:"frees_seconds,omitempty"` // until the oldest of Used counts no more; 0: nothing is used, or no clock says
	RefusedLast  *time.Time `json:"refused_last,omitempty"`  // when it last refused a request
	ResetSeconds int64      `json:"reset_seconds"`           // until a request would pass again; 0: it passes now
}

// Requests answers GET /api/v1/models/{name}/requests: what is in flight, oldest first.
type Requests struct {
	Items    []InFlight `json:"items"`
	Gateways []string   `json:"gateways"`                  // that answered
	Silent   []string   `json:"silent_gateways,omitempty"` // that are connected and did not
}

// CancelledRequest answers DELETE /api/v1/models/{name}/requests/{id}.
type CancelledRequest struct {
	ID       string   `json:"id"`
	Gateways []string `json:"gateways"` // that had it in flight and have ended it
}

// Explanation answers GET /api/v1/models/{name}/explain?key=ID: whether a key opens its model, and where its limits stand
// at each gateway and in sum.
type Explanation struct {
	Model     string       `json:"model"`
	Key       Key          `json:"key"`
	Opens     bool         `json:"opens"` // neither revoked nor expired
	Limits    []LimitState `json:"limits"`
	Total     []LimitTotal `json:"total,omitempty"`           // where several gateways share the key's limits
	RefusedBy *LimitState  `json:"refused_by,omitempty"`      // the limit that refused a request last; absent: none that a gateway remembers
	Gateways  []string     `json:"gateways"`                  // that answered
	Silent    []string     `json:"silent_gateways,omitempty"` // that are connected and did not
}

// LimitTotal is where one limit of a key stands at all gateways together.
type LimitTotal struct {
	Limit string `json:"limit"` // rpm, tpm, tpd, max_parallel
	Most  int64  `json:"most"`
	Used  int64  `json:"used"`
	Gone  int64  `json:"used_by_gone,omitempty"` // the part of Used that gateways have used which are gone
	// ResetSeconds is how long it takes at least until a request passes again; 0: one passes now.
	ResetSeconds int64 `json:"reset_seconds"`
}
