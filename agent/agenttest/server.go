package agenttest

import (
	"context"
	"encoding/json"
	"maps"
	"sync"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client"
	"github.com/levelrail/levelrail/client/wire"
)

// Server is a control plane that does as the test says.
type Server struct {
	mu          sync.Mutex
	cluster     string
	lineage     string
	replaced    []string // clusters that the server's took the place of
	takesFor    string   // the node that it takes another agent for
	term        uint64
	down        bool
	unsynced    bool
	assignments map[string]wire.Assignment
	logs        map[string]wire.LogRequest
	tokens      map[string]string
	tokenError  error
	reports     []wire.Report
	hellos      []wire.Hello
	lines       map[string][]wire.LogLine
	watchers    map[*watcher]bool
}

type watcher struct {
	lines chan wire.WatchLine
	end   context.CancelFunc
}

// NewServer returns a control plane of a cluster.
func NewServer(cluster string) *Server {
	return &Server{cluster: cluster, lineage: "first", term: 1, assignments: map[string]wire.Assignment{}, logs: map[string]wire.LogRequest{}, tokens: map[string]string{},
		lines: map[string][]wire.LogLine{}, watchers: map[*watcher]bool{}}
}

var errDown = levelrail.Errorf(levelrail.ErrUnavailable, "there is no control plane")

// Set makes the server up or down; going down ends the watches.
func (s *Server) Set(up bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = !up
	if !up {
		for w := range s.watchers {
			w.end()
		}
	}
}

// Restore gives the server another history, in which it has come to a term.
func (s *Server) Restore(lineage string, term uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lineage, s.term = lineage, term
}

// Replace puts the cluster of a restored backup in the place of the server's. It takes the agent of this machine for a node.
func (s *Server) Replace(cluster, node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replaced, s.cluster, s.takesFor = append(s.replaced, s.cluster), cluster, node
}

// Forget makes the server one that has nothing to say yet: it never says that it said everything.
func (s *Server) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.assignments, s.unsynced = map[string]wire.Assignment{}, true
}

// Become makes the server one of another cluster or term.
func (s *Server) Become(cluster string, term uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cluster, s.term = cluster, term
}

// Assign gives a replica to the node.
func (s *Server) Assign(a wire.Assignment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.Term == 0 {
		a.Term = s.term
	}
	s.assignments[a.Replica] = a
	s.tell(wire.WatchLine{Type: wire.WatchPut, Kind: wire.WatchAssignment, ID: a.Replica, Object: object(a)})
}

// Withdraw takes a replica from the node.
func (s *Server) Withdraw(replica string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.assignments, replica)
	s.tell(wire.WatchLine{Type: wire.WatchDelete, Kind: wire.WatchAssignment, ID: replica})
}

// SetToken sets what the Hub token of a model is, or why there is none.
func (s *Server) SetToken(model, token string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tokens[model], s.tokenError = token, err
}

// AskLogs sends a request for logs; Unask takes it back.
func (s *Server) AskLogs(q wire.LogRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.logs[q.ID] = q
	s.tell(wire.WatchLine{Type: wire.WatchPut, Kind: wire.WatchLogRequest, ID: q.ID, Object: object(q)})
}

// OrderWeights sends an order to delete a set of weights.
func (s *Server) OrderWeights(o wire.WeightsOrder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tell(wire.WatchLine{Type: wire.WatchPut, Kind: wire.WatchWeightsOrder, ID: o.ID, Object: object(o)})
}

// Unask takes a request for logs back.
func (s *Server) Unask(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.logs, id)
	s.tell(wire.WatchLine{Type: wire.WatchDelete, Kind: wire.WatchLogRequest, ID: id})
}

// Logs are the lines that came for a request.
func (s *Server) Logs(id string) []wire.LogLine {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]wire.LogLine(nil), s.lines[id]...)
}

// Reports are all reports so far.
func (s *Server) Reports() []wire.Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]wire.Report(nil), s.reports...)
}

// Hellos are all greetings so far.
func (s *Server) Hellos() []wire.Hello {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]wire.Hello(nil), s.hellos...)
}

func (s *Server) tell(line wire.WatchLine) {
	for w := range s.watchers {
		select {
		case w.lines <- line:
		default:
			w.end() // too slow; it comes back and reads everything
		}
	}
}

func object(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

// Hello greets an agent.
func (s *Server) Hello(_ context.Context, h wire.Hello) (wire.Welcome, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		return wire.Welcome{}, errDown
	}
	s.hellos = append(s.hellos, h)
	w := wire.Welcome{ClusterID: s.cluster, Lineage: s.lineage, Term: s.term, Replaced: s.replaced}
	if s.takesFor != "" && h.NodeID != s.takesFor {
		w.NodeID = s.takesFor
	}
	return w, nil
}

// Watch streams assignments and log requests.
func (s *Server) Watch(ctx context.Context, _ client.WatchOptions, each func(wire.WatchLine) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w := &watcher{lines: make(chan wire.WatchLine, 64), end: cancel}
	s.mu.Lock()
	if s.down {
		s.mu.Unlock()
		return errDown
	}
	s.watchers[w] = true
	first := []wire.WatchLine{{Type: wire.WatchReset}}
	for _, a := range maps.Clone(s.assignments) {
		first = append(first, wire.WatchLine{Type: wire.WatchPut, Kind: wire.WatchAssignment, ID: a.Replica, Object: object(a)})
	}
	for _, q := range s.logs {
		first = append(first, wire.WatchLine{Type: wire.WatchPut, Kind: wire.WatchLogRequest, ID: q.ID, Object: object(q)})
	}
	if !s.unsynced {
		first = append(first, wire.WatchLine{Type: wire.WatchSynced})
	}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.watchers, w)
		s.mu.Unlock()
	}()
	for _, line := range first {
		if err := each(line); err != nil {
			return err
		}
	}
	for {
		select {
		case <-ctx.Done():
			return errDown
		case line := <-w.lines:
			if err := each(line); err != nil {
				return err
			}
		}
	}
}

// Report takes a report.
func (s *Server) Report(_ context.Context, r wire.Report) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		return errDown
	}
	s.reports = append(s.reports, r)
	return nil
}

// HubToken gives a model's token.
func (s *Server) HubToken(_ context.Context, _, model string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tokenError != nil {
		return "", s.tokenError
	}
	return s.tokens[model], nil
}

// PostLogs takes lines.
func (s *Server) PostLogs(ctx context.Context, id string, write func(ctx context.Context, send func(wire.LogLine) error) error) error {
	return write(ctx, func(l wire.LogLine) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.lines[id] = append(s.lines[id], l)
		return nil
	})
}
