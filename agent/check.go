package agent

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
	"github.com/levelrail/levelrail/engine"
)

// The server is a program with no rights on this node, and the agent is root. Whatever a server sends is therefore checked
// here as if somebody had taken the server over: names become paths and unit names, options a command line, keys a line of
// an environment file. What is refused is reported with the replica, and what runs stays as it is.

var (
	clusterID     = regexp.MustCompile(`^clu_[a-z0-9]{1,64}$`)
	nodeID        = regexp.MustCompile(`^node_[a-z0-9]{1,64}$`)
	engineKeyForm = regexp.MustCompile(`^[A-Za-z0-9_-]{16,128}$`)
	hubTokenForm  = regexp.MustCompile(`^[\x21-\x7e]{1,512}$`)
	lineageForm   = regexp.MustCompile(`^[a-z0-9-]{0,64}$`)
	deviceID      = regexp.MustCompile(`^(GPU|MIG)-[0-9A-Za-z/-]{1,100}$`)
	logID         = regexp.MustCompile(`^log_[a-z0-9]{1,64}$`)
	logSince      = regexp.MustCompile(`^[0-9A-Za-z :+.-]{0,64}$`)
)

const (
	mostAssignments = 1000    // of one node
	mostLogRequests = 64      // that are answered at a time
	mostLogLines    = 100_000 // of one request
	someLogLines    = 100     // of a request that does not say how many
	mostCount       = 1 << 31 // of revisions and restarts
	mostTerm        = 1 << 48 // a cluster that elected a leader every millisecond would take 8,900 years
	mostReplicas    = 1000
	mostNames       = 64
	mostDevices     = 128
)

func refused(format string, args ...any) *levelrail.Error {
	return levelrail.Errorf(levelrail.ErrRefused, format, args...)
}

// checkName refuses an assignment whose names would lead to other files and units than a replica's own. It cannot be kept
// under its name and is reported by the id of its line.
func checkName(id string, as wire.Assignment) error {
	if levelrail.CheckModelName(as.Model) != nil {
		return refused("%s is not the name of a model", clip(as.Model))
	}
	if as.Number < 0 || as.Number >= mostReplicas {
		return refused("%d is not the number of a replica of %s", as.Number, as.Model)
	}
	if want := levelrail.ReplicaID(as.Model, as.Number); as.Replica != want || id != want {
		return refused("replica %d of %s is called %s, in a line about %s", as.Number, as.Model, clip(as.Replica), clip(id))
	}
	return nil
}

// checkAssignment refuses what an assignment with good names must not hold.
func checkAssignment(as wire.Assignment) error {
	switch {
	case as.Revision < 1 || as.Revision >= mostCount:
		return refused("%d is not the number of a revision", as.Revision)
	case as.Restarts < 0 || as.Restarts >= mostCount:
		return refused("%d is not a count of restarts", as.Restarts)
	case as.EngineKey == "":
		return refused("it has no key for its engine, which would then take requests from whoever reaches its socket")
	case !engineKeyForm.MatchString(as.EngineKey):
		return refused("the key for its engine is not of the form of one") // never with its text
	case len(as.ServedNames) == 0 || len(as.ServedNames) > mostNames || as.ServedNames[0] != as.Model:
		return refused("its %d served names do not begin with its own, or are more than %d", len(as.ServedNames), mostNames)
	case len(as.Devices) > mostDevices:
		return refused("it has %d GPUs, and %d are the most", len(as.Devices), mostDevices)
	}
	for i, d := range as.Devices {
		if !deviceID.MatchString(d) {
			return refused("%s is not the id of a GPU", clip(d))
		}
		if slices.Contains(as.Devices[:i], d) {
			return refused("the GPU %s is named twice", d)
		}
	}
	if err := checkHubURL(as.HubBaseURL); err != nil {
		return err
	}
	if err := engine.CheckServedNames(as.ServedNames); err != nil {
		return err
	}
	e, err := engine.Get(as.Spec.Engine)
	if err != nil {
		return nil // the node's own lack, which says what to do
	}
	return e.Check(as.Spec)
}

// checkHubURL takes an address of a server, and nothing that would add to a request or hide a password in a log.
func checkHubURL(text string) error {
	if text == "" {
		return nil
	}
	u, err := url.Parse(text)
	if err != nil || len(text) > 512 || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Opaque != "" {
		return refused("%s is not the address of a Hub", clip(text))
	}
	return nil
}

// checkLogRequest refuses a request for anything but lines of one model's units.
func checkLogRequest(id string, q wire.LogRequest) error {
	switch {
	case !logID.MatchString(q.ID) || q.ID != id:
		return refused("%s is not the id of a request for logs", clip(q.ID))
	case levelrail.CheckModelName(q.Model) != nil:
		return refused("%s is not the name of a model", clip(q.Model))
	case q.Lines < 0 || q.Lines > mostLogLines:
		return refused("%d lines of a journal are not sent, %d are the most", q.Lines, mostLogLines)
	case !logSince.MatchString(q.Since):
		return refused("%s is not a time", clip(q.Since))
	}
	return nil
}

// checkWelcome refuses a server that does not say properly whom it serves.
func checkWelcome(w wire.Welcome) error {
	if w.ClusterID != "" && !clusterID.MatchString(w.ClusterID) {
		return refused("%s is not the id of a cluster", clip(w.ClusterID))
	}
	if !lineageForm.MatchString(w.Lineage) {
		return refused("%s is not the name of a history", clip(w.Lineage))
	}
	if w.NodeID != "" && !nodeID.MatchString(w.NodeID) {
		return refused("%s is not the id of a node", clip(w.NodeID))
	}
	return checkTerm(w.Term)
}

func checkTerm(term uint64) error {
	if term > mostTerm {
		return refused("%d is not the term of a leader: no cluster elects so often", term)
	}
	return nil
}

// checkHubToken refuses what could not stand in a header. The error never holds the token.
func checkHubToken(token string) error {
	if !hubTokenForm.MatchString(token) {
		return refused("the server's answer is not of the form of a Hub token")
	}
	return nil
}

// refusal is the reason of a replica whose assignment was refused.
func refusal(err error) *Lack {
	l := lackOf(levelrail.AssignmentRefused, err)
	l.Message = "the agent refuses what the server assigned: " + l.Message
	if l.Next == "" {
		l.Next = "compare the versions of levelrail-agent and levelrail-server; where they are the same, the server may be in other hands"
	}
	return l
}

// clip quotes what somebody sent, and not much of it.
func clip(s string) string {
	if len(s) > 80 {
		s = strings.ToValidUTF8(s[:80], "") + "…"
	}
	return fmt.Sprintf("%q", s)
}
