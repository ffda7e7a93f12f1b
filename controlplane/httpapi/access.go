package httpapi

import (
	"context"
	"net"
	"net/http"
	"os/user"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/listener"
	"github.com/levelrail/levelrail/raftstore/command"
)

// Door is one of the ways into the server. It decides who a caller can be.
type Door string

// The doors.
const (
	DoorAPI     Door = "api"     // the administrators' socket: who may open it may do everything
	DoorGateway Door = "gateway" // the gateways' socket
	DoorAgent   Door = "agent"   // the local agent's socket
	DoorTLS     Door = "tls"     // the network: a token decides
)

// access says who may use an operation.
type access struct {
	ability levelrail.Ability // what a person needs; empty: everybody, without a token
	doors   []Door
}

var (
	people   = []Door{DoorAPI, DoorTLS}
	watchers = []Door{DoorAPI, DoorTLS, DoorGateway, DoorAgent}
	agents   = []Door{DoorAgent}
	gateways = []Door{DoorGateway}
	anyone   = []Door{DoorAPI, DoorTLS, DoorGateway, DoorAgent}
)

// table is every operation of the API and who may use it. An operation that is not in it cannot be registered.
var table = map[string]access{
	"get-status":        {levelrail.AbilityRead, people},
	"list-models":       {levelrail.AbilityRead, people},
	"get-model":         {levelrail.AbilityRead, people},
	"deploy-model":      {levelrail.AbilityWriteSensitive, people},
	"update-model":      {levelrail.AbilityWriteSensitive, people},
	"delete-model":      {levelrail.AbilityWrite, people},
	"restart-model":     {levelrail.AbilityWrite, people},
	"rotate-engine-key": {levelrail.AbilityWriteSensitive, people},
	"rotate-key":        {levelrail.AbilityWriteSensitive, people},
	"set-hf-token":      {levelrail.AbilityWriteSensitive, people},
	"get-model-logs":    {levelrail.AbilityRead, people},
	"list-keys":         {levelrail.AbilityRead, people},
	"create-key":        {levelrail.AbilityWriteSensitive, people},
	"replace-key":       {levelrail.AbilityWriteSensitive, people},
	"revoke-key":        {levelrail.AbilityWrite, people},
	"get-usage":         {levelrail.AbilityRead, people},
	"list-requests":     {levelrail.AbilityRead, people},
	"cancel-request":    {levelrail.AbilityWrite, people},
	"explain-key":       {levelrail.AbilityRead, people},
	"list-weights":      {levelrail.AbilityRead, people},
	"delete-weights":    {levelrail.AbilityWrite, people},
	"list-nodes":        {levelrail.AbilityRead, people},
	"get-node":          {levelrail.AbilityRead, people},
	"list-tokens":       {levelrail.AbilityRoot, people},
	"create-token":      {levelrail.AbilityRoot, people},
	"revoke-token":      {levelrail.AbilityRoot, people},
	"create-backup":     {levelrail.AbilityRoot, people},
	"watch":             {levelrail.AbilityRead, watchers},
	"watch-post":        {levelrail.AbilityRead, watchers},
	"get-ca":            {"", anyone},
	"get-openapi":       {"", anyone},

	"gateway-usage":    {levelrail.AbilityWrite, gateways},
	"gateway-seen":     {levelrail.AbilityWrite, gateways},
	"gateway-answer":   {levelrail.AbilityWrite, gateways},
	"gateway-wake":     {levelrail.AbilityWrite, gateways},
	"gateway-activity": {levelrail.AbilityWrite, gateways},
	"gateway-leases":   {levelrail.AbilityWrite, gateways},
	"agent-hello":      {levelrail.AbilityWrite, agents},
	"agent-report":     {levelrail.AbilityWrite, agents},
	"agent-hf-token":   {levelrail.AbilityWriteSensitive, agents},
	"agent-logs":       {levelrail.AbilityWrite, agents},
}

// caller is who asks, and what for.
type caller struct {
	door      Door
	principal levelrail.Principal
	abilities []levelrail.Ability
	ability   levelrail.Ability // that the operation needs
	tokenHash string            // of a token
	uid       uint32            // of a user at the administrators' socket
	member    bool              // who may open it as one whom the group lists
}

type callerKey struct{}

func callerOf(ctx context.Context) caller {
	c, _ := ctx.Value(callerKey{}).(caller)
	return c
}

