package controlplane

import (
	"slices"
	"strings"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
	"github.com/levelrail/levelrail/controlplane/httpapi"
)

// Settings are the server's. Those that say where the server listens and keeps its things, and the master key, are read
// from the environment only, at the start; the others also from the cluster's settings document, and at once when it
// changes.
type Settings struct {
	Listen     string `env:"LEVELRAIL_LISTEN" default:"127.0.0.1:7420" doc:"Address of the TLS port: host:port, or off for none. Tokens are asked for there; the sockets in /run/levelrail are not affected."`
	RuntimeDir string `env:"LEVELRAIL_RUNTIME_DIR" default:"/run/levelrail" doc:"Directory of the sockets api.sock, gateway.sock and agent.sock, where systemd does not hand them over."`
	MasterKey  string `env:"APP_MASTER_KEY" secret:"true" doc:"The key that every stored secret depends on: 64 hex digits (openssl rand -hex 32), or 32 bytes in base64. It wins over the systemd credential levelrail-master-key, which wins over the file master.key that the first start makes."`

	MaxConnections int `env:"LEVELRAIL_MAX_CONNECTIONS" default:"1024" doc:"Connections that the TLS port has at a time; more are closed as they come. The sockets in /run/levelrail have connections of their own."`
	MaxPerAddress  int `env:"LEVELRAIL_MAX_CONNECTIONS_PER_ADDRESS" default:"64" doc:"Those of one address, or of one /64 of IPv6. A proxy in front of the port is one address."`

	MasterKeyNext string `env:"APP_MASTER_KEY_NEXT" secret:"true" doc:"The master key that is to replace the present one, where that is not in the file master.key: at the next start everything is sealed under it. Afterwards make it APP_MASTER_KEY and leave this out."`

	Debug bool `env:"LEVELRAIL_DEBUG" default:"false" doc:"Log every request and watch as well."`

	PublicHost string `env:"APP_PUBLIC_HOST" doc:"Host name or public IP of this control plane. It becomes a name of the TLS certificate; with a public IP, models without a domain get a host name of their own, NAME.1-2-3-4.sslip.io, on gateways with a public site."`
	HubBaseURL string `env:"APP_HF_BASE_URL" default:"https://huggingface.co" doc:"Base address of the Hugging Face Hub or of a mirror. Nodes get it from the server; a node's own setting wins there."`
	MaxKeys    int    `env:"APP_MODEL_MAX_KEYS" default:"50" doc:"Live keys that a model may have. 0: no limit."`

	KeyGrace    time.Duration `env:"APP_MODEL_KEY_ROTATION_GRACE" default:"1h" doc:"How long a rotated key works on where the rotation does not say. 0: not at all."`
	KeyMaxGrace time.Duration `env:"APP_MODEL_KEY_MAX_GRACE" default:"168h" doc:"The longest that a rotated key may work on."`
	KeyMaxLimit int64         `env:"APP_MODEL_KEY_MAX_LIMIT" default:"10000000" doc:"The largest limit of requests, tokens or parallel requests that a key may be given. 0: no bound."`

	MaxBodyBytes  int64         `env:"APP_MODEL_GATEWAY_MAX_BODY_BYTES" default:"33554432" doc:"Larger request bodies get 413 from the gateway. 0: no limit."`
	MaxN          int64         `env:"APP_MODEL_GATEWAY_MAX_N" default:"16" doc:"n or best_of above this gets 400. 0: no limit."`
	MaxPrompts    int64         `env:"APP_MODEL_GATEWAY_MAX_PROMPTS" default:"256" doc:"A request with more prompts than this (a list as prompt, input or documents), times its n, gets 400. Each is charged with its tokens. 0: no limit."`
	MaxTextBytes  int64         `env:"APP_MODEL_GATEWAY_MAX_TEXT_BYTES" default:"2097152" doc:"A JSON body with more text than this gets 413; pictures and sounds in it do not count. An engine needs a hundred times the memory of a text before it knows that the text is longer than its context. 0: no limit."`
	MaxGenLen     int64         `env:"APP_MODEL_GATEWAY_MAX_GEN_LEN" default:"32768" doc:"max_tokens, max_completion_tokens or max_output_tokens above this, or negative, gets 400. 0: no limit."`
	OverGenLen    string        `env:"APP_MODEL_GATEWAY_OVER_GEN_LEN" default:"refuse" doc:"What becomes of a length above APP_MODEL_GATEWAY_MAX_GEN_LEN, or of -1: refuse answers 400; clamp puts the largest that is allowed in its place."`
	UnknownFields string        `env:"APP_MODEL_GATEWAY_UNKNOWN_FIELDS" doc:"Fields of a request that no table of its engine has (docs/reference/bodies.md): pass lets them through unseen, refuse answers 400. Not set: refused for llama.cpp and vLLM, passed for Ollama, which drops them unread."`
	MaxInflight   int64         `env:"APP_MODEL_GATEWAY_MAX_INFLIGHT" default:"32" doc:"Requests of one model at a time on one gateway; more wait for a slot. A stream counts until it ends. Where the model's engine works on fewer at a time (up to 4 of llama.cpp, by its context, 1 of Ollama, or what its options say), as many. 0: no limit but the engine's."`
	QueueWait     time.Duration `env:"APP_MODEL_GATEWAY_QUEUE_WAIT" default:"5m" doc:"How long a request waits for a slot of its model; then, or at once when the queue is longer than that, it gets 429. Slots that come free go to keys in turn, by their weights. 0: nothing waits."`
	RetryAfter    string        `env:"APP_MODEL_GATEWAY_RETRY_AFTER" default:"5s" doc:"What Retry-After says when a limit refuses a request. exact: the true wait where a key's limit refused, and 5s elsewhere; it tells a client which of its limits that was."`
	KeepAlive     time.Duration `env:"APP_MODEL_GATEWAY_KEEP_ALIVE" default:"15s" doc:"A stream that waits so long for a slot, for its model to wake or for the engine's first word gets its headers and a comment line, and more of these as long as it waits, so that no client and no proxy gives it up. An error then comes as the stream's event. 0: never."`
	BodyTimeout   time.Duration `env:"APP_MODEL_GATEWAY_BODY_TIMEOUT" default:"60s" doc:"How long a request's body may take to come, beside what its bytes give it (APP_MODEL_GATEWAY_BODY_MIN_RATE). Exceeded: 408. 0: no limit."`
	BodyMinRate   int64         `env:"APP_MODEL_GATEWAY_BODY_MIN_RATE" default:"65536" doc:"For each so many bytes that have come, a body may take a second longer. 0: none gives it more."`
	BodyMemory    int64         `env:"APP_MODEL_GATEWAY_BODY_MEMORY" default:"1073741824" doc:"Memory of a gateway for the bodies of requests that are being read or wait for a slot; one more gets 429. Those that have a slot are bounded by the slots. 0: no limit."`
	BodyMemoryKey int64         `env:"APP_MODEL_GATEWAY_BODY_MEMORY_KEY" default:"268435456" doc:"The part of it that the requests of one key may use. 0: no limit but that of all."`
	MaxStale      time.Duration `env:"APP_MODEL_GATEWAY_MAX_STALE" default:"168h" doc:"How long a gateway serves that hears nothing of the control plane, so that a revoked key does not open models for ever; then it answers 503. Counted from when its routes and keys were last known to be the newest, over restarts too. 0: for ever."`
	DialTimeout   time.Duration `env:"APP_MODEL_GATEWAY_DIAL_TIMEOUT" default:"5s" doc:"How long the gateway tries to connect to an engine. 0: no limit."`
	HeaderTimeout time.Duration `env:"APP_MODEL_GATEWAY_HEADER_TIMEOUT" default:"5m" doc:"How long the gateway waits for an engine's response headers; a completion that does not stream sends none until it is finished. Exceeded: 504. 0: no limit."`
	IdleTimeout   time.Duration `env:"APP_MODEL_GATEWAY_IDLE_TIMEOUT" default:"2m" doc:"Longest gap in an engine's response. It is a gap, not a total, so a long stream is never cut. 0: no limit."`

	WakeWait       time.Duration `env:"APP_MODEL_WAKE_WAIT" default:"90s" doc:"How long a gateway holds a request while a sleeping model is started. Then, or at once with 0, the client gets 503 with the code model_waking."`
	WakeRetryAfter time.Duration `env:"APP_MODEL_WAKE_RETRY_AFTER" default:"15s" doc:"What Retry-After says while a model is waking."`
	ActivityTouch  time.Duration `env:"APP_MODEL_ACTIVITY_TOUCH_INTERVAL" default:"10s" doc:"How often a gateway says at most that a model is used."`

	UsageFlush     time.Duration `env:"APP_MODEL_USAGE_FLUSH_INTERVAL" default:"30s" doc:"How often a gateway sends what it has counted. It is also what a gateway that dies at once may lose."`
	UsageBatch     int64         `env:"APP_MODEL_USAGE_BATCH_SIZE" default:"200" doc:"Hourly sums that a gateway sends at a time: 1 to 400."`
	UsageBuffered  int64         `env:"APP_MODEL_USAGE_MAX_BUFFERED" default:"10000" doc:"Hourly sums that a gateway keeps while it cannot send; more are dropped and logged."`
	UsageRetention time.Duration `env:"APP_MODEL_USAGE_RETENTION" default:"720h" doc:"Hourly sums that are older are deleted. 0: they are kept for ever."`
	UsageScanBytes int64         `env:"APP_MODEL_USAGE_SCAN_BYTES" default:"16384" doc:"Longest event of a stream that is kept whole to look for its usage; longer ones, and whole answers of any size, are searched as they pass. 0: tokens are not counted."`
	UsageStream    string        `env:"APP_MODEL_USAGE_STREAM" default:"limited" doc:"Streams whose client did not ask for usage: asked counts such a stream as a request only; limited lets the gateway ask the engine itself where the key has a limit of tokens, and hides the extra event from the client; always does so for every key."`

	retryAfter time.Duration // of RetryAfter
	retryExact bool
}

