// Package controlplane is one server: it opens the store, the master key and the sockets, runs the reconciler, and puts the
// API in front.
//
// It promises that a server which says READY has its store open and answers on every door; that one with a wrong master
// key does not start; that stopping ends streams at once and takes no engine down. It decides nothing itself:
//
//	seal       secrets under the master key        stored     what is in the store, as one value
//	ledger     what nodes and gateways said last   reconcile  what has to happen, and each model's condition (pure)
//	authority  the certificate of the TLS port     view       how things look on the wire (pure)
//	httpapi    routes, access, streams
//
// The store itself is package raftstore's. Nodes are looked after by the agent, requests go through the gateway.
package controlplane
