// Package wire declares what crosses the wire: the bodies of /api/v1, the lines of a watch, what agents report and what
// gateways are told. JSON is snake_case, times are RFC 3339 in UTC, sizes end in _bytes and durations in _seconds, and
// what is unknown is null or absent. It holds shapes only; the client is in package client, the server's handlers in
// controlplane/httpapi.
package wire

import (
	"encoding/json"
	"time"

	"github.com/levelrail/levelrail"
)

// List is every listing: {"items": […]}.
type List[T any] struct {
	Items []T `json:"items"`
}

// ErrorBody is the body of every refusal.
type ErrorBody struct {
	Error levelrail.Error `json:"error"`
}

// Deploy asks for a new model. POST /api/v1/models, ability write:sensitive.
type Deploy struct {
	Name           string               `json:"name"`
	Engine         string               `json:"engine"`
	Model          string               `json:"model"` // the source: org/name[:QUANT], an Ollama tag, or a path on the node
	SourceCommit   string               `json:"source_commit,omitempty"`
	SHA256         string               `json:"sha256,omitempty"`
	Node           string               `json:"node,omitempty"` // id or name; empty: the control plane's own host
	GPUs           levelrail.GPURequest `json:"gpus,omitzero"`
	Context        int                  `json:"context,omitempty"`
	Quantization   string               `json:"quantization,omitempty"`
	Domain         string               `json:"domain,omitempty"`
	Options        levelrail.Options    `json:"options,omitempty"`
	ServedNames    []string             `json:"served_names,omitempty"`
	Residency      string               `json:"residency,omitempty"`
	IdleTTLSeconds int64                `json:"idle_ttl_seconds,omitempty"`
	HubToken       string               `json:"hf_token,omitempty"` // sealed at once, never returned
	// IdempotencyKey makes a retried deploy happen once (header Idempotency-Key wins).
	IdempotencyKey string `json:"idempotency_key,omitempty"`
}

// Deployed answers a deploy. Key is there once, at creation, and empty when the same spec stood already (Unchanged).
type Deployed struct {
	Model     Model    `json:"model"`
	Key       *NewKey  `json:"key,omitempty"`
	JobID     string   `json:"job_id,omitempty"`
	Unchanged bool     `json:"unchanged,omitempty"`
	Notes     []string `json:"notes,omitempty"` // said once: public site, master key
}

// Update asks for a new revision; absent fields stay as they are. PUT /api/v1/models/{name}, ability write:sensitive.
type Update struct {
	Engine       *string               `json:"engine,omitempty"`
	Model        *string               `json:"model,omitempty"`
	SourceCommit *string               `json:"source_commit,omitempty"`
	SHA256       *string               `json:"sha256,omitempty"`
	GPUs         *levelrail.GPURequest `json:"gpus,omitempty"`
	Context      *int                  `json:"context,omitempty"`
	Quantization *string               `json:"quantization,omitempty"`
	Domain       *string               `json:"domain,omitempty"`
	Options      *levelrail.Options    `json:"options,omitempty"`
	ServedNames  *[]string             `json:"served_names,omitempty"`
}

// Changed answers a request that changes a model: restart, delete, a new Hub token. The work goes on as the job.
type Changed struct {
	Model Model  `json:"model"`
	JobID string `json:"job_id,omitempty"`
}

// Model is the API's view of a model: what is wanted, where it runs, and how it stands.
type Model struct {
	Name           string                  `json:"name"`
	Engine         string                  `json:"engine"`
	Model          string                  `json:"model"`
	Revision       int                     `json:"revision"`
	Spec           levelrail.ModelSpec     `json:"spec"`
	ServedNames    []string                `json:"served_names"`
	Domain         string                  `json:"domain,omitempty"`
	URL            string                  `json:"url"` // base address of the gateway, /v1 included
	NodeID         string                  `json:"node_id,omitempty"`
	NodeName       string                  `json:"node_name,omitempty"`
	Devices        []string                `json:"devices,omitempty"`
	Compute        string                  `json:"compute,omitempty"` // what the engine said it computes on
	Residency      levelrail.ResidencyMode `json:"residency"`
	IdleTTLSeconds int64                   `json:"idle_ttl_seconds,omitempty"`
	HubTokenSet    bool                    `json:"hf_token_set"`
	Condition      levelrail.Condition     `json:"condition"`
	Replicas       []ReplicaStatus         `json:"replicas,omitempty"`
	Limits         *Limits                 `json:"limits,omitempty"`         // of every model, as gateways are told
	LastActiveAt   *time.Time              `json:"last_active_at,omitempty"` // GET of one model: the last use that this server has heard of since it started
	Owner          levelrail.Owner         `json:"owner"`
	CreatedAt      time.Time               `json:"created_at"`
	CreatedBy      string                  `json:"created_by"`
	UpdatedAt      time.Time               `json:"updated_at"`
}