// retryAfterDefault is what Retry-After says where the true wait is asked for and there is none to know.
const retryAfterDefault = 5 * time.Second

// mostBatch is how many hourly sums one command can hold.
const mostBatch = 400

// environmentFile is where an operator sets them; errors name it.
const environmentFile = "/etc/default/levelrail-server"

// startOnly are the settings that a document cannot set.
var startOnly = []string{"LEVELRAIL_LISTEN", "LEVELRAIL_MAX_CONNECTIONS", "LEVELRAIL_MAX_CONNECTIONS_PER_ADDRESS", "LEVELRAIL_RUNTIME_DIR", "APP_MASTER_KEY", "APP_MASTER_KEY_NEXT", "LEVELRAIL_DEBUG"}

// LoadSettings reads the settings: the environment wins over the document, which wins over the default.
func LoadSettings(getenv func(string) string, document map[string]string) (Settings, error) {
	values := map[string]string{}
	for name, v := range document {
		values[name] = v
	}
	for _, name := range startOnly {
		delete(values, name)
	}
	var s Settings
	if err := levelrail.LoadSettings(&s, environmentFile, getenv, values); err != nil {
		return s, err
	}
	s.HubBaseURL = strings.TrimRight(strings.TrimSpace(s.HubBaseURL), "/")
	if !strings.HasPrefix(s.HubBaseURL, "https://") && !strings.HasPrefix(s.HubBaseURL, "http://") {
		return s, levelrail.Errorf(levelrail.ErrInvalid, "%s: APP_HF_BASE_URL: %q is not an address", environmentFile, s.HubBaseURL).WithNext("write it like https://huggingface.co")
	}
	if !slices.Contains([]string{"asked", "limited", "always"}, s.UsageStream) {
		return s, levelrail.Errorf(levelrail.ErrInvalid, "%s: APP_MODEL_USAGE_STREAM: %q is none of asked, limited, always", environmentFile, s.UsageStream).WithNext("write limited, or leave it out")
	}
	for _, w := range []struct {
		name, value string
		of          []string
	}{{"APP_MODEL_GATEWAY_OVER_GEN_LEN", s.OverGenLen, []string{"refuse", "clamp"}}, {"APP_MODEL_GATEWAY_UNKNOWN_FIELDS", s.UnknownFields, []string{"", "pass", "refuse"}}} {
		if !slices.Contains(w.of, w.value) {
			return s, levelrail.Errorf(levelrail.ErrInvalid, "%s: %s: %q is neither %s nor %s", environmentFile, w.name, w.value, w.of[len(w.of)-2], w.of[len(w.of)-1]).WithNext("write %s, or leave it out", w.of[len(w.of)-1])
		}
	}
	if s.UsageBatch < 1 || s.UsageBatch > mostBatch {
		return s, levelrail.Errorf(levelrail.ErrInvalid, "%s: APP_MODEL_USAGE_BATCH_SIZE: %d is not between 1 and %d", environmentFile, s.UsageBatch, mostBatch).WithNext("write 200, or leave it out")
	}
	if s.UsageFlush < time.Second {
		return s, levelrail.Errorf(levelrail.ErrInvalid, "%s: APP_MODEL_USAGE_FLUSH_INTERVAL: %s is less than a second", environmentFile, s.UsageFlush).WithNext("write 1s or more")
	}
	if s.MaxPerAddress < 1 || s.MaxConnections < s.MaxPerAddress {
		return s, levelrail.Errorf(levelrail.ErrInvalid, "%s: LEVELRAIL_MAX_CONNECTIONS is %d and LEVELRAIL_MAX_CONNECTIONS_PER_ADDRESS is %d", environmentFile, s.MaxConnections, s.MaxPerAddress).
			WithNext("write 1 or more for one address, and at least as many for all")
	}
	for _, d := range []struct {
		name string
		is   time.Duration
	}{{"APP_MODEL_KEY_ROTATION_GRACE", s.KeyGrace}, {"APP_MODEL_KEY_MAX_GRACE", s.KeyMaxGrace}, {"APP_MODEL_USAGE_RETENTION", s.UsageRetention}} {
		if d.is < 0 {
			return s, levelrail.Errorf(levelrail.ErrInvalid, "%s: %s: %s is in the past", environmentFile, d.name, d.is).WithNext("write a duration such as 1h, or 0")
		}
	}
	return s, s.readRetryAfter()
}

