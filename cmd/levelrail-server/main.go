// Command levelrail-server is the control plane; package controlplane has it all.
package main

import (
	"os"

	"github.com/levelrail/levelrail/controlplane"
)

func main() { os.Exit(controlplane.Main()) }