// Key is the API's view of a key: never its text, never its hash.
type Key struct {
	ID          string              `json:"id"`
	Name        string              `json:"name"`
	Models      []string            `json:"models"`
	Prefix      string              `json:"prefix"`
	AllowPaths  []string            `json:"allow_paths,omitempty"`
	AllowModels []string            `json:"allow_models,omitempty"`
	Limits      levelrail.KeyLimits `json:"limits"`
	ExpiresAt   *time.Time          `json:"expires_at,omitempty"`
	RevokedAt   *time.Time          `json:"revoked_at,omitempty"`
	LastUsedAt  *time.Time          `json:"last_used_at,omitempty"` // as gateways last said, within their flush interval
	Replaces    string              `json:"replaces,omitempty"`     // the key that this one's rotation retired
	CreatedAt   time.Time           `json:"created_at"`
	CreatedBy   string              `json:"created_by"`
}

// CreateKey asks for a further key of a model. POST /api/v1/models/{name}/keys, ability write:sensitive.
type CreateKey struct {
	Name             string `json:"name"`
	ExpiresInSeconds int64  `json:"expires_in_seconds,omitempty"` // 0: never
	// Limits of the key; 0 or absent: none. None may be above APP_MODEL_KEY_MAX_LIMIT.
	Limits      levelrail.KeyLimits `json:"limits,omitzero"`
	AllowPaths  []string            `json:"allow_paths,omitempty"`  // exact, or everything below one that ends in /
	AllowModels []string            `json:"allow_models,omitempty"` // what a body's model may be
}

// RotateKey asks for a replacement of a key with the same name, limits and expiry. POST
// /api/v1/models/{name}/keys/{id}/rotate, ability write:sensitive.
type RotateKey struct {
	GraceSeconds *int64 `json:"grace_seconds,omitempty"` // how long the old key works on; absent: APP_MODEL_KEY_ROTATION_GRACE, 0: not at all
}

// Revoked answers the revocation of a key: which gateways know, and which did not say so in time.
type Revoked struct {
	Key      Key      `json:"key"`
	Gateways []string `json:"gateways"`                  // that refuse the key now
	Silent   []string `json:"silent_gateways,omitempty"` // that are connected and have not said so yet
	Ended    *int64   `json:"ended_requests,omitempty"`  // with now: the requests that gateways have ended; absent: those under way go on
}

// UsageReport answers GET /api/v1/models/{name}/usage?since=168h. Nothing in it is estimated.
type UsageReport struct {
	Model       string            `json:"model"`
	Since       time.Time         `json:"since"`
	Items       []levelrail.Usage `json:"items"`                // by hour and key
	Keys        []UsageOfKey      `json:"keys"`                 // sums by key
	Total       levelrail.Usage   `json:"total"`                //
	DroppedRows int64             `json:"dropped_rows"`         // sums that gateways had to drop
	UpToSeconds int64             `json:"unsent_up_to_seconds"` // what a gateway lost at this moment would lose: its flush interval
}

// UsageOfKey is one key's sums.
type UsageOfKey struct {
	KeyID     string          `json:"key_id"`
	KeyName   string          `json:"key_name"`
	KeyPrefix string          `json:"key_prefix"`
	Usage     levelrail.Usage `json:"usage"`
}

// NewKey is a key with its text, which is shown this once.
type NewKey struct {
	Key
	Secret string `json:"secret"` // lr-…
}

// Token is the API's view of a token.
type Token struct {
	ID        string              `json:"id"`
	Name      string              `json:"name"`
	Abilities []levelrail.Ability `json:"abilities"`
	Prefix    string              `json:"prefix"`
	ExpiresAt *time.Time          `json:"expires_at,omitempty"`
	RevokedAt *time.Time          `json:"revoked_at,omitempty"`
	CreatedAt time.Time           `json:"created_at"`
	CreatedBy string              `json:"created_by"`
}

// CreateToken asks for an API token. POST /api/v1/tokens, ability root.
type CreateToken struct {
	Name             string              `json:"name"`
	Abilities        []levelrail.Ability `json:"abilities"`
	ExpiresInSeconds int64               `json:"expires_in_seconds,omitempty"`
}

