package wire

import "time"

// Backup is what a backup says of itself: its first line, and the last, by which a reader knows that it is whole. POST
// /api/v1/backups streams one, a JSON object a line; `levelrail-server restore` reads it.
type Backup struct {
	Format    string    `json:"format"`
	Version   int       `json:"version"`
	ClusterID string    `json:"cluster_id"`
	ServerID  string    `json:"server_id"` // that wrote it
	Lineage   string    `json:"lineage"`
	Index     uint64    `json:"index"` // the last command in it
	Term      uint64    `json:"term"`
	TakenAt   time.Time `json:"taken_at"`
	Software  string    `json:"software"`

	Records     int    `json:"records"`
	SHA256      string `json:"sha256"` // of all lines but the last
	Bytes       int64  `json:"bytes"`
	MasterKeyID string `json:"master_key_id"` // of the key that its secrets are sealed under, which is not in it
	File        string `json:"file,omitempty"`
}

// MasterKeyHeader is the response header of a backup with the id of the master key.
const MasterKeyHeader = "Levelrail-Master-Key-Id"
