// Package httpapi is the server's API: routes, who may use them, what they refuse, and the streams that agents, gateways
// and people follow.
//
// A handler decodes, calls one function, encodes. It promises that every refusal is wire.ErrorBody with a next step, that
// no answer but the one that makes a key or token holds its text, that each command carries who asked for it, and that a
// slow reader of a stream holds up nobody. The OpenAPI 3.1 document is made from the handlers (huma), so the two cannot
// differ. Deciding is reconcile's, wording is view's, remembering is raftstore's; sockets and TLS are opened by package
// controlplane.
package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"math"
	"net/http"
	"path"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
	"github.com/levelrail/levelrail/controlplane/lease"
	"github.com/levelrail/levelrail/controlplane/ledger"
	"github.com/levelrail/levelrail/controlplane/reconcile"
	"github.com/levelrail/levelrail/controlplane/seal"
	"github.com/levelrail/levelrail/controlplane/view"
	"github.com/levelrail/levelrail/listener"
	"github.com/levelrail/levelrail/raftstore"
	"github.com/levelrail/levelrail/raftstore/command"
)

// Store is what the API asks of the store. *raftstore.Store meets it, on disk and in memory.
type Store interface {
	Propose(ctx context.Context, by command.By, cmd command.Command) (command.Result, error)
	View(fn func(tx *raftstore.Tx) error) error
	Watch(ctx context.Context, after string, kinds ...levelrail.Kind) (*raftstore.Subscription, error)
	Backup(ctx context.Context, w io.Writer) error
	Status() raftstore.Status
}

// Reader reads what is stored. *stored.Reader meets it.
type Reader interface {
	Read() (*reconcile.Desired, error)
	ReadAt(ctx context.Context, index uint64) (*reconcile.Desired, error)
}

// Facts are what the API tells about its server.
type Facts struct {
	StartedAt   time.Time
	TLSAddress  string
	CAFile      string // where the authority's certificate lies on the server's host
	CAPEM       []byte
	Warnings    []string
	MadeKeyFile string // the master key's file, when this server made it by itself
}

// Options are what the API stands on.
type Options struct {
	Store  Store
	Reader Reader
	Ledger *ledger.Ledger
	Board  *view.Board
	Sealer *seal.Sealer
	World  func(d *reconcile.Desired) view.World
	Keys   func() KeyRules
	Facts  func() Facts
	Clock  func() time.Time
	Log    *slog.Logger
	Serves func(host string) bool // whether the TLS port has that name, beside its address

	Heartbeat      time.Duration // between heartbeats of a watch, default 10 s
	GatewayAnswers time.Duration // how long gateways are waited for, default 1 s
}

// Server answers the API. Handler gives the way in for each door.
type Server struct {
	o         Options
	mux       *http.ServeMux
	api       huma.API
	logs      *hub[*logSession]
	orders    *hub[struct{}] // to agents, about weights
	questions *hub[chan wire.Answer]
	leases    *lease.Book
	failures  listener.Failures
	openAPI   func() ([]byte, error)
	tied      tied
	stopping  chan struct{}
	stop      sync.Once
	ahead     struct {
		mu    sync.Mutex
		peers []string // that have followed the history further than the store goes
	}
	foreign struct {
		mu sync.Mutex
		at map[string]foreignPeer // peers of other clusters
	}
}