// NewToken is a token with its text, which is shown this once.
type NewToken struct {
	Token
	Secret string `json:"secret"` // lrt-…
}

// Node is the API's view of a node: what is stored, and what its agent last said.
type Node struct {
	levelrail.Node
	Online     bool                      `json:"online"`
	LastReport *time.Time                `json:"last_report"`
	Readings   []levelrail.DeviceReading `json:"readings,omitempty"`
	GPUNote    string                    `json:"gpu_note,omitempty"` // why there are no devices
	Disk       *levelrail.DiskReading    `json:"disk"`
	Engines    []EngineStatus            `json:"engines,omitempty"`
	Models     []string                  `json:"models,omitempty"`
}

// Status is GET /api/v1/status.
type Status struct {
	ClusterID string    `json:"cluster_id"`
	Version   string    `json:"version"`
	Server    string    `json:"server_id"`
	Leader    string    `json:"leader_id"`
	Role      string    `json:"role"` // leader, follower, candidate
	Index     uint64    `json:"index"`
	StartedAt time.Time `json:"started_at"`
	Nodes     Counts    `json:"nodes"`  // total, ready: online
	Models    Counts    `json:"models"` // total, ready: serving
	Gateways  Counts    `json:"gateways"`
	TLS       string    `json:"tls_address"`
	CAFile    string    `json:"ca_file,omitempty"`
	Warnings  []string  `json:"warnings,omitempty"`
}

// Counts is how many there are and how many are well.
type Counts struct {
	Total int `json:"total"`
	Ready int `json:"ready"`
}

// WatchLine is one line of GET or POST /api/v1/watch?after=TOKEN&kinds=….
//
// A watch without a token begins with reset, then every object of its kinds as put, then synced. With a token it
// begins with the changes after it. Kinds that are worked out from what nodes report (route, model, node) are sent whole
// at the start of each watch. A heartbeat comes every 10 seconds. An error line ends the watch.
type WatchLine struct {
	Type   string           `json:"type"` // reset, put, delete, synced, heartbeat, error
	Kind   string           `json:"kind,omitempty"`
	ID     string           `json:"id,omitempty"`
	Token  string           `json:"token,omitempty"` // where to go on from: opaque
	Object json.RawMessage  `json:"object,omitempty"`
	Error  *levelrail.Error `json:"error,omitempty"`
	// Cluster is on reset and synced lines to gateways: whose routes and keys follow, or have been said.
	Cluster *WatchCluster `json:"cluster,omitempty"`
}

// WatchCluster says whose state a watch tells. A gateway of another cluster keeps what it has, unless that was replaced.
type WatchCluster struct {
	ID       string   `json:"id"`
	Replaced []string `json:"replaced,omitempty"` // clusters that this one took the place of on its server
}

// The types of a watch line.
const (
	WatchReset     = "reset"
	WatchPut       = "put"
	WatchDelete    = "delete"
	WatchSynced    = "synced"
	WatchHeartbeat = "heartbeat"
	WatchError     = "error"
)

// The kinds that can be watched, and by whom.
const (
	WatchModel        = "model"         // Model views; ability read
	WatchNode         = "node"          // Node views; ability read
	WatchRoute        = "route"         // Route; the gateway's socket
	WatchRouteKey     = "route_key"     // RouteKey; the gateway's socket
	WatchAssignment   = "assignment"    // Assignment; the agent's socket, own node only
	WatchLogRequest   = "log_request"   // LogRequest; the agent's socket, own node only
	WatchWeightsOrder = "weights_order" // WeightsOrder; the agent's socket, own node only
)

// StoredWeights is a set of weights as it lies on a node. GET /api/v1/weights lists them, by what nodes reported last. They
// outlive the model that they were fetched for, so that deploying it again fetches nothing.
type StoredWeights struct {
	Name      string    `json:"name"` // of that model
	NodeID    string    `json:"node_id"`
	Node      string    `json:"node"`
	Online    bool      `json:"online"` // the node reports
	Source    string    `json:"source"`
	Commit    string    `json:"commit,omitempty"`
	Bytes     int64     `json:"size_bytes"` // of all its files; a file that several sets of a node share is stored once
	Files     int       `json:"files"`
	Used      bool      `json:"used"`       // the model is deployed
	FetchedAt time.Time `json:"fetched_at"` // when it came, or was looked at anew for an update
}
