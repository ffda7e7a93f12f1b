package wire

import (
	"time"

	"github.com/levelrail/levelrail"
)

// Hello is an agent's first word. POST /api/v1/agent/hello on the agent's socket. The server answers with Welcome, or
// refused when the agent belongs to another cluster.
type Hello struct {
	NodeID    string           `json:"node_id"`
	Name      string           `json:"name"`
	ClusterID string           `json:"cluster_id,omitempty"` // the cluster the agent has served; empty at first
	Lineage   string           `json:"lineage,omitempty"`    // of the history that it last followed, see Welcome
	Term      uint64           `json:"term,omitempty"`       // the highest that it has seen in that history
	Version   string           `json:"version"`
	OS        string           `json:"os"` // such as "debian 14"
	Labels    levelrail.Labels `json:"labels,omitempty"`
}

// Welcome tells an agent whom it serves.
type Welcome struct {
	ClusterID string `json:"cluster_id"`
	Lineage   string `json:"lineage,omitempty"` // of the cluster's history: a restored backup begins another, whose terms count anew
	Term      uint64 `json:"term"`
	// Replaced are clusters that this one took the place of on its server, by a restored backup: their nodes are its own.
	Replaced []string `json:"replaced_clusters,omitempty"`
	// NodeID says that the agent is to go on as another node, the one that the cluster has of this machine, and to greet
	// again. It is said to an agent that has served no cluster, or a replaced one.
	NodeID   string            `json:"node_id,omitempty"`
	Settings map[string]string `json:"settings,omitempty"` // what the server hands to agents (APP_HF_BASE_URL)
}

// Assignment is what a node must run: one replica. POST /api/v1/watch?kinds=assignment with body WatchAgent.
type Assignment struct {
	Replica     string              `json:"replica"` // the unit's stem: chat, chat.1
	Model       string              `json:"model"`
	Number      int                 `json:"number"`
	Revision    int                 `json:"revision"`
	Restarts    int                 `json:"restarts"` // a higher count than the unit's restarts it
	Run         bool                `json:"run"`      // false: keep the weights, stop the engine
	Spec        levelrail.ModelSpec `json:"spec"`
	ServedNames []string            `json:"served_names"`
	Devices     []string            `json:"devices,omitempty"` // UUIDs; none: CPU
	EngineKey   string              `json:"engine_key"`        // secret: what the gateway will show the engine
	HubTokenSet bool                `json:"hf_token_set"`      // fetch it with GET /api/v1/agent/models/{model}/hf-token
	HubBaseURL  string              `json:"hf_base_url"`       // unless the agent's own setting says else
	Term        uint64              `json:"term"`
	Index       uint64              `json:"index"` // the store's position that this assignment is of
}

// WatchAgent is the body of an agent's watch.
type WatchAgent struct {
	NodeID string `json:"node_id"`
}

// HubToken answers GET /api/v1/agent/models/{model}/hf-token.
type HubToken struct {
	Token string `json:"hf_token"`
}

// Report is what an agent says of its node. POST /api/v1/agent/report: on each change, and every 10 seconds.
type Report struct {
	NodeID   string                    `json:"node_id"`
	Boot     string                    `json:"boot_id"` // of the agent's process
	Sequence uint64                    `json:"sequence"`
	At       time.Time                 `json:"at"` // the agent's clock
	Devices  []levelrail.Device        `json:"devices"`
	Readings []levelrail.DeviceReading `json:"readings"`
	GPUNote  string                    `json:"gpu_note,omitempty"` // why there are no devices: no driver, version mismatch
	Disk     *levelrail.DiskReading    `json:"disk"`
	Engines  []EngineStatus            `json:"engines"`
	Replicas []ReplicaStatus           `json:"replicas"`
	Weights  []levelrail.Weights       `json:"weights"` // sets that lie on the node; null: not known
}

// EngineStatus is one engine's program on a node.
type EngineStatus struct {
	Engine    string `json:"engine"`
	Installed bool   `json:"installed"`
	Program   string `json:"program,omitempty"`
	Version   string `json:"version,omitempty"`
	Next      string `json:"next,omitempty"` // how to install it on this distribution
}

// ReplicaStatus is how one replica stands on its node.
type ReplicaStatus struct {
	Replica    string              `json:"replica"`
	Model      string              `json:"model"`
	Revision   int                 `json:"revision"` // that the unit runs
	Restarts   int                 `json:"restarts"`
	Unit       string              `json:"unit"`
	UnitState  string              `json:"unit_state"` // systemd's ActiveState/SubState
	MainPID    int                 `json:"main_pid,omitempty"`
	NRestarts  int                 `json:"restarts_by_systemd"`
	Invocation string              `json:"invocation_id,omitempty"`
	Socket     string              `json:"socket,omitempty"` // the engine's Unix socket
	Condition  levelrail.Condition `json:"condition"`
	Compute    string              `json:"compute,omitempty"`
	DropIns    []string            `json:"drop_ins,omitempty"` // operator's changes in force
	// NotIsolated is what takes isolation away that the unit would give: PrivateNetwork=no (/etc/systemd/system/…).
	NotIsolated []string `json:"not_isolated,omitempty"`
	Notes       []string `json:"notes,omitempty"` // such as a lost local change of the unit file
}

// LogRequest asks an agent for a replica's journal. The agent answers with POST /api/v1/agent/logs/{id}, a body of lines
// (application/x-ndjson of LogLine) that it ends when it is done or the server closes it.
type LogRequest struct {
	ID     string `json:"id"`
	Model  string `json:"model"`
	Lines  int    `json:"lines"`
	Follow bool   `json:"follow"`
	Since  string `json:"since,omitempty"`
}

// WeightsOrder tells an agent to delete a set of weights. It does so unless something on its node uses the set; that it is
// gone is seen by the next report.
type WeightsOrder struct {
	ID   string `json:"id"`
	Name string `json:"name"` // the model that the set was fetched for
}

// LogLine is one line of a model's journal. GET /api/v1/models/{name}/logs?lines=&follow= streams them.
type LogLine struct {
	At       time.Time `json:"at"`
	Unit     string    `json:"unit"`
	Priority int       `json:"priority"`
	Message  string    `json:"message"`
}