// New returns a server with all routes registered. It starts nothing.
func New(o Options) *Server {
	if o.Heartbeat == 0 {
		o.Heartbeat = heartbeat
	}
	if o.GatewayAnswers == 0 {
		o.GatewayAnswers = gatewayAnswers
	}
	s := &Server{o: o, mux: http.NewServeMux(), logs: newHub[*logSession](), orders: newHub[struct{}](), questions: newHub[chan wire.Answer](), stopping: make(chan struct{})}
	config := huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			Info: &huma.Info{Title: "Levelrail", Version: "1", Description: "The control plane's API. Every refusal has the same shape: a stable kind, a sentence, and what to do next. " +
				"Times are RFC 3339 in UTC, sizes are in bytes, durations in seconds; what is unknown is null or absent.",
				License: &huma.License{Name: "Apache-2.0", Identifier: "Apache-2.0"}},
			Servers: []*huma.Server{{URL: "https://127.0.0.1:7420", Description: "a control plane on this machine; /run/levelrail/api.sock answers the same without a token"}},
			Components: &huma.Components{
				Schemas:         huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer),
				SecuritySchemes: map[string]*huma.SecurityScheme{"token": {Type: "http", Scheme: "bearer", Description: "an API token, lrt-…: levelrail tokens create"}},
			},
		},
		Formats:                      map[string]huma.Format{"application/json": {Marshal: encode, Unmarshal: decode}},
		DefaultFormat:                "application/json",
		RejectUnknownQueryParameters: true,
	}
	s.leases = s.newLeases()
	s.openAPI = sync.OnceValues(s.document) // whoever reaches a listener may ask for it, and the routes do not change
	s.api = humago.New(s.mux, config)
	s.api.UseMiddleware(s.admit)
	s.routes()
	return s
}

func encode(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// decode reads one JSON document and nothing after it. Unknown fields are found by the schema. 90.0 is a whole number, as
// JSON Schema has it.
func decode(data []byte, v any) error {
	if !json.Valid(data) {
		return errors.New("this is not one JSON document")
	}
	err := json.Unmarshal(data, v)
	var wrong *json.UnmarshalTypeError
	if !errors.As(err, &wrong) || !strings.HasPrefix(wrong.Value, "number") {
		return err
	}
	var any any
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if d.Decode(&any) != nil {
		return err
	}
	whole, marshalErr := json.Marshal(wholeNumbers(any))
	if marshalErr != nil {
		return err
	}
	return json.Unmarshal(whole, v)
}

// wholeNumbers writes numbers without a fraction as integers.
func wholeNumbers(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = wholeNumbers(v[k])
		}
	case []any:
		for i := range v {
			v[i] = wholeNumbers(v[i])
		}
	case json.Number:
		if f, err := v.Float64(); err == nil && f == math.Trunc(f) && math.Abs(f) < 1<<53 {
			return json.Number(strconv.FormatInt(int64(f), 10))
		}
	}
	return v
}

// Stop ends all streams at once, so that a server can stop while they are followed.
func (s *Server) Stop() { s.stop.Do(func() { close(s.stopping) }) }

// operation registers an operation under what the table says of it.
func operation[I, O any](s *Server, id, method, route, summary string, h func(context.Context, *I) (*O, error), more ...func(*huma.Operation)) {
	a, ok := table[id]
	if !ok {
		panic("the operation " + id + " is not in the table of access")
	}
	op := huma.Operation{OperationID: id, Method: method, Path: "/api/v1" + route, Summary: summary, MaxBodyBytes: 128 << 10, BodyReadTimeout: 30 * time.Second}
	if a.ability != "" {
		op.Description = "Ability: " + string(a.ability) + "."
		op.Security = []map[string][]string{{"token": {}}}
	}
	op.Hidden = !slices.Contains(a.doors, DoorTLS)
	for _, m := range more {
		m(&op)
	}
	huma.Register(s.api, op, h)
}

// admit lets a request through to its handler when the table allows it.
func (s *Server) admit(ctx huma.Context, next func(huma.Context)) {
	r, w := humago.Unwrap(ctx)
	a := table[ctx.Operation().OperationID]
	door, _ := r.Context().Value(doorKey{}).(Door)
	if !slices.Contains(a.doors, door) {
		write(w, refuse(levelrail.Errorf(levelrail.ErrNotFound, "%s %s is not served here", r.Method, ctx.Operation().Path).WithNext("use the socket /run/levelrail/%s.sock", a.doors[0])))
		return
	}
	if ctx.Operation().OperationID == "agent-logs" {
		// A refusal must not wait for the end of a body that has none.
		w.Header().Set("Connection", "close")
	}
	c := caller{door: door}
	if a.ability != "" {
		var err error
		if c, err = s.identify(door, r); err == nil && !levelrail.Allows(c.abilities, a.ability) {
			err = levelrail.Errorf(levelrail.ErrForbidden, "%s may not do this: it needs the ability %s", c.principal, a.ability)
		}
		if err == nil && a.ability != levelrail.AbilityRead && (door == DoorAPI || door == DoorTLS) {
			err = s.storeGone()
		}
		if err != nil {
			if levelrail.KindOf(err) == levelrail.ErrUnauthorized {
				s.failed(w, r, door, err)
				w.Header().Set("WWW-Authenticate", `Bearer realm="levelrail"`)
			}
			write(w, refuse(err))
			return
		}
		c.ability = a.ability
	}
	lasts, release := s.tie(context.WithValue(ctx.Context(), callerKey{}, c), c)
	defer release()
	next(huma.WithContext(ctx, lasts))
}

