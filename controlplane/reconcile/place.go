package reconcile

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/controlplane/ledger"
)

// placement is where a replica goes.
type placement struct {
	node    levelrail.Node
	devices []string // UUIDs; none on CPU
}

// verdict is why something cannot be placed now.
type verdict struct {
	reason        levelrail.Reason
	message, next string
	since         time.Time // zero: since the model was last changed
}

func (v *verdict) condition(m levelrail.Model) levelrail.Condition {
	since := v.since
	if since.IsZero() {
		since = m.Stamp.UpdatedAt
	}
	return levelrail.Condition{Reason: v.reason, Message: v.message, Next: v.next, Since: since.UTC()}
}

// held says who holds which device: UUID to the reservation's owner, such as model:chat.
type held map[string]string

// heldBy collects the reservations of a node, without that of one replica, which may choose anew.
func (d *Desired) heldBy(nodeID string, without levelrail.Replica) held {
	h := held{}
	for _, id := range slices.Sorted(maps.Keys(d.Reservations)) {
		r := d.Reservations[id]
		mine := slices.ContainsFunc(without.Shards, func(s levelrail.Shard) bool { return s.ReservationID == id })
		if r.NodeID == nodeID && !mine {
			for _, uuid := range r.Devices {
				h[uuid] = r.For
			}
		}
	}
	return h
}

// place finds the node and devices for a model's spec, or says why there are none. Devices promised in the same pass are
// in taken, by node.
func (d *Desired) place(o ledger.Snapshot, m levelrail.Model, spec levelrail.ModelSpec, own levelrail.Replica, taken map[string]held) (placement, *verdict) {
	node, v := d.nodeFor(o, m)
	if v != nil {
		return placement{}, v
	}
	report, heard := o.Nodes[node.ID]
	if v := silent(o, node, report, heard); v != nil {
		return placement{}, v
	}
	h := d.heldBy(node.ID, own)
	maps.Copy(h, taken[node.ID])
	devices, v := pick(m.Name, spec.GPUs, node.Name, report, h)
	return placement{node: node, devices: devices}, v
}

// nodeFor is the node that a model wants: the named one, else the control plane's own host. When that host has joined
// several times (its agent's state was lost), the one that reports counts, else the newest.
func (d *Desired) nodeFor(o ledger.Snapshot, m levelrail.Model) (levelrail.Node, *verdict) {
	if m.NodeID != "" {
		if n, ok := d.Nodes[m.NodeID]; ok {
			return n, nil
		}
		return levelrail.Node{}, &verdict{reason: levelrail.NodeUnknown, message: "the node " + m.NodeID + " is not part of this cluster any more",
			next: "levelrail nodes list, then delete the model and deploy it with --node"}
	}
	var best levelrail.Node
	for _, id := range slices.Sorted(maps.Keys(d.Nodes)) {
		n := d.Nodes[id]
		if !n.Local {
			continue
		}
		online, bestOnline := o.Nodes[n.ID].Online, o.Nodes[best.ID].Online
		if best.ID == "" || online && !bestOnline || online == bestOnline && n.Stamp.CreatedAt.After(best.Stamp.CreatedAt) {
			best = n
		}
	}
	if best.ID != "" {
		return best, nil
	}
	if !o.Listened() {
		return levelrail.Node{}, &verdict{reason: levelrail.Pending, message: "waiting for the agent of the control plane's host to say hello"}
	}
	return levelrail.Node{}, &verdict{reason: levelrail.NodeUnknown, message: "no agent has joined on the control plane's host", since: o.Since.Add(ledger.Silence),
		next: "apt install levelrail-agent, or systemctl start levelrail-agent"}
}

// silent says that a node does not report, nil when it does.
func silent(o ledger.Snapshot, node levelrail.Node, report ledger.NodeReport, heard bool) *verdict {
	switch {
	case heard && report.Online:
		return nil
	case heard:
		return &verdict{reason: levelrail.NodeOffline, since: report.ReceivedAt.Add(ledger.Silence),
			message: fmt.Sprintf("the node %s has not reported for %s; an engine that runs there goes on serving", node.Name, o.Now.Sub(report.ReceivedAt).Round(10*time.Second)),
			next:    "systemctl status levelrail-agent on " + node.Name}
	case o.Listened():
		return &verdict{reason: levelrail.NodeOffline, since: o.Since.Add(ledger.Silence),
			message: fmt.Sprintf("the node %s has not reported since this server started; an engine that runs there goes on serving", node.Name),
			next:    "systemctl status levelrail-agent on " + node.Name}
	}
	return &verdict{reason: levelrail.Pending, message: fmt.Sprintf("waiting for the first report of the node %s since this server started", node.Name)}
}

