package controlplane

import (
	"strings"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

// Settings are the server's. Those that say where the server listens and keeps its things, and the master key, are read
// from the environment only, at the start; the others also from the cluster's settings document, and at once when it
// changes.
type Settings struct {
	Listen     string `env:"LEVELRAIL_LISTEN" default:"127.0.0.1:7420" doc:"Address of the TLS port: host:port, or off for none. Tokens are asked for there; the sockets in /run/levelrail are not affected."`
	RuntimeDir string `env:"LEVELRAIL_RUNTIME_DIR" default:"/run/levelrail" doc:"Directory of the sockets api.sock, gateway.sock and agent.sock, where systemd does not hand them over."`
	MasterKey  string `env:"APP_MASTER_KEY" secret:"true" doc:"The key that every stored secret depends on: 64 hex digits (openssl rand -hex 32), or 32 bytes in base64. It wins over the systemd credential levelrail-master-key, which wins over the file master.key that the first start makes."`

	Debug bool `env:"LEVELRAIL_DEBUG" default:"false" doc:"Log every request and watch as well."`

	PublicHost string `env:"APP_PUBLIC_HOST" doc:"Host name or public IP of this control plane. It becomes a name of the TLS certificate; with a public IP, models without a domain get a host name of their own, NAME.1-2-3-4.sslip.io, on gateways with a public site."`
	HubBaseURL string `env:"APP_HF_BASE_URL" default:"https://huggingface.co" doc:"Base address of the Hugging Face Hub or of a mirror. Nodes get it from the server; a node's own setting wins there."`
	MaxKeys    int    `env:"APP_MODEL_MAX_KEYS" default:"50" doc:"Live keys that a model may have. 0: no limit."`

	MaxBodyBytes  int64         `env:"APP_MODEL_GATEWAY_MAX_BODY_BYTES" default:"33554432" doc:"Larger request bodies get 413 from the gateway. 0: no limit."`
	MaxInflight   int64         `env:"APP_MODEL_GATEWAY_MAX_INFLIGHT" default:"32" doc:"Requests of one model at a time on one gateway; more get 429. A stream counts until it ends. 0: no limit."`
	RetryAfter    time.Duration `env:"APP_MODEL_GATEWAY_RETRY_AFTER" default:"5s" doc:"What Retry-After says when a limit refuses a request."`
	DialTimeout   time.Duration `env:"APP_MODEL_GATEWAY_DIAL_TIMEOUT" default:"5s" doc:"How long the gateway tries to connect to an engine. 0: no limit."`
	HeaderTimeout time.Duration `env:"APP_MODEL_GATEWAY_HEADER_TIMEOUT" default:"5m" doc:"How long the gateway waits for an engine's response headers; a completion that does not stream sends none until it is finished. Exceeded: 504. 0: no limit."`
	IdleTimeout   time.Duration `env:"APP_MODEL_GATEWAY_IDLE_TIMEOUT" default:"2m" doc:"Longest gap in an engine's response. It is a gap, not a total, so a long stream is never cut. 0: no limit."`
}

// environmentFile is where an operator sets them; errors name it.
const environmentFile = "/etc/default/levelrail-server"

// startOnly are the settings that a document cannot set.
var startOnly = []string{"LEVELRAIL_LISTEN", "LEVELRAIL_RUNTIME_DIR", "APP_MASTER_KEY", "LEVELRAIL_DEBUG"}

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
	return s, nil
}

// Limits are the gateway's limits, as gateways are told.
func (s Settings) Limits() wire.Limits {
	whole := func(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }
	return wire.Limits{MaxBodyBytes: s.MaxBodyBytes, MaxInflight: s.MaxInflight, RetryAfterSeconds: whole(s.RetryAfter),
		DialTimeoutSeconds: whole(s.DialTimeout), HeaderTimeout: whole(s.HeaderTimeout), IdleTimeout: whole(s.IdleTimeout)}
}