// readRetryAfter reads what is a duration or the word exact.
func (s *Settings) readRetryAfter() error {
	if s.retryExact = strings.TrimSpace(s.RetryAfter) == "exact"; s.retryExact {
		s.retryAfter = retryAfterDefault
		return nil
	}
	var one struct {
		RetryAfter time.Duration `env:"APP_MODEL_GATEWAY_RETRY_AFTER"`
	}
	if err := levelrail.LoadSettings(&one, environmentFile, func(string) string { return s.RetryAfter }, nil); err != nil {
		return levelrail.Errorf(levelrail.ErrInvalid, "%v, or exact for the true wait", err)
	}
	s.retryAfter = one.RetryAfter
	return nil
}

// Keys are the rules for keys.
func (s Settings) Keys() httpapi.KeyRules {
	return httpapi.KeyRules{Max: s.MaxKeys, MaxLimit: s.KeyMaxLimit, Grace: s.KeyGrace, MaxGrace: s.KeyMaxGrace}
}

// Limits are the gateway's limits, as gateways are told.
func (s Settings) Limits() wire.Limits {
	whole := func(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }
	return wire.Limits{MaxBodyBytes: s.MaxBodyBytes, MaxN: s.MaxN, MaxPrompts: s.MaxPrompts, MaxTextBytes: s.MaxTextBytes, OverGenLen: s.OverGenLen, UnknownFields: s.UnknownFields, MaxGenLen: s.MaxGenLen, MaxInflight: s.MaxInflight, RetryAfterSeconds: whole(s.retryAfter), RetryAfterExact: s.retryExact,
		DialTimeoutSeconds: whole(s.DialTimeout), HeaderTimeout: whole(s.HeaderTimeout), IdleTimeout: whole(s.IdleTimeout),
		WakeWaitSeconds: whole(s.WakeWait), WakeRetryAfterSeconds: whole(s.WakeRetryAfter), ActivityTouchSeconds: max(whole(s.ActivityTouch), 1),
		UsageFlushSeconds: max(whole(s.UsageFlush), 1), UsageBatchRows: s.UsageBatch, UsageMaxBuffered: s.UsageBuffered, UsageScanBytes: s.UsageScanBytes, UsageStream: s.UsageStream,
		QueueWaitSeconds: whole(s.QueueWait), BodyTimeoutSeconds: whole(s.BodyTimeout), BodyMinRate: s.BodyMinRate, BodyMemory: s.BodyMemory, BodyMemoryKey: s.BodyMemoryKey,
		KeepAliveSeconds: whole(s.KeepAlive), MaxStaleSeconds: whole(s.MaxStale)}
}
