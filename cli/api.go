package cli

import (
	"context"
	"io"
	"os"
	"strings"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client"
	"github.com/levelrail/levelrail/client/wire"
)

// API is what the command line asks of the server. *client.Client meets it.
type API interface {
	Status(ctx context.Context) (wire.Status, error)
	Deploy(ctx context.Context, d wire.Deploy) (wire.Deployed, error)
	Models(ctx context.Context) ([]wire.Model, error)
	Model(ctx context.Context, name string) (wire.Model, error)
	UpdateModel(ctx context.Context, name string, u wire.Update) (wire.Deployed, error)
	DeleteModel(ctx context.Context, name string) (wire.Changed, error)
	RestartModel(ctx context.Context, name string) (wire.Changed, error)
	RotateEngineKey(ctx context.Context, name string) (wire.Changed, error)
	RotateKey(ctx context.Context, name string) (wire.NewKey, error)
	SetHubToken(ctx context.Context, name, token string) (wire.Changed, error)
	Logs(ctx context.Context, model string, o client.LogOptions, each func(wire.LogLine) error) error
	Keys(ctx context.Context, model string) ([]wire.Key, error)
	ModelUsage(ctx context.Context, model, since string) (wire.UsageReport, error)
	CreateKey(ctx context.Context, model string, k wire.CreateKey) (wire.NewKey, error)
	ReplaceKey(ctx context.Context, model, id string, r wire.RotateKey) (wire.NewKey, error)
	RevokeKey(ctx context.Context, model, id string, now bool) (wire.Revoked, error)
	Requests(ctx context.Context, model string) (wire.Requests, error)
	CancelRequest(ctx context.Context, model, id string) (wire.CancelledRequest, error)
	Explain(ctx context.Context, model, keyID string) (wire.Explanation, error)
	Nodes(ctx context.Context) ([]wire.Node, error)
	Weights(ctx context.Context) ([]wire.StoredWeights, error)
	DeleteWeights(ctx context.Context, name, node string) (wire.StoredWeights, error)
	Node(ctx context.Context, node string) (wire.Node, error)
	Tokens(ctx context.Context) ([]wire.Token, error)
	CreateToken(ctx context.Context, t wire.CreateToken) (wire.NewToken, error)
	RevokeToken(ctx context.Context, id string) (wire.Token, error)
	CreateBackup(ctx context.Context, w io.Writer) (wire.Backup, error)
	Watch(ctx context.Context, o client.WatchOptions, each func(wire.WatchLine) error) error
}

// Dial returns the road to the server that the environment names: LEVELRAIL_URL with LEVELRAIL_TOKEN or
// LEVELRAIL_TOKEN_FILE and LEVELRAIL_CA_FILE, else the socket LEVELRAIL_SOCKET, else the socket of this machine's server.
// It connects to nothing yet. A token is never taken from the command line, where every user could read it.
func Dial(getenv func(string) string) (API, error) {
	agent := "levelrail/" + levelrail.Version
	url := getenv("LEVELRAIL_URL")
	if url == "" {
		if getenv("LEVELRAIL_TOKEN") != "" && getenv("LEVELRAIL_SOCKET") == "" {
			return nil, levelrail.Errorf(levelrail.ErrInvalid, "LEVELRAIL_TOKEN is set, but not the server that it is for").
				WithNext("export LEVELRAIL_URL=https://HOST:7420, or unset LEVELRAIL_TOKEN to use this machine's socket")
		}
		socket := getenv("LEVELRAIL_SOCKET")
		if socket == "" {
			socket = client.APISocket
		}
		return dialled(client.New(client.Options{Socket: socket, UserAgent: agent}))
	}
	if getenv("LEVELRAIL_SOCKET") != "" {
		return nil, levelrail.Errorf(levelrail.ErrInvalid, "LEVELRAIL_URL and LEVELRAIL_SOCKET name two servers").WithNext("unset one of them")
	}
	token := getenv("LEVELRAIL_TOKEN")
	if file := getenv("LEVELRAIL_TOKEN_FILE"); token == "" && file != "" {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, levelrail.Errorf(levelrail.ErrInvalid, "the token cannot be read: %v", err).WithNext("check LEVELRAIL_TOKEN_FILE")
		}
		if token = strings.TrimSpace(string(b)); token == "" {
			return nil, levelrail.Errorf(levelrail.ErrInvalid, "the token file %s is empty", file).WithNext("put the text that levelrail tokens create printed into it")
		}
	}
	if token == "" {
		return nil, levelrail.Errorf(levelrail.ErrUnauthorized, "LEVELRAIL_URL is set, but no token for it").
			WithNext("make one on the server's machine with `levelrail tokens create --name you --ability read`, then export LEVELRAIL_TOKEN or LEVELRAIL_TOKEN_FILE")
	}
	return dialled(client.New(client.Options{URL: url, Token: token, CAFile: getenv("LEVELRAIL_CA_FILE"), UserAgent: agent}))
}

func dialled(c *client.Client, err error) (API, error) {
	if err != nil { // a nil *client.Client must not become an API that is not nil
		return nil, err
	}
	return c, nil
}
