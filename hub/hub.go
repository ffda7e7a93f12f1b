// Package hub is the client of the Hugging Face Hub and of mirrors that speak its API: what a repository is and holds,
// and its files. The server asks it for metadata, the agent's fetch for files.
//
// It promises that a file it finishes is the file that the repository's commit names (SHA-256, or git's own hash for
// small files), that a download cut off anywhere goes on where it stopped, that a token reaches the Hub's own host and no
// other, and that neither a token nor a signed address stands in any error. Each way to fail is a Kind of its own with
// one sentence and the next step.
//
// It keeps nothing between calls: what was learnt with one token is never used for another. Where files go, what else
// lies there and whether the disk has room is the agent's; which files of a repository an engine needs is engine's.
package hub

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/levelrail/levelrail"
)

// DefaultBaseURL is the Hub itself.
const DefaultBaseURL = "https://huggingface.co"

// Client asks one Hub, with or without a token. Its fields are set before first use; the zero value asks the Hub itself
// without a token. It may be used by several goroutines.
type Client struct {
	BaseURL   string        // empty: DefaultBaseURL; may have a path, as mirrors do
	Token     string        // empty: none. Outer white space is ignored
	HTTP      *http.Client  // nil: one with the environment's proxy and bounds on dialling and waiting for headers
	UserAgent string        // empty: levelrail and its version
	Timeout   time.Duration // of one metadata request, 0: 10 s (APP_HF_TIMEOUT)
	MaxBytes  int64         // of one metadata answer, 0: 16 MiB (APP_HF_MAX_RESPONSE_BYTES)
	Attempts  int           // tries without any progress before giving up, 0: 5
	Stall     time.Duration // how long a download may stand still before it is tried again, 0: 60 s

	wait func(context.Context, time.Duration) error // nil: real time
}

// maxWait is the longest wait that a client sits out for a Hub which says when to come back. A longer one is returned.
const maxWait = 5 * time.Minute

var defaultHTTP = &http.Client{Transport: &http.Transport{
	Proxy:                 http.ProxyFromEnvironment,
	DialContext:           (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
	TLSClientConfig:       &tls.Config{MinVersion: tls.VersionTLS12},
	TLSHandshakeTimeout:   10 * time.Second,
	ResponseHeaderTimeout: 60 * time.Second,
	IdleConnTimeout:       60 * time.Second,
	MaxIdleConnsPerHost:   4,
	ForceAttemptHTTP2:     true,
}}

var (
	repoName   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?$`)
	fullCommit = regexp.MustCompile(`^[0-9a-f]{40}$`)
)

// base is the Hub's address, checked.
func (c *Client) base() (*url.URL, error) {
	raw := c.BaseURL
	if raw == "" {
		raw = DefaultBaseURL
	}
	u, err := url.Parse(strings.TrimRight(raw, "/"))
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, &Error{Kind: ErrSettings, Message: "the Hub's address is not usable: it has to begin with http:// or https:// and name a host", Next: "set APP_HF_BASE_URL to an address such as " + DefaultBaseURL}
	}
	return u, nil
}

// path joins escaped segments below the base address.
func path(base *url.URL, segments ...string) string {
	u := *base
	u.RawQuery, u.Fragment = "", ""
	s := u.String()
	for _, seg := range segments {
		s += "/" + url.PathEscape(seg)
	}
	return s
}

// request makes a GET with the token.
func (c *Client) request(ctx context.Context, address string) (*http.Request, error) {
	token, err := CleanToken(c.Token)
	if err != nil {
		return nil, &Error{Kind: ErrBadToken, Message: "the Hub token is not usable: " + levelrailMessage(err), Next: "set the token again, as huggingface.co/settings/tokens shows it"}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, &Error{Kind: ErrSettings, Message: "the Hub's address is not usable", Next: "check APP_HF_BASE_URL"}
	}
	agent := c.UserAgent
	if agent == "" {
		agent = "levelrail/" + levelrail.Version
	}
	req.Header.Set("User-Agent", agent)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	return req, nil
}

// do sends a request and follows redirects itself in one respect: the token goes to the host it was meant for, which is
// scheme, name and port, and to nobody else. net/http alone would take it along to any subdomain, and the Hub's storage
// is one. look sees each answer, the redirects' too.
func (c *Client) do(req *http.Request, look func(http.Header) error) (*http.Response, error) {
	from := c.HTTP
	if from == nil {
		from = defaultHTTP
	}
	client := *from
	client.Timeout = 0 // the context bounds the whole, and for downloads the gap
	client.Jar = nil
	client.CheckRedirect = func(next *http.Request, via []*http.Request) error {
		if len(via) >= 10 {
			return &Error{Kind: ErrNotHub, Message: "the Hub redirects in a circle", Next: "check APP_HF_BASE_URL"}
		}
		first := via[0].URL
		if first.Scheme == "https" && next.URL.Scheme != "https" {
			return &Error{Kind: ErrNotHub, Message: "the Hub redirects from https to " + next.URL.Scheme + ", which is not followed", Next: "check APP_HF_BASE_URL"}
		}
		if next.URL.Scheme != first.Scheme || next.URL.Host != first.Host {
			next.Header.Del("Authorization")
			next.Header.Del("Referer")
		}
		if look != nil && next.Response != nil {
			return look(next.Response.Header)
		}
		return nil
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, failedToReach(req.URL.Host, err)
	}
	if look != nil {
		if err := look(resp.Header); err != nil {
			resp.Body.Close()
			return nil, err
		}
	}
	return resp, nil
}

// failedToReach gives a transport error its kind. The address in net/http's error is left out: after a redirect it is a
// signed one.
func failedToReach(host string, err error) error {
	var own *Error
	if errors.As(err, &own) {
		return own
	}
	var u *url.Error
	for errors.As(err, &u) {
		err = u.Err
	}
	var t interface{ Timeout() bool }
	switch {
	case errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &t) && t.Timeout():
		return &Error{Kind: ErrTimeout, Message: fmt.Sprintf("the Hub at %s did not answer in time", host), Next: networkNext, cause: err}
	}
	return &Error{Kind: ErrUnreachable, Message: fmt.Sprintf("the Hub at %s cannot be reached: %v", host, err), Next: networkNext, cause: err}
}

const networkNext = "check the network, HTTPS_PROXY and APP_HF_BASE_URL of this machine"

// tries runs f until it succeeds, fails for good, or has failed too often in a row without progress. f says whether it
// got further.
func (c *Client) tries(ctx context.Context, f func() (progress bool, err error)) error {
	most := c.Attempts
	if most <= 0 {
		most = 5
	}
	wait := c.wait
	if wait == nil {
		wait = sleep
	}
	for n := 1; ; n++ {
		progress, err := f()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var e *Error
		if !errors.As(err, &e) || !e.Kind.passes() {
			return err
		}
		if progress {
			n = 1
		}
		if n >= most {
			return err
		}
		pause := min(time.Second<<(n-1), 30*time.Second)
		pause += time.Duration(rand.Int64N(int64(pause)/4 + 1)) // many nodes fail at the same moment
		if e.After > 0 {
			pause = e.After
		}
		if pause > maxWait {
			return err
		}
		if err := wait(ctx, pause); err != nil {
			return err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

// text reads the beginning of an answer that is no success.
func text(resp *http.Response) string {
	b, err := io.ReadAll(io.LimitReader(resp.Body, 4096))
	if err != nil {
		return ""
	}
	return string(b)
}
