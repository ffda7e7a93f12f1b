package httpapi

import (
	"context"
	"os/user"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/levelrail/levelrail"
)

// recheckEvery is how often it is looked whether those whose requests are under way may still do what they began to do. A
// long response ends within this time, and a moment for its last line, after its principal has lost the right to it.
const recheckEvery = 500 * time.Millisecond

// tied are the requests under way whose principal can lose its access. Each has a context that ends with the reason, so no
// handler has to look by itself.
type tied struct {
	mu  sync.Mutex
	all map[*tie]struct{}
}

type tie struct {
	caller caller
	end    context.CancelCauseFunc
}

// tie returns a context that ends when the caller loses its access, with the error for it as the cause. release it when the
// request has ended.
func (s *Server) tie(ctx context.Context, c caller) (_ context.Context, release func()) {
	if c.tokenHash == "" && !c.member {
		return ctx, func() {} // root and the sockets of daemons: they have access for as long as they have the socket
	}
	ctx, end := context.WithCancelCause(ctx)
	t := &tie{c, end}
	s.tied.mu.Lock()
	defer s.tied.mu.Unlock()
	if s.tied.all == nil {
		s.tied.all = map[*tie]struct{}{}
	}
	s.tied.all[t] = struct{}{}
	return ctx, func() {
		s.tied.mu.Lock()
		delete(s.tied.all, t)
		s.tied.mu.Unlock()
		end(nil)
	}
}

// recheck ends the requests of those who may no longer do what they began.
func (s *Server) recheck() {
	s.tied.mu.Lock()
	defer s.tied.mu.Unlock()
	type question struct {
		token   string
		uid     uint32
		ability levelrail.Ability
	}
	known := map[question]error{}
	for t := range s.tied.all {
		q := question{t.caller.tokenHash, t.caller.uid, t.caller.ability}
		err, asked := known[q]
		if !asked {
			err = s.stillMay(t.caller)
			known[q] = err
		}
		if err != nil {
			t.end(err)
			delete(s.tied.all, t)
		}
	}
}

// stillMay is nil while a caller may go on.
func (s *Server) stillMay(c caller) error {
	if c.tokenHash == "" {
		if memberOf(administrators, c.uid) {
			return nil
		}
		return levelrail.Errorf(levelrail.ErrForbidden, "%s is no longer in the group %s", c.principal, administrators).
			WithNext("as root: adduser %s %s, then log in again", c.principal.Name, administrators)
	}
	now, err := s.tokenCaller(c.tokenHash)
	switch {
	case err != nil && levelrail.KindOf(err) != levelrail.ErrUnauthorized:
		return nil // the store cannot be read for a moment: that takes no right away
	case err != nil:
		return err
	case !levelrail.Allows(now.abilities, c.ability):
		return levelrail.Errorf(levelrail.ErrForbidden, "%s may no longer do this: it needs the ability %s", c.principal, c.ability)
	}
	return nil
}

// administrators is the group that may open the socket api.sock.
const administrators = "levelrail"

// memberOf tells whether /etc/group has a user in a group.
func memberOf(group string, uid uint32) bool {
	g, err := user.LookupGroup(group)
	if err != nil {
		return false
	}
	u, err := user.LookupId(strconv.FormatUint(uint64(uid), 10))
	if err != nil {
		return false
	}
	ids, err := u.GroupIds()
	return err == nil && slices.Contains(ids, g.Gid)
}

// ended is why a request's context ended: the reason for which its principal lost it, or that its client left.
func ended(ctx context.Context) error { return context.Cause(ctx) }
