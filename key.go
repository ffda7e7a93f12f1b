package levelrail

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"slices"
	"strings"
	"time"
)

// Ability is what a caller may do. Each route of the API declares one, each token and socket has a set.
type Ability string

// The abilities, each apart from the others; root includes all.
const (
	AbilityRead           Ability = "read"
	AbilityWrite          Ability = "write"
	AbilityWriteSensitive Ability = "write:sensitive"
	AbilityRoot           Ability = "root"
)

// Abilities lists the abilities from least to most.
var Abilities = []Ability{AbilityRead, AbilityWrite, AbilityWriteSensitive, AbilityRoot}

// Allows tells whether a set of abilities covers the wanted one: write includes read, write:sensitive includes write,
// root includes all.
func Allows(have []Ability, want Ability) bool {
	rank := slices.Index(Abilities, want)
	return rank >= 0 && slices.ContainsFunc(have, func(a Ability) bool { return slices.Index(Abilities, a) >= rank })
}

// Principal is who acts: a person at a socket, a token, an agent, a gateway or a server.
type Principal struct {
	Kind string `json:"kind"` // socket, token, node, gateway, server
	ID   string `json:"id"`   // uid 0, tok_…, node_…, gw_…
	Name string `json:"name,omitempty"`
}

// String is kind:id, as logs and the audit print it.
func (p Principal) String() string { return p.Kind + ":" + p.ID }

// Key is an API key of the gateway. It stands by itself, with an owner and scopes, and is no child of one model; the
// API takes exactly one model for now. Only the hash is kept.
type Key struct {
	ID         string     `json:"id"`   // key_…
	Name       string     `json:"name"` // the first one of a model is "default"
	Models     []string   `json:"models"`
	SHA256     string     `json:"sha256"` // lower-case hex of the whole key
	Prefix     string     `json:"prefix"` // the first 8 characters, for people
	AllowPaths []string   `json:"allow_paths,omitempty"`
	AllowNames []string   `json:"allow_models,omitempty"` // compared with the body's model
	Limits     KeyLimits  `json:"limits"`
	ExpiresAt  *time.Time `json:"expires_at,omitempty"`
	RevokedAt  *time.Time `json:"revoked_at,omitempty"`
	Replaces   string     `json:"replaces,omitempty"` // the key that this one's rotation retires
	Tags       []string   `json:"tags,omitempty"`     // carried into usage rows
	Owner      Owner      `json:"owner"`
	Stamp      Stamp      `json:"stamp"`
}

func (Key) ObjectKind() Kind   { return KindKey }
func (k Key) ObjectID() string { return k.ID }

// Live tells whether the key opens anything at the time given.
func (k Key) Live(now time.Time) bool {
	return k.RevokedAt == nil && (k.ExpiresAt == nil || now.Before(*k.ExpiresAt))
}

// KeyLimits bound one key; 0 means no limit.
type KeyLimits struct {
	RPM         int64 `json:"rpm,omitempty"`          // requests a minute
	TPM         int64 `json:"tpm,omitempty"`          // tokens a minute, soft
	TPD         int64 `json:"tpd,omitempty"`          // tokens in rolling 24 hours, soft
	MaxParallel int64 `json:"max_parallel,omitempty"` // requests in flight
	// Weight is how many of a model's slots the key gets for each one of a key of weight 1, when both want more than there
	// are; 0: 1. It bounds nothing.
	Weight int64 `json:"weight,omitempty"`
}

// Token is an API token of the control plane. Only the hash is kept.
type Token struct {
	ID        string     `json:"id"` // tok_…
	Name      string     `json:"name"`
	Abilities []Ability  `json:"abilities"`
	SHA256    string     `json:"sha256"`
	Prefix    string     `json:"prefix"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
	RevokedAt *time.Time `json:"revoked_at,omitempty"`
	Policies  []string   `json:"policies,omitempty"`
	Owner     Owner      `json:"owner"`
	Stamp     Stamp      `json:"stamp"`
}

func (Token) ObjectKind() Kind   { return KindToken }
func (t Token) ObjectID() string { return t.ID }

// Usage is one hour's sums of one key and model. Owner and Tags are as of the request.
type Usage struct {
	Hour  time.Time `json:"hour"` // UTC, on the hour
	KeyID string    `json:"key_id"`
	Model string    `json:"model"`
	Counts
	Owner Owner    `json:"owner"`
	Tags  []string `json:"tags,omitempty"`
}

// Counts are sums over requests.
type Counts struct {
	Requests      int64 `json:"requests"`
	OK            int64 `json:"requests_2xx"`
	ClientErrors  int64 `json:"requests_4xx"`
	ServerErrors  int64 `json:"requests_5xx"`
	Limited       int64 `json:"requests_limited"` // refused with 429
	Aborted       int64 `json:"requests_aborted"` // the client left
	WithUsage     int64 `json:"usage_requests"`
	InputTokens   int64 `json:"input_tokens"`
	OutputTokens  int64 `json:"output_tokens"`
	ResponseBytes int64 `json:"response_bytes"`
	DurationMS    int64 `json:"duration_ms"`
	FirstByteMS   int64 `json:"first_byte_ms"`
}

func (Usage) ObjectKind() Kind { return KindUsage }

// ObjectID is HOUR/KEY/MODEL, so that rows of one hour lie together.
func (u Usage) ObjectID() string {
	return u.Hour.UTC().Format("2006010215") + "/" + u.KeyID + "/" + u.Model
}

// Add adds other sums.
func (c *Counts) Add(o Counts) {
	c.Requests += o.Requests
	c.OK += o.OK
	c.ClientErrors += o.ClientErrors
	c.ServerErrors += o.ServerErrors
	c.Limited += o.Limited
	c.Aborted += o.Aborted
	c.WithUsage += o.WithUsage
	c.InputTokens += o.InputTokens
	c.OutputTokens += o.OutputTokens
	c.ResponseBytes += o.ResponseBytes
	c.DurationMS += o.DurationMS
	c.FirstByteMS += o.FirstByteMS
}

// NewID returns prefix_ and 128 random bits in lower-case base 32.
func NewID(prefix string) string {
	var b [16]byte
	rand.Read(b[:])
	return prefix + "_" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(b[:]))
}

// NewSecret returns prefix- and 256 random bits in hex: the text of an API key (prefix lr), a token or an engine's key.
func NewSecret(prefix string) string {
	var b [32]byte
	rand.Read(b[:])
	return prefix + "-" + hex.EncodeToString(b[:])
}

// HashSecret is how a key or token is stored and looked up: the lower-case hex of its SHA-256.
func HashSecret(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

// SecretPrefix is the part of a key or token that may be shown: its first 8 characters.
func SecretPrefix(secret string) string { return secret[:min(8, len(secret))] }
