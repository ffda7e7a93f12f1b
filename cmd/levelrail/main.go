// Command levelrail is the command line; package cli has it all.
package main

import (
	"os"

	"github.com/levelrail/levelrail/cli"
)

func main() { os.Exit(cli.Main()) }
