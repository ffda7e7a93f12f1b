// Package fetch brings weights to a node: from the Hugging Face Hub, from files of the node, or by an engine's own import.
// It is the inside of levelrail-fetch-NAME.service, and it owns the node's store of weights:
//
//	weights/.blobs/sha256-HEX           each file once, whatever models use it
//	weights/.blobs/NAME.partial, .lock  a download on its way, and the lock of whoever brings it
//	weights/.MODEL.new/                 a set being put together
//	weights/MODEL/                      a finished set: hard links into .blobs, and .levelrail.json, its manifest
//
// It promises that a set appears whole or not at all (one rename), that every file has the checksum that its source
// named, that the same file is downloaded and stored once a node, that a killed fetch resumes, and that no lock outlives
// its holder (flock). The agent reads manifests and the progress file; it starts, stops and retries the unit. The Hub's
// protocol is package hub, what an engine needs is package engine.
package fetch
