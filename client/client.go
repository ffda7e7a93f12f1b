// Package client is the typed client of the control plane's API and of its watches. It is the only road to the server
// for the command line, the agent and the gateway.
//
// It owns connections (a Unix socket, or TLS with a token), the shape of requests, and turning every failure into an
// *levelrail.Error with a kind and a next step. It promises that nothing it returns or prints holds a token. It reads no
// environment and no configuration file, retries nothing and reconnects nothing: a caller who follows a watch decides when
// to come back and from which token. The shapes are declared in client/wire, the server's side in controlplane/httpapi.
package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

// The sockets of a machine with a control plane.
const (
	APISocket     = "/run/levelrail/api.sock"     // for people: root and the group levelrail
	GatewaySocket = "/run/levelrail/gateway.sock" // for the gateway on the same machine
	AgentSocket   = "/run/levelrail/agent.sock"   // for the agent on the same machine
)

const (
	dialTimeout   = 5 * time.Second
	answerTimeout = 60 * time.Second // headers of a plain answer; a server that holds a write longer has lost its majority
	maxAnswer     = 64 << 20         // bytes of a plain answer
	maxLine       = 4 << 20          // bytes of one line of a stream
)

// Options say where the server is. Exactly one of Socket and URL is set.
type Options struct {
	Socket    string // path of a Unix socket
	URL       string // https://host:7420
	Token     string // lrt-…, for a URL
	CAFile    string // PEM file of the authority that signed the server's certificate; empty: the system's authorities
	UserAgent string // such as "levelrail/0.1.0"
}

// Client speaks to one server. It is safe for concurrent use.
type Client struct {
	opts Options
	base string
	http *http.Client
}

// New returns a client and connects to nothing. It fails with invalid when the options do not say one server, or the CA
// file cannot be read.
func New(o Options) (*Client, error) {
	if (o.Socket == "") == (o.URL == "") {
		return nil, levelrail.Errorf(levelrail.ErrInvalid, "a client needs either the path of a socket or the address of a server")
	}
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}
	tr := &http.Transport{MaxIdleConnsPerHost: 4, IdleConnTimeout: 30 * time.Second, TLSHandshakeTimeout: dialTimeout}
	c := &Client{opts: o, http: &http.Client{
		Transport: tr,
		// A redirect would carry the token to a place that nobody named.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	if o.Socket != "" {
		c.base = "http://localhost"
		tr.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", o.Socket)
		}
		return c, nil
	}
	u, err := url.Parse(o.URL)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		return nil, levelrail.Errorf(levelrail.ErrInvalid, "the server's address %q is not usable", o.URL).
			WithNext("write it like https://cp.example.com:7420")
	}
	if u.Scheme == "http" && o.Token != "" && !loopback(u.Hostname()) {
		return nil, levelrail.Errorf(levelrail.ErrInvalid, "a token is not sent to %s without TLS", u.Host).WithNext("use https://%s", u.Host)
	}
	c.base = strings.TrimRight(u.Scheme+"://"+u.Host+u.Path, "/")
	tr.DialContext = dialer.DialContext
	tr.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	if o.CAFile != "" {
		pem, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, levelrail.Errorf(levelrail.ErrInvalid, "cannot read the CA file: %v", err).
				WithNext("copy it from the control plane's host: curl --unix-socket %s http://localhost/api/v1/ca.pem", APISocket)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return nil, levelrail.Errorf(levelrail.ErrInvalid, "the CA file %s holds no certificate in PEM form", o.CAFile)
		}
		tr.TLSClientConfig.RootCAs = pool
	}
	return c, nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Close ends idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Where names the server for messages: the socket's path or the address.
func (c *Client) Where() string {
	if c.opts.Socket != "" {
		return c.opts.Socket
	}
	return c.base
}

type idempotencyKey struct{}

// WithIdempotencyKey returns a context under which a write carries the key, so that sending it again does nothing a
// second time. The server keeps keys for a day.
func WithIdempotencyKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, idempotencyKey{}, key)
}

// request builds a request with the headers that every request has.
func (c *Client) request(ctx context.Context, method, path string, query url.Values, body io.Reader) (*http.Request, error) {
	u := c.base + path
	if len(query) > 0 {
		u += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, u, body)
	if err != nil {
		return nil, levelrail.Errorf(levelrail.ErrInvalid, "%s %s cannot be asked: %v", method, path, err)
	}
	req.Header.Set("Accept", "application/json")
	if c.opts.UserAgent != "" {
		req.Header.Set("User-Agent", c.opts.UserAgent)
	}
	if c.opts.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.opts.Token)
	}
	if key, _ := ctx.Value(idempotencyKey{}).(string); key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	return req, nil
}

