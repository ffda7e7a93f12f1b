// Command levelrail-agent looks after one machine: its GPUs, the units of its engines, and their weights.
package main

import (
	"os"

	"github.com/levelrail/levelrail/agent"
)

func main() { os.Exit(agent.Main(os.Args[1:], os.Stdout, os.Stderr)) }
