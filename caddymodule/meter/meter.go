// Package meter is the seam between serving a request and counting it, and it does the counting.
//
// Every request ends in exactly one Record: a finished one, a refused one, one whose client left or whose engine died.
// Whoever counts or logs is a Sink. A Record holds no key, body, query or client-chosen path.
//
// Meter is the Sink that sums records by hour, key and model and brings the sums to the control plane in numbered batches.
// A batch is on disk before it is sent and stays there until it is accepted, so a crash of either side neither loses nor
// repeats one; what is lost with a gateway is what it has counted since its last flush. Nothing on the request path waits
// for the disk or the network.
package meter

import (
	"time"

	"github.com/levelrail/levelrail"
)

// Record is one request, told after its end.
type Record struct {
	RequestID string
	Method    string // GET, POST; "other" for what HTTP does not define
	Route     string // the table's path, or "" when nothing is served there
	Model     string // the model's own name, once known
	KeyID     string
	KeyPrefix string
	Owner     levelrail.Owner
	Tags      []string
	Status    int       // sent to the client; 499 when it left before an answer began
	Code      string    // of a refusal, such as invalid_api_key
	Client    string    // of a refusal: the address that it went to
	Quiet     bool      // one of many that failed to authenticate: counted, and without a line of its own
	End       End       //
	Start     time.Time //
	Duration  time.Duration
	FirstByte time.Duration // until the engine's first byte of the body; 0: none came
	Bytes     int64         // of the answer's body
	HasUsage  bool          // the answer said what it cost, all of it
	Partial   bool          // it said so for a part of what it gave only; Input and Output are that part
	Input     int64         // tokens
	Output    int64
	Estimated int64 // tokens that the key's limits were charged with where the answer did not say all of it; else 0
}

// End is how a request ended.
type End string

// The ends of a request.
const (
	Complete      End = "complete"       // answered to the end
	Refused       End = "refused"        // by the gateway's checks
	ClientGone    End = "client_gone"    // the client left; the engine was told
	EngineGone    End = "engine_gone"    // the engine closed before the end of its answer
	EngineError   End = "engine_error"   // the engine said in a stream that it failed
	DialFailed    End = "dial_failed"    // the engine could not be reached
	HeaderTimeout End = "header_timeout" // the engine did not begin to answer
	GapTimeout    End = "gap_timeout"    // the engine fell silent in its answer
	Cancelled     End = "cancelled"      // an operator ended it
	Panic         End = "panic"          // a mistake of the gateway's
)

// Sink takes records. Record returns quickly and may be called from many goroutines.
type Sink interface{ Record(Record) }

// Sinks hands each record to several sinks, in order.
type Sinks []Sink

// Record hands on.
func (s Sinks) Record(r Record) {
	for _, sink := range s {
		sink.Record(r)
	}
}