// by says on whose behalf a command is proposed. request is what the caller asked, for its idempotency key.
func (s *Server) by(ctx context.Context, key string, request ...string) command.By {
	c := callerOf(ctx)
	by := command.By{Principal: c.principal, Ability: c.ability, IdempotencyKey: key}
	if key != "" {
		// Keyed, because a request may hold a token and the hash is stored.
		by.RequestHash = s.o.Sealer.Derive(append([]string{"request"}, request...)...).Secret("h")[:66]
	}
	return by
}

type connKey struct{}

// ConnContext is for http.Server: it notes who is at the other end of a Unix socket.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	cred, ok := credentials(c)
	if !ok {
		return ctx
	}
	return context.WithValue(ctx, connKey{}, cred)
}

// credentials are whose process is at the other end of a Unix socket, as the kernel says.
func credentials(c net.Conn) (unix.Ucred, bool) {
	uc, ok := c.(*net.UnixConn)
	if !ok {
		return unix.Ucred{}, false
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return unix.Ucred{}, false
	}
	var cred *unix.Ucred
	if err := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil || cred == nil {
		return unix.Ucred{}, false
	}
	return *cred, true
}

// Peer is whose connection it is, as connections are counted: a user of this machine, or a network address.
func Peer(c net.Conn) string {
	if cred, ok := credentials(c); ok {
		return "uid " + strconv.FormatUint(uint64(cred.Uid), 10)
	}
	return listener.Address(c)
}

var names sync.Map // uid to user name; a machine has few

func userName(uid uint32) string {
	if n, ok := names.Load(uid); ok {
		return n.(string)
	}
	name := ""
	if u, err := user.LookupId(strconv.FormatUint(uint64(uid), 10)); err == nil {
		name = u.Username
	}
	names.Store(uid, name)
	return name
}

// identify finds out who asks. On a socket that is whoever could open it; on the network the token decides.
func (s *Server) identify(door Door, r *http.Request) (caller, error) {
	switch door {
	case DoorAPI:
		cred, ok := r.Context().Value(connKey{}).(unix.Ucred)
		if !ok {
			return caller{}, levelrail.Errorf(levelrail.ErrUnauthorized, "the other end of the socket cannot be told").WithNext("connect through the Unix socket itself")
		}
		return caller{door: door, abilities: []levelrail.Ability{levelrail.AbilityRoot}, uid: cred.Uid, member: cred.Uid != 0 && memberOf(administrators, cred.Uid),
			principal: levelrail.Principal{Kind: "socket", ID: "uid " + strconv.FormatUint(uint64(cred.Uid), 10), Name: userName(cred.Uid)}}, nil
	case DoorGateway:
		return caller{door: door, principal: levelrail.Principal{Kind: "gateway", ID: "local"}, abilities: []levelrail.Ability{levelrail.AbilityWrite}}, nil
	case DoorAgent:
		return caller{door: door, principal: levelrail.Principal{Kind: "node", ID: "local"}, abilities: []levelrail.Ability{levelrail.AbilityWriteSensitive}}, nil
	}
	return s.bearer(r)
}

func (s *Server) bearer(r *http.Request) (caller, error) {
	scheme, text, _ := strings.Cut(strings.TrimSpace(r.Header.Get("Authorization")), " ")
	text = strings.TrimSpace(text)
	if !strings.EqualFold(scheme, "bearer") || text == "" {
		return caller{}, levelrail.Errorf(levelrail.ErrUnauthorized, "this needs a token in the header Authorization: Bearer lrt-…")
	}
	return s.tokenCaller(levelrail.HashSecret(text))
}

// tokenCaller is the caller behind the hash of a token. What is wrong with a token is told only to who has it.
func (s *Server) tokenCaller(hash string) (caller, error) {
	d, err := s.o.Reader.Read()
	if err != nil {
		return caller{}, s.internal("look up the token", err)
	}
	for _, t := range d.Tokens {
		switch {
		case t.SHA256 != hash:
			continue
		case t.RevokedAt != nil:
			return caller{}, levelrail.Errorf(levelrail.ErrUnauthorized, "the token %s was revoked", t.Name)
		case t.ExpiresAt != nil && !s.o.Clock().Before(*t.ExpiresAt):
			return caller{}, levelrail.Errorf(levelrail.ErrUnauthorized, "the token %s expired at %s", t.Name, t.ExpiresAt.UTC().Format(time.RFC3339))
		}
		return caller{door: DoorTLS, abilities: t.Abilities, tokenHash: hash, principal: levelrail.Principal{Kind: "token", ID: t.ID, Name: t.Name}}, nil
	}
	return caller{}, levelrail.Errorf(levelrail.ErrUnauthorized, "the token is not one of this cluster's")
}