// pick turns a request for GPUs into devices of a node, the lowest free indexes first.
func pick(model string, want levelrail.GPURequest, node string, report ledger.NodeReport, h held) ([]string, *verdict) {
	if want.Mode == levelrail.GPUNone {
		return nil, nil
	}
	all := usable(report.Devices)
	if len(all) == 0 {
		note := ""
		if report.GPUNote != "" {
			note = " (" + report.GPUNote + ")"
		}
		return nil, &verdict{reason: levelrail.NoGPUOnNode, message: fmt.Sprintf("the node %s has no GPU%s", node, note),
			next: "levelrail models update " + model + " --gpus none runs it on the CPU"}
	}
	var free []levelrail.Device
	for _, dev := range all {
		if h[dev.UUID] == "" {
			free = append(free, dev)
		}
	}
	switch want.Mode {
	case levelrail.GPUDevices:
		return pickNamed(model, want, node, report.Devices, all, h)
	case levelrail.GPUCount:
		if len(free) >= want.Count {
			return uuids(free[:want.Count]), nil
		}
		return nil, short(model, fmt.Sprint(want.Count), node, len(all), len(free), h, all)
	default: // all, and not said, which asks for all
		if len(free) == len(all) {
			return uuids(all), nil
		}
		return nil, short(model, "all", node, len(all), len(free), h, all)
	}
}

// usable are the devices that can be given to a model, by index: a card that is split into instances is not one of them.
func usable(devices []levelrail.Device) []levelrail.Device {
	var out []levelrail.Device
	for _, dev := range devices {
		if !split(devices, dev.UUID) {
			out = append(out, dev)
		}
	}
	slices.SortStableFunc(out, func(a, b levelrail.Device) int { return a.Index - b.Index })
	return out
}

func split(devices []levelrail.Device, card string) bool {
	return slices.ContainsFunc(devices, func(d levelrail.Device) bool { return d.Parent == card && card != "" })
}

func uuids(devices []levelrail.Device) []string {
	out := make([]string, len(devices))
	for i, d := range devices {
		out[i] = d.UUID
	}
	return out
}

func pickNamed(model string, want levelrail.GPURequest, node string, devices, all []levelrail.Device, h held) ([]string, *verdict) {
	var out []string
	for _, id := range want.Devices {
		dev, ok := find(devices, id)
		switch {
		case !ok:
			return nil, &verdict{reason: levelrail.InsufficientGPUs, message: fmt.Sprintf("the node %s has no GPU %s; it has %s", node, id, listed(all)),
				next: "levelrail models update " + model + " --gpu-devices with GPUs that levelrail nodes get " + node + " shows"}
		case split(devices, dev.UUID):
			return nil, &verdict{reason: levelrail.InsufficientGPUs, message: fmt.Sprintf("the GPU %s of the node %s is split into MIG instances", id, node),
				next: "levelrail models update " + model + " --gpu-devices with the UUID of an instance, as levelrail nodes get " + node + " shows"}
		case h[dev.UUID] != "":
			return nil, &verdict{reason: levelrail.InsufficientGPUs, message: fmt.Sprintf("the GPU %s of the node %s is held by %s", id, node, holder(h[dev.UUID])),
				next: "levelrail models delete " + strings.TrimPrefix(h[dev.UUID], "model:") + ", or choose another GPU with levelrail models update " + model + " --gpu-devices"}
		}
		if !slices.Contains(out, dev.UUID) {
			out = append(out, dev.UUID)
		}
	}
	return out, nil
}

// find is the device with that UUID, or the card with that index ("0" or "#0").
func find(devices []levelrail.Device, id string) (levelrail.Device, bool) {
	index, err := strconv.Atoi(strings.TrimPrefix(id, "#"))
	for _, d := range devices {
		if d.UUID == id || err == nil && d.Index == index && d.Parent == "" {
			return d, true
		}
	}
	return levelrail.Device{}, false
}

func listed(devices []levelrail.Device) string {
	var out []string
	for _, d := range devices {
		out = append(out, fmt.Sprintf("%d (%s)", d.Index, d.UUID))
	}
	return strings.Join(out, ", ")
}

// short says that too few GPUs are free, and who holds the others.
func short(model, want, node string, total, free int, h held, all []levelrail.Device) *verdict {
	count := map[string]int{}
	for _, d := range all {
		if who := h[d.UUID]; who != "" {
			count[who]++
		}
	}
	var holders []string
	for _, who := range slices.Sorted(maps.Keys(count)) {
		holders = append(holders, fmt.Sprintf("%d held by %s", count[who], holder(who)))
	}
	message := fmt.Sprintf("%s needs %s of the %d GPUs of the node %s, and %d are free", model, want, total, node, free)
	if len(holders) > 0 {
		message += ": " + strings.Join(holders, ", ")
	}
	next := "free GPUs by deleting or updating a model that holds them; it then starts by itself"
	if free > 0 {
		next = fmt.Sprintf("levelrail models update %s --gpus %d, or free GPUs, and it starts by itself", model, free)
	}
	return &verdict{reason: levelrail.InsufficientGPUs, message: message, next: next}
}

func holder(owner string) string {
	kind, name, ok := strings.Cut(owner, ":")
	if !ok {
		return owner
	}
	return "the " + kind + " " + name
}
