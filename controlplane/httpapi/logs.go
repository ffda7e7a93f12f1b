package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

const (
	agentAnswers = 10 * time.Second // within which an agent begins to send what it was asked for
	longestLine  = 1 << 20          // bytes of a journal line in JSON
	defaultLines = 100
)

// logSession is one reading of a model's journal, which the agent of its node has. The watch asks for it as log_request.
type logSession struct {
	lines  chan wire.LogLine
	taken  chan struct{} // closed when the agent begins to send
	take   sync.Once
	ended  chan error      // the agent's end: nil when it has sent everything
	reader context.Context // ends when nobody reads any more
}

type logWish struct {
	Named
	Lines  int    `query:"lines" minimum:"1" maximum:"100000" default:"100" doc:"the newest so many"`
	Follow bool   `query:"follow" doc:"go on with new ones"`
	Since  string `query:"since" maxLength:"64" pattern:"^[0-9A-Za-z :+.-]*$" doc:"as journalctl takes it"`
}

// getLogs asks the agent of the model's node for its journal and passes the lines on.
func (s *Server) getLogs(ctx context.Context, in *logWish) (*streamed, error) {
	d, err := s.read()
	if err != nil {
		return nil, err
	}
	m, ok := d.Model(in.Name)
	if !ok {
		return nil, notFoundModel(in.Name)
	}
	replicas := d.ReplicasOf(m.Name)
	if len(replicas) == 0 || len(replicas[0].Shards) == 0 {
		return nil, levelrail.Errorf(levelrail.ErrUnavailable, "%s is on no node yet, so it has no journal", m.Name).WithNext("levelrail models get %s says what it waits for", m.Name)
	}
	node := d.Nodes[replicas[0].Shards[0].NodeID]
	if r, heard := s.o.Ledger.Snapshot().Nodes[node.ID]; !heard || !r.Online {
		return nil, offline(m.Name, node)
	}
	if in.Lines == 0 {
		in.Lines = defaultLines
	}
	ctx, cancel := context.WithCancel(ctx)
	session := &logSession{lines: make(chan wire.LogLine), taken: make(chan struct{}), ended: make(chan error, 1), reader: ctx}
	r := wire.LogRequest{ID: levelrail.NewID("log"), Model: m.Name, Lines: in.Lines, Follow: in.Follow, Since: in.Since}
	takeBack, err := s.logs.put(node.ID, r.ID, r, session)
	end := func() { cancel(); takeBack() }
	if err != nil {
		cancel()
		return nil, s.internal("ask for the journal", err)
	}
	select {
	case <-session.taken:
	case <-time.After(agentAnswers):
		end()
		return nil, offline(m.Name, node)
	case <-s.stopping:
		end()
		return nil, levelrail.Errorf(levelrail.ErrUnavailable, "the server is stopping")
	case <-ctx.Done():
		end()
		return nil, ended(ctx)
	}
	return &streamed{Body: func(hc huma.Context) {
		defer end()
		out := startStream(hc)
		defer out.close()
		if err := s.passLines(out, session); err != nil {
			out.fail(err, func(e levelrail.Error) any { return wire.ErrorBody{Error: e} })
		}
	}}, nil
}

func offline(model string, node levelrail.Node) *levelrail.Error {
	return levelrail.Errorf(levelrail.ErrUnavailable, "the agent of the node %s, which has the journal of %s, does not answer", node.Name, model).
		WithNext("on %s: journalctl -u 'levelrail-model-%s.*' -u levelrail-fetch-%s, and systemctl status levelrail-agent", node.Name, model, model)
}

func (s *Server) passLines(out *stream, session *logSession) error {
	if err := out.send(true); err != nil {
		return err
	}
	for {
		select {
		case line := <-session.lines:
			// More lines may be waiting: what is sent together is flushed together.
			if err := out.send(false, line); err != nil {
				return err
			}
			for more := true; more; {
				select {
				case line := <-session.lines:
					if err := out.send(false, line); err != nil {
						return err
					}
				default:
					more = false
				}
			}
			if err := out.send(true); err != nil {
				return err
			}
		case err := <-session.ended:
			return err
		case <-s.stopping:
			return levelrail.Errorf(levelrail.ErrUnavailable, "the server is stopping").WithNext("ask again in a few seconds")
		case <-out.ctx.Done():
			return ended(out.ctx)
		}
	}
}

// agentLogs takes the lines of an agent. It ends when the agent has sent everything, or nobody reads any more.
func (s *Server) agentLogs(_ context.Context, in *struct {
	ID string `path:"id" maxLength:"64"`
}) (*streamed, error) {
	asked := s.logs.find(in.ID)
	if asked == nil {
		return nil, levelrail.Errorf(levelrail.ErrNotFound, "nobody waits for the lines %q", clip(in.ID)).WithNext("stop sending them")
	}
	session := asked.answer
	first := false
	session.take.Do(func() { first = true; close(session.taken) })
	if !first {
		return nil, levelrail.Errorf(levelrail.ErrConflict, "the lines %q are being sent already", clip(in.ID)).WithNext("stop sending them")
	}
	return &streamed{Body: func(hc huma.Context) {
		r, w := humago.Unwrap(hc)
		rc := http.NewResponseController(w)
		rc.EnableFullDuplex() // answer before the body has ended, when the reader leaves first
		rc.SetReadDeadline(time.Time{})
		done := make(chan error, 1)
		go func() { done <- s.takeLines(r, session) }()
		var err error
		select {
		case err = <-done:
		case <-session.reader.Done():
		case <-s.stopping:
		}
		session.ended <- err
		// The rest of a body that nobody wants is not read: the connection ends with the answer.
		w.Header().Set("Connection", "close")
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusOK)
		w.Write([]byte("{}\n"))
	}}, nil
}

func (s *Server) takeLines(r *http.Request, session *logSession) error {
	scan := bufio.NewScanner(r.Body)
	scan.Buffer(make([]byte, 0, 64<<10), longestLine)
	for scan.Scan() {
		if len(bytes.TrimSpace(scan.Bytes())) == 0 {
			continue
		}
		var line wire.LogLine
		if err := json.Unmarshal(scan.Bytes(), &line); err != nil {
			return levelrail.Errorf(levelrail.ErrInternal, "the agent sent a line that cannot be read").WithNext("compare the versions of the agent and the server: levelrail status")
		}
		select {
		case session.lines <- line:
		case <-session.reader.Done():
			return nil
		case <-s.stopping:
			return nil
		}
	}
	if scan.Err() != nil {
		return levelrail.Errorf(levelrail.ErrUnavailable, "the agent's connection broke before the end of the journal").WithNext("ask again")
	}
	return nil
}
