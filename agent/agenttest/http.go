package agenttest

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client"
	"github.com/levelrail/levelrail/client/wire"
)

// Handler serves what the server says as the control plane's HTTP routes for agents, so that a real agent can be run
// against it.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /api/v1/agent/hello", func(w http.ResponseWriter, r *http.Request) {
		var h wire.Hello
		if !decode(w, r, &h) {
			return
		}
		welcome, err := s.Hello(r.Context(), h)
		reply(w, welcome, err)
	})
	mux.HandleFunc("POST /api/v1/agent/report", func(w http.ResponseWriter, r *http.Request) {
		var report wire.Report
		if !decode(w, r, &report) {
			return
		}
		reply(w, struct{}{}, s.Report(r.Context(), report))
	})
	mux.HandleFunc("GET /api/v1/agent/models/{model}/hf-token", func(w http.ResponseWriter, r *http.Request) {
		token, err := s.HubToken(r.Context(), r.FormValue("node_id"), r.PathValue("model"))
		reply(w, wire.HubToken{Token: token}, err)
	})
	mux.HandleFunc("POST /api/v1/agent/logs/{id}", func(w http.ResponseWriter, r *http.Request) {
		for d := json.NewDecoder(r.Body); ; {
			var line wire.LogLine
			if d.Decode(&line) != nil {
				break
			}
			s.mu.Lock()
			s.lines[r.PathValue("id")] = append(s.lines[r.PathValue("id")], line)
			s.mu.Unlock()
		}
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("POST /api/v1/watch", func(w http.ResponseWriter, r *http.Request) {
		for k := range strings.SplitSeq(r.FormValue("kinds"), ",") {
			if !slices.Contains([]string{wire.WatchAssignment, wire.WatchLogRequest, wire.WatchWeightsOrder}, k) {
				reply(w, nil, levelrail.Errorf(levelrail.ErrForbidden, "an agent may not watch %q", k))
				return
			}
		}
		enc := json.NewEncoder(w)
		send := func(line wire.WatchLine) error {
			if err := enc.Encode(line); err != nil {
				return err
			}
			return http.NewResponseController(w).Flush()
		}
		lines := make(chan wire.WatchLine)
		ended := make(chan error, 1)
		go func() {
			ended <- s.Watch(r.Context(), client.WatchOptions{}, func(line wire.WatchLine) error {
				select {
				case lines <- line:
					return nil
				case <-r.Context().Done():
					return r.Context().Err()
				}
			})
		}()
		beat := time.NewTicker(10 * time.Second)
		defer beat.Stop()
		for {
			var err error
			select {
			case line := <-lines:
				err = send(line)
			case <-beat.C:
				err = send(wire.WatchLine{Type: wire.WatchHeartbeat})
			case <-ended:
				return
			}
			if err != nil {
				return
			}
		}
	})
	return mux
}

func decode(w http.ResponseWriter, r *http.Request, into any) bool {
	if err := json.NewDecoder(r.Body).Decode(into); err != nil {
		reply(w, nil, levelrail.Errorf(levelrail.ErrInvalid, "%s %s: %v", r.Method, r.URL.Path, err))
		return false
	}
	return true
}

func reply(w http.ResponseWriter, v any, err error) {
	var e *levelrail.Error
	switch {
	case errors.As(err, &e):
		w.WriteHeader(e.Kind.Status())
		v = wire.ErrorBody{Error: *e}
	case err != nil:
		w.WriteHeader(http.StatusInternalServerError)
		v = wire.ErrorBody{Error: levelrail.Error{Kind: levelrail.ErrInternal, Message: err.Error()}}
	}
	if err := json.NewEncoder(w).Encode(v); err != nil {
		return // the agent is gone
	}
}
