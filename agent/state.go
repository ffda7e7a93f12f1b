package agent

import (
	"context"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/agent/fetch"
	"github.com/levelrail/levelrail/agent/gpu"
	"github.com/levelrail/levelrail/agent/units"
	"github.com/levelrail/levelrail/client/wire"
	"github.com/levelrail/levelrail/engine"
	"github.com/levelrail/levelrail/systemd"
)

// state is all that the agent knows. The goroutine of Run owns it.
type state struct {
	assignments map[string]wire.Assignment // by replica: what the control plane wants
	refused     map[string]error           // by id: assignments that cannot be kept under their name
	synced      bool                       // it has said everything once; until then nothing is taken away

	want    map[string]Want
	have    map[string]Have
	fetches map[string]Fetch
	tracks  map[string]*track
	orders  map[string]*order // fetches by model

	gpus       gpu.Snapshot
	gpusRead   bool
	sets       map[string]fetch.Manifest // finished weights by model
	storeLack  *Lack                     // why the store of weights is not to be used
	storeMount string                    // what it lay on when the agent started
	logs       map[string]func()         // running log requests by id, and how to end them
	began      time.Time

	sequence   uint64
	lastReport time.Time
	lastSent   []byte
	engines    []wire.EngineStatus
	enginesAt  time.Time
}

func newState() *state {
	return &state{assignments: map[string]wire.Assignment{}, refused: map[string]error{}, want: map[string]Want{}, have: map[string]Have{}, fetches: map[string]Fetch{},
		tracks: map[string]*track{}, orders: map[string]*order{}, logs: map[string]func(){}, began: time.Now()}
}

// Want is what this node has to run for one replica, worked out from the assignment and from what the node has.
type Want struct {
	Assignment wire.Assignment
	Hash       string // of all that decides the process
	Lack       *Lack  // what the node lacks; then there are no units
	Missing    string // why the weights are not there, "" when they are; with them missing there are no units
	FetchKey   string // names the order to bring them
	Program    string // of the engine
	Files      []levelrail.WeightsFile
	Units      []Text // the engine's unit first, then its door's socket and service
	// KeyVariable is the environment variable by which the engine takes its key; empty when it reads a file.
	KeyVariable string
}

// Text is one unit file as it should be.
type Text struct{ Name, Text string }

// Lack is something that the node does not have and that somebody has to mend.
type Lack struct {
	Reason  levelrail.Reason
	Message string
	Next    string
}

// Have is what is there of one replica.
type Have struct {
	Replica string
	Files   map[string]File // its unit files, by unit
	Applied *Applied        // what they were written from
	Enabled bool            // comes back at boot
	Engine  units.State
	Socket  units.State // of the door, where the engine has one
	Door    units.State
	Busy    bool      // a step is on its way
	Hold    time.Time // no further start of the same before this
}

// File is a unit file with the agent's mark.
type File struct {
	Marks  systemd.Marks
	Text   string
	Intact bool // as the agent wrote it
}

// Applied is the assignment that a replica's unit was written from. It is kept on disk, for the agent alone, so that the
// next agent can speak to the engine before it has heard from the control plane.
type Applied struct {
	Assignment wire.Assignment         `json:"assignment"`
	Hash       string                  `json:"hash"`
	Program    string                  `json:"program"`
	Files      []levelrail.WeightsFile `json:"files,omitempty"`
}

// Fetch is what is there of bringing one model's weights.
type Fetch struct {
	There bool // its unit file or directory
	State units.State
	Key   string // of the order
	Known bool   // it has said how it stands
	Said  fetch.State
	Busy  bool
	Long  bool      // what it is busy with may take long, and can be given up
	Hold  time.Time // no further try of the same before this
}

// track is what the agent remembers of a replica between two looks.
type track struct {
	busy     string // the step on its way
	probe    *prober
	found    engine.Readiness // by the probe of the run named
	foundRun string
	served   int    // systemd's count of restarts when it last served
	serving  bool   // the run named has served
	answered bool   // the run named has been asked at least once
	compute  string // what the engine computes on, of the run named
	computed string // the run that compute was read of

	ended     units.State // how the last run that was seen to end did
	diagnosed string      // the run that reason and message are of
	reason    levelrail.Reason
	message   string
	reading   bool // the journal is being read

	hold    time.Time // no further start of holdHash before this
	holdFor string
	tries   int   // starts that failed in a row
	err     error // how the last step failed

	condition levelrail.Condition
	judged    string // the revision and count of restarts that condition is about
}

// order is what the agent remembers of bringing a model's weights.
type order struct {
	busy     string
	cancel   context.CancelFunc  // gives up the step on its way; nil: it cannot be, or was
	progress *levelrail.Progress // of the step on its way
	hold     time.Time           // no further try of holdFor before this
	key      string
	tries    int
	err      *fetch.Failure // why the last step failed before there was a fetch to ask
	seen     string         // the outcome that hold was worked out from
}

func (o *order) giveUp() {
	if o.cancel != nil {
		o.cancel()
		o.cancel = nil
	}
}

func (s *state) track(replica string) *track {
	t := s.tracks[replica]
	if t == nil {
		t = &track{}
		s.tracks[replica] = t
	}
	return t
}

func (s *state) order(model string) *order {
	o := s.orders[model]
	if o == nil {
		o = &order{}
		s.orders[model] = o
	}
	return o
}

// mostRefused is how many refused assignments are reported; the log has all.
const mostRefused = 16

// refuse keeps why an assignment is not followed, for the report.
func (s *state) refuse(id string, err error) {
	if _, known := s.refused[id]; known || len(s.refused) < mostRefused {
		s.refused[id] = err
	}
}

// moving tells that something is on its way, so that looking again soon is worth it.
func (s *state) moving() bool {
	for _, t := range s.tracks {
		if t.busy != "" || t.reading {
			return true
		}
	}
	for _, o := range s.orders {
		if o.busy != "" {
			return true
		}
	}
	for _, f := range s.fetches {
		if f.State.Running() {
			return true
		}
	}
	for r, w := range s.want {
		h := s.have[r]
		if w.Assignment.Run && w.Lack == nil && w.Missing == "" && s.track(r).condition.Reason != levelrail.ModelLoaded && h.Engine.Running() {
			return true
		}
	}
	return false
}

// world is what the decision is made from.
func (s *state) world(now time.Time) World {
	return World{Synced: s.synced, Now: now, Want: s.want, Have: s.have, Fetches: s.fetches}
}

// newcomer is how long an agent that has just started may keep its first report back.
const newcomer = 5 * time.Second

// knows tells that the agent can say how the node stands: it has heard what is wanted, and every engine that runs has been
// asked once. A report before that would call engines that serve dead.
func (s *state) knows(now time.Time) bool {
	if !s.synced {
		return false
	}
	if now.Sub(s.began) > newcomer {
		return true
	}
	for r, h := range s.have {
		if h.Engine.Up() && !s.track(r).answered {
			return false
		}
	}
	return true
}
