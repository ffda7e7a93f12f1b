// Package systemd writes unit files. It owns their text: Engine, Door and Fetch describe a unit in Levelrail's words, and
// Render turns a finished description into the file, with quoting, comments that give reasons, and marks by which the
// agent knows its files again.
//
// It promises that equal descriptions give equal text, that no value can smuggle a further line or a specifier into a
// unit, and that no secret is part of a unit (credentials are named by path). It decides nothing about a node and touches
// no file: the agent writes, reloads and starts. What an engine's command line is stands in package engine, which this
// package never imports.
//
// The folder units/ holds the units that the packages ship for Levelrail's own daemons.
package systemd
