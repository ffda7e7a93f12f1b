// Package hubstub stands in for the Hugging Face Hub: it speaks the Hub's own API over files of this machine, so that the
// real download code runs against it.
//
// It owns the Hub's answers: model information, file lists with paging, redirects to a content network on another
// address, checksums, gated and private repositories, tokens, refusals and rate limits with their headers. It promises
// that a token is never asked for by the content network and that one sent there fails the request. Package faults has
// what goes wrong on the way.
//
// What it leaves out: uploading, data sets and spaces, the Xet protocol, and licence pages.
package hubstub

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/levelrail/levelrail/test/engines/faults"
)

// Options shape a stand-in.
type Options struct {
	Repos  []Repo
	Tokens map[string]User // by token, as in "Authorization: Bearer TOKEN"
	// PageSize is how many entries a page of a file list has; 0 is the Hub's 1000.
	PageSize int
	// LinkLife is how long a link to the content network works; 0 is an hour.
	LinkLife time.Duration
}

// A User is who a token belongs to.
type User struct {
	Name        string
	MayRead     []string // ids of private repositories and of gated ones that this user was let into
	NoReadScope bool     // the token is valid, and not for reading repositories
}

// A Stub is a running stand-in. Its handlers may be served anywhere; CDN's address must be known to Hub, see SetCDN.
type Stub struct {
	HubFaults faults.Faults // on the API and on resolve
	CDNFaults faults.Faults // on the files

	opts  Options
	repos map[string]*repo // by id

	mu       sync.Mutex
	cdn      string // base URL
	requests []Request
	limits   map[string]int // requests left, by budget; absent is no limit
}

// A Request is one that reached the stand-in.
type Request struct {
	CDN    bool // on the content network, else on the Hub
	Method string
	Path   string // with the query
	Range  string // header
	Token  string // bearer token, or the whole Authorization header if it is another scheme
	Agent  string // User-Agent header
}

// New reads and hashes the files and returns a stand-in.
func New(opts Options) (*Stub, error) {
	if opts.PageSize == 0 {
		opts.PageSize = 1000
	}
	if opts.LinkLife == 0 {
		opts.LinkLife = time.Hour
	}
	s := &Stub{opts: opts, repos: map[string]*repo{}, limits: map[string]int{}}
	for _, r := range opts.Repos {
		loaded, err := load(r)
		if err != nil {
			return nil, fmt.Errorf("repository %s: %w", r.ID, err)
		}
		if s.repos[r.ID] != nil {
			return nil, fmt.Errorf("repository %s is there twice", r.ID)
		}
		s.repos[r.ID] = loaded
	}
	return s, nil
}

// Commit returns the full commit of a repository's main branch, "" if there is none.
func (s *Stub) Commit(id string) string {
	if r := s.repos[id]; r != nil {
		return r.commit
	}
	return ""
}

// SHA256 returns the checksum of a file in hexadecimal, "" if there is none.
func (s *Stub) SHA256(id, path string) string {
	if r := s.repos[id]; r != nil {
		if f := r.files[path]; f != nil {
			return f.sha256
		}
	}
	return ""
}

// SetCDN says under which base URL CDN is served, for example http://127.0.0.1:8100. Give it another host or port than
// the Hub has: a client must not take its token there.
func (s *Stub) SetCDN(base string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cdn = base
}

// LimitRequests leaves this many requests in a budget, api or resolvers, before 429.
func (s *Stub) LimitRequests(budget string, left int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limits[budget] = left
}

// Requests returns all requests so far, oldest first.
func (s *Stub) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Request(nil), s.requests...)
}

// LeakedTokens counts requests that brought a token to the content network. It must be 0.
func (s *Stub) LeakedTokens() (n int) {
	for _, r := range s.Requests() {
		if r.CDN && r.Token != "" {
			n++
		}
	}
	return n
}

// Serve serves the Hub and its content network on two listeners until one fails or both are closed.
func (s *Stub) Serve(hub, cdn net.Listener) error {
	s.SetCDN((&url.URL{Scheme: "http", Host: cdn.Addr().String()}).String())
	failed := make(chan error, 2)
	go func() { failed <- http.Serve(hub, s.Hub()) }()
	go func() { failed <- http.Serve(cdn, s.CDN()) }()
	return <-failed
}

// record keeps a request for the test to look at.
func (s *Stub) record(r *http.Request, cdn bool) {
	token := r.Header.Get("Authorization")
	if t, ok := bearer(r); ok {
		token = t
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, Request{
		CDN: cdn, Method: r.Method, Path: r.URL.RequestURI(), Range: r.Header.Get("Range"), Token: token, Agent: r.UserAgent(),
	})
}
