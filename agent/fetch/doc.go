// Package fetch brings weights to a node: from the Hugging Face Hub, from files of the node, or by an engine's own import.
// It owns the node's store of weights:
//
//	weights/.blobs/sha256-HEX           each file once, whatever models use it
//	weights/.blobs/NAME.partial, .lock  a file of the node being copied, and the lock of whoever copies it
//	weights/.fetch/MODEL/               the stage of a fetch: the one directory that its process writes
//	weights/.MODEL.new/                 a set being put together
//	weights/MODEL/                      a finished set: hard links into .blobs, and .levelrail.json, its manifest
//
// It has two sides. Main and Run are the inside of levelrail-fetch-NAME.service: a process without rights that fills a
// stage. Store and Dirs are the agent's: they prepare a stage, take over what was brought after checking it, and copy files
// of the node. Nothing that the first side says is believed by the second.
//
// It promises that a set appears whole or not at all (one rename), that every file in the store has the checksum of its
// name, that the same file is downloaded and stored once a node, that a killed fetch resumes, and that no lock outlives
// its holder (flock). The agent reads manifests and the progress file; it starts, stops and retries the unit. The Hub's
// protocol is package hub, what an engine needs is package engine.
package fetch
