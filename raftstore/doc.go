// Package raftstore keeps what Levelrail must not forget: nodes, models, replicas, reservations, keys, tokens, sealed
// secrets, settings, usage and the audit, in one bbolt file per server, kept the same on every server by raft.
//
// A write is a command (package command). Propose returns once a majority has it on disk and this server has applied it,
// so a View here sees it. On a server that does not lead, Propose returns a *NotLeaderError, and a View may be behind:
// Tx.Index says how far it has come. Applying a command reads the command and the file, nothing else, so all servers
// agree. An acknowledged write survives kill -9 at any moment.
//
// The truth is the log and the snapshots (raft.db, snapshots/). The state (state.db) is a cache of them: it is deleted at
// every start and rebuilt. id.json says which server, which cluster and which line of history a directory holds.
//
// Watch gives every change after a position in order, or everything anew when the position is too old.
//
// Readings that a node will send again in seconds live in controlplane's ledger. Sealing, hashing and the minting of ids
// belong to whoever proposes.
package raftstore