type doorKey struct{}

// Handler answers what comes in by a door.
func (s *Server) Handler(door Door) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		out := &answer{ResponseWriter: w, body: r.ContentLength != 0}
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("X-Content-Type-Options", "nosniff")
		defer func() {
			if p := recover(); p != nil && p != http.ErrAbortHandler {
				s.o.Log.Error("a request ran into a fault of the server", "method", r.Method, "path", r.URL.Path, "fault", p, "stack", string(debug.Stack()))
				if out.status == 0 {
					write(out, refuse(errors.New("fault")))
				}
			}
			level := slog.LevelDebug
			if r.Method != http.MethodGet && r.Method != http.MethodHead && door != DoorAgent && door != DoorGateway {
				level = slog.LevelInfo
			}
			s.o.Log.Log(r.Context(), level, "request", "door", door, "method", r.Method, "path", r.URL.Path, "status", out.status, "took", time.Since(began).Round(time.Microsecond))
		}()
		if refused := s.strange(door, r); refused != nil {
			write(out, refused)
			return
		}
		s.route(out, r.WithContext(context.WithValue(r.Context(), doorKey{}, door)))
	})
}

// route finds the handler. What the mux itself refuses gets our shape of refusal.
func (s *Server) route(w http.ResponseWriter, r *http.Request) {
	if h, pattern := s.mux.Handler(r); pattern == "" || path.Clean(r.URL.Path) != r.URL.Path {
		probe := &discard{header: http.Header{}}
		if pattern == "" {
			h.ServeHTTP(probe, r)
		}
		if allow := probe.header.Get("Allow"); probe.status == http.StatusMethodNotAllowed {
			w.Header().Set("Allow", allow)
			write(w, refuse(&withStatus{http.StatusMethodNotAllowed, levelrail.Errorf(levelrail.ErrInvalid, "%s is not a method of %s", clip(r.Method), clip(r.URL.Path)).WithNext("use %s", allow)}))
			return
		}
		write(w, refuse(levelrail.Errorf(levelrail.ErrNotFound, "there is no %s in this API", clip(r.URL.Path)).WithNext("see /api/v1/openapi.json")))
		return
	}
	s.mux.ServeHTTP(w, r)
}

// answer remembers the status for the log.
type answer struct {
	http.ResponseWriter
	status int
	body   bool // the request has one
}

func (a *answer) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
	if a.body && status >= http.StatusBadRequest {
		// Else the server first reads the body that nobody wants, and the client that is still sending waits for its answer.
		a.Header().Set("Connection", "close")
	}
	a.ResponseWriter.WriteHeader(status)
}

func (a *answer) Write(b []byte) (int, error) {
	if a.status == 0 {
		a.status = http.StatusOK
	}
	return a.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

type discard struct {
	header http.Header
	status int
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) WriteHeader(status int)      { d.status = status }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }

// body is an answer with one document.
type body[T any] struct{ Body T }

// statusBody is an answer whose status depends on what was done.
type statusBody[T any] struct {
	Status int
	Body   T
}

// none is a request without parameters.
type none struct{}

// Named is a request about a model. It and the other parts of requests have upper-case names because huma passes over
// embedded parts that have not.
type Named struct {
	Name string `path:"name" maxLength:"128" doc:"the model's name"`
}

// Once is part of every request that writes.
type Once struct {
	IdempotencyKey string `header:"Idempotency-Key" maxLength:"128" doc:"A write that is sent again with the same key within a day is done once, and answered as the first time."`
}