// do asks and decodes the answer into out (nil: the answer's body does not matter).
func (c *Client) do(ctx context.Context, method, path string, query url.Values, in, out any) error {
	asked := ctx
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	var body io.Reader
	if raw, ok := in.(json.RawMessage); ok {
		body = bytes.NewReader(raw)
	} else if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("encode %s %s: %w", method, path, err)
		}
		body = bytes.NewReader(b)
	}
	req, err := c.request(ctx, method, path, query, body)
	if err != nil {
		return err
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return c.failed(asked, method, path, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return c.failed(asked, method, path, err)
	}
	if resp.StatusCode >= 300 {
		return refusal(resp, b)
	}
	switch out := out.(type) {
	case nil:
		return nil
	case *[]byte:
		*out = b
		return nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return levelrail.Errorf(levelrail.ErrInternal, "the answer of %s to %s %s cannot be read: %v", c.Where(), method, path, err).
			WithNext("compare the versions: levelrail version")
	}
	return nil
}

// refusal turns a refusing answer into the error that it carries.
func refusal(resp *http.Response, body []byte) error {
	var e wire.ErrorBody
	if json.Unmarshal(body, &e) == nil && e.Error.Kind != "" {
		return &e.Error
	}
	kind := levelrail.ErrInternal
	for _, k := range []levelrail.ErrorKind{levelrail.ErrInvalid, levelrail.ErrUnauthorized, levelrail.ErrForbidden, levelrail.ErrNotFound,
		levelrail.ErrConflict, levelrail.ErrUnavailable, levelrail.ErrTimeout} {
		if k.Status() == resp.StatusCode {
			kind = k
		}
	}
	return levelrail.Errorf(kind, "%s answered %s without saying why", resp.Request.URL.Host, resp.Status).
		WithNext("check that the address is that of a levelrail-server")
}

// failed turns a transport's error into one with a kind and a next step. A context that the caller ended stays what it is.
func (c *Client) failed(asked context.Context, method, path string, err error) error {
	if errors.Is(asked.Err(), context.Canceled) {
		return context.Canceled
	}
	var timeout interface{ Timeout() bool }
	var dial *net.OpError
	dialled := !errors.As(err, &dial) || dial.Op != "dial"
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	switch {
	case errors.Is(err, fs.ErrPermission):
		return levelrail.Errorf(levelrail.ErrForbidden, "%s may not be opened by this user", c.Where()).
			WithNext("join the group levelrail (sudo usermod -aG levelrail $USER, then log in again), or use sudo")
	case errors.Is(err, fs.ErrNotExist) && c.opts.Socket != "":
		return levelrail.Errorf(levelrail.ErrUnavailable, "there is no control plane at %s", c.Where()).
			WithNext("systemctl start levelrail-server-api.socket, or name a server elsewhere with LEVELRAIL_URL, LEVELRAIL_TOKEN and LEVELRAIL_CA_FILE")
	case errors.Is(err, syscall.ECONNREFUSED):
		return levelrail.Errorf(levelrail.ErrUnavailable, "nothing answers at %s", c.Where()).
			WithNext("systemctl status levelrail-server on the control plane's host")
	case errors.As(err, &unknown):
		return levelrail.Errorf(levelrail.ErrUnavailable, "the certificate of %s is signed by an unknown authority", c.Where()).
			WithNext("copy /api/v1/ca.pem from the control plane's host and name it with LEVELRAIL_CA_FILE")
	case errors.As(err, &host):
		return levelrail.Errorf(levelrail.ErrUnavailable, "the certificate of %s is for another name: %v", c.Where(), host)
	case errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout():
		if !dialled {
			return levelrail.Errorf(levelrail.ErrUnavailable, "%s does not answer", c.Where()).WithNext("check the address and the way to it")
		}
		if method == http.MethodGet {
			return levelrail.Errorf(levelrail.ErrTimeout, "%s did not answer %s %s in time", c.Where(), method, path).WithNext("try again")
		}
		return levelrail.Errorf(levelrail.ErrTimeout, "%s did not answer %s %s in time; whether it was done is unknown", c.Where(), method, path).
			WithNext("look before trying again: levelrail status")
	}
	return levelrail.Errorf(levelrail.ErrUnavailable, "the connection to %s broke: %v", c.Where(), err).WithNext("try again")
}
