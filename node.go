package levelrail

import (
	"strconv"
	"strings"
	"time"
)

// Node is a machine with an agent. What it says again within seconds (readings, unit states) is not part of it.
type Node struct {
	ID        string            `json:"id"`   // node_ and 128 random bits, kept by the agent
	Name      string            `json:"name"` // host name
	Local     bool              `json:"local"`
	PublicKey string            `json:"public_key,omitempty"`
	Labels    map[string]Labels `json:"labels,omitempty"` // by source: agent, operator, cloud
	Devices   []Device          `json:"devices"`          // as of the last change, readings left out
	Drained   bool              `json:"drained,omitempty"`
	Version   string            `json:"version"` // of its agent
	OS        string            `json:"os"`      // such as "debian 14"
	Owner     Owner             `json:"owner"`
	Stamp     Stamp             `json:"stamp"`
}

// Labels are key and value pairs that one source gave to a node.
type Labels map[string]string

func (Node) ObjectKind() Kind   { return KindNode }
func (n Node) ObjectID() string { return n.ID }

// Device is one GPU or one MIG instance of a node.
type Device struct {
	UUID        string `json:"uuid"` // "GPU-3f1c…" or "MIG-…"; survives reboots, which the index does not
	Index       int    `json:"index"`
	Kind        string `json:"kind"`             // card, mig
	Parent      string `json:"parent,omitempty"` // the card's UUID, for an instance
	Class       string `json:"class"`            // such as "NVIDIA H200"
	MemoryBytes *int64 `json:"memory_bytes"`     // absent when the driver does not say
}

// DeviceReading is one reading of one device. Every figure may be absent: unknown is not 0.
type DeviceReading struct {
	UUID       string    `json:"uuid"`
	UsedBytes  *int64    `json:"used_bytes"`
	FreeBytes  *int64    `json:"free_bytes"`
	Busy       *int      `json:"busy_percent"`
	TempC      *int      `json:"temperature_celsius"`
	PowerWatts *float64  `json:"power_watts"`
	At         time.Time `json:"at"`
}

// DiskReading is the space of the file system that holds the node's weights.
type DiskReading struct {
	Path       string `json:"path"`
	TotalBytes int64  `json:"total_bytes"`
	FreeBytes  int64  `json:"free_bytes"`
}

// Replica is one engine of a model. It names the revision it runs and is a list of shards; this release has one
// replica of one shard per model.
type Replica struct {
	ID        string    `json:"id"` // the unit's stem: chat, chat.1
	Model     string    `json:"model"`
	Number    int       `json:"number"`   // 0, 1, 2…
	Revision  int       `json:"revision"` // of the model
	Restarts  int       `json:"restarts"` // the model's count that this replica has been given
	Run       bool      `json:"run"`      // false: asleep, or about to be removed
	Shards    []Shard   `json:"shards"`
	EngineKey SecretRef `json:"engine_key"` // what the gateway shows the engine
	Owner     Owner     `json:"owner"`
	Stamp     Stamp     `json:"stamp"`
}

func (Replica) ObjectKind() Kind   { return KindReplica }
func (r Replica) ObjectID() string { return r.ID }

// ReplicaID is the stem of a replica's unit and socket directory: the model's name, with .N from the second on.
func ReplicaID(model string, number int) string {
	if number == 0 {
		return model
	}
	return model + "." + strconv.Itoa(number)
}

// Shard is the part of a replica that runs on one node.
type Shard struct {
	NodeID        string   `json:"node_id"`
	ReservationID string   `json:"reservation_id"`
	Devices       []string `json:"devices,omitempty"` // UUIDs
	Compute       string   `json:"compute,omitempty"` // what the engine said it computes on: cpu, CUDA0…; observed
}

// Reservation is the GPUs and memory promised to an owner of any kind: a model now, an app or picture engine later.
type Reservation struct {
	ID        string     `json:"id"`   // res_…
	For       string     `json:"for"`  // model:chat, app:web
	Want      GPURequest `json:"want"` // as asked
	NodeID    string     `json:"node_id"`
	Devices   []string   `json:"devices"`      // as assigned, UUIDs; none on CPU
	Bytes     *int64     `json:"memory_bytes"` // per device where known
	Owner     Owner      `json:"owner"`
	CreatedAt time.Time  `json:"created_at"`
}

func (Reservation) ObjectKind() Kind   { return KindReservation }
func (r Reservation) ObjectID() string { return r.ID }

// GPURequest is the union of ways to ask for GPUs: everything the node has (Mode all), a count, device ids, or none by
// wish. Mode unset means not said, which asks for all and is NoGPUOnNode on a node without GPUs.
type GPURequest struct {
	Mode    GPUMode  `json:"mode,omitempty"`
	Count   int      `json:"count,omitempty"`   // for Mode count, 1 or more
	Devices []string `json:"devices,omitempty"` // for Mode devices: index or UUID
}

// GPUMode says which arm of the union is used.
type GPUMode string

// The arms of a request for GPUs.
const (
	GPUUnset   GPUMode = ""
	GPUAll     GPUMode = "all"
	GPUCount   GPUMode = "count"
	GPUDevices GPUMode = "devices"
	GPUNone    GPUMode = "none"
)

// ParseGPUs reads what an operator writes: "", all, none, a count, or a comma list of UUIDs or #INDEX. Device indexes
// alone are told from a count by the second argument (the flag --gpu-devices).
func ParseGPUs(count, devices string) (GPURequest, error) {
	count, devices = strings.TrimSpace(count), strings.TrimSpace(devices)
	if devices != "" {
		if count != "" {
			return GPURequest{}, &Error{Kind: ErrInvalid, Message: "--gpus and --gpu-devices exclude each other", Next: "give a count or the devices, not both"}
		}
		var ids []string
		for d := range strings.SplitSeq(devices, ",") {
			if d = strings.TrimSpace(d); d != "" {
				ids = append(ids, d)
			}
		}
		return GPURequest{Mode: GPUDevices, Devices: ids}, nil
	}
	switch count {
	case "":
		return GPURequest{}, nil
	case "all":
		return GPURequest{Mode: GPUAll}, nil
	case "none", "0":
		return GPURequest{Mode: GPUNone}, nil
	}
	n, err := strconv.Atoi(count)
	if err != nil || n < 1 {
		return GPURequest{}, &Error{Kind: ErrInvalid, Message: "--gpus " + quoted(count) + " is neither a count nor all or none",
			Next: "write --gpus 1, --gpus all, --gpus none, or name devices with --gpu-devices"}
	}
	return GPURequest{Mode: GPUCount, Count: n}, nil
}

// String is how the request reads in messages and in `models get`.
func (g GPURequest) String() string {
	switch g.Mode {
	case GPUCount:
		return strconv.Itoa(g.Count)
	case GPUDevices:
		return strings.Join(g.Devices, ",")
	case GPUAll, GPUNone:
		return string(g.Mode)
	}
	return "all (not said)"
}
