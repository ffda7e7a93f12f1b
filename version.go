package levelrail

// Version is the release that this program is of. The build sets it:
// -ldflags "-X github.com/levelrail/levelrail.Version=1.2.3".
var Version = "0.1.0"
