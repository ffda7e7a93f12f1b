package raftstore

import (
	"crypto/rand"
	"encoding/hex"

	"github.com/levelrail/levelrail"
)

// identity says which server, cluster and line of history a directory holds: the content of id.json.
type identity struct {
	ServerID  string `json:"server_id"`  // srv_…, made with the directory, never a host name
	ClusterID string `json:"cluster_id"` // clu_…, made with the cluster
	Lineage   string `json:"lineage"`    // of the history: a restored backup begins a new one
	// Bootstrapped says that the first configuration is in the log. Before that, nothing in the directory counts.
	Bootstrapped bool `json:"bootstrapped"`
}

func newIdentity() identity {
	return identity{ServerID: levelrail.NewID("srv"), ClusterID: levelrail.NewID("clu"), Lineage: newLineage()}
}

func newLineage() string {
	var b [8]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}
