package levelrail

import "time"

// Reason is why a model is or is not ready. A model has one Ready condition, and its reason tells where it is.
type Reason string

// The reasons. Those of the first group pass by themselves; those of the second need something to be mended, and the
// model then starts by itself.
const (
	Pending     Reason = "Pending"     // accepted; no node has reported on it yet
	Starting    Reason = "Starting"    // the engine's unit is being made or started
	Downloading Reason = "Downloading" // the weights are on their way to the node
	Loading     Reason = "Loading"     // the engine is loading the weights
	ModelLoaded Reason = "ModelLoaded" // loaded and serving: the readiness signal
	Idle        Reason = "Idle"        // on demand, stopped after its idle time
	WakingUp    Reason = "WakingUp"    // on demand, starting after a wake
	WaitingGPU  Reason = "WaitingForGPU"
	Stopping    Reason = "Stopping" // being taken down

	NoGPUOnNode         Reason = "NoGPUOnNode"
	GPURuntimeMissing   Reason = "GPURuntimeMissing"
	InsufficientGPUs    Reason = "InsufficientGPUs"
	EngineNotInstalled  Reason = "EngineNotInstalled"  // the engine's program is not on the node
	EngineFailed        Reason = "EngineFailed"        // it crashes or refuses its input; the message has its last error
	InsufficientDisk    Reason = "InsufficientDisk"    // the weights do not fit the node's disk
	WeightsNotMounted   Reason = "WeightsNotMounted"   // the disk of the node's store of weights is missing
	DownloadFailed      Reason = "DownloadFailed"      // hub, file or checksum; tried again by itself
	HFTokenUnavailable  Reason = "HFTokenUnavailable"  // a Hub token is set and cannot be decrypted
	EndpointUnreachable Reason = "EndpointUnreachable" // the engine's socket cannot be reached from the gateway
	AssignmentRefused   Reason = "AssignmentRefused"   // the node's agent refuses what the server sent
	NodeOffline         Reason = "NodeOffline"         // the node's agent has not reported for a while
	NodeUnknown         Reason = "NodeUnknown"         // no such node has joined
)

// NeedsPerson tells whether a model with this reason waits for somebody: `--wait` ends with it and exit code 4.
func (r Reason) NeedsPerson() bool {
	switch r {
	case NoGPUOnNode, GPURuntimeMissing, InsufficientGPUs, EngineNotInstalled, EngineFailed, InsufficientDisk, WeightsNotMounted, DownloadFailed,
		HFTokenUnavailable, EndpointUnreachable, AssignmentRefused, NodeUnknown:
		return true
	}
	return false
}

// Condition is a model's Ready condition.
type Condition struct {
	Ready    bool      `json:"ready"`
	Reason   Reason    `json:"reason"`
	Message  string    `json:"message,omitempty"` // one sentence for people
	Next     string    `json:"next,omitempty"`    // the command or page that mends it
	Since    time.Time `json:"since"`
	Progress *Progress `json:"progress,omitempty"`
}

// Progress is how far a download or a load has come.
type Progress struct {
	Phase      string `json:"phase"`       // downloading, verifying, importing, loading
	DoneBytes  int64  `json:"done_bytes"`  // so far
	TotalBytes *int64 `json:"total_bytes"` // absent when unknown
	File       string `json:"file,omitempty"`
}
