package agent

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/agent/fetch"
)

// storeMarker is the file that tells a store of weights from the empty directory below its mount point. It is made when the
// store is first used, and the agent remembers what it says in its own state directory.
const storeMarker = ".levelrail-store"

// storeNote is what the agent remembers of the store.
type storeNote struct {
	ID      string `json:"id"`
	Mounted bool   `json:"mounted"` // the store was on a file system of its own
}

func (p Paths) storeNote() string { return filepath.Join(p.State, "weights.json") }

// lookAtStore tells whether the store of weights is the one that this node has used: nil when it is, or when it is new.
// Nothing is written into a directory where a disk is missing: what is fetched there would fill the system's disk, and be
// hidden as soon as the disk is back.
func (a *Agent) lookAtStore() *Lack {
	var known storeNote
	b, err := os.ReadFile(a.Paths.storeNote())
	if err == nil {
		err = json.Unmarshal(b, &known)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		a.Log.Warn("cannot read which store of weights this node uses; the one that is there is taken", "error", err)
	}
	marker := filepath.Join(a.Paths.Weights, storeMarker)
	text, err := os.ReadFile(marker)
	found := storeNote{ID: strings.TrimSpace(string(text)), Mounted: a.mountOf(a.Paths.Weights) != a.mountOf(filepath.Dir(a.Paths.Weights))}
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return a.storeLack("the store of weights " + a.Paths.Weights + " cannot be read: " + err.Error())
	case found.ID == "" && known.Mounted:
		return a.storeLack("the disk of the weights is not mounted on " + a.Paths.Weights + ": the file " + storeMarker + " that marks it is not there")
	case found.ID != "" && found.ID != known.ID && known.Mounted:
		return a.storeLack("another store than this node's is on " + a.Paths.Weights + ", so the disk of the weights may not be mounted: its " + storeMarker + " says " + clip(found.ID) +
			" instead of " + known.ID)
	case found.ID == "":
		found.ID = levelrail.NewID("store")
		if err := fetch.WriteFile(marker, []byte(found.ID+"\n"), 0o644); err != nil {
			a.Log.Warn("cannot mark the store of weights; a missing disk will not be noticed", "error", err)
			return nil
		}
	}
	if found != known {
		if b, err = json.Marshal(found); err == nil {
			err = writeFile(a.Paths.storeNote(), b, 0o600)
		}
		if err != nil {
			a.Log.Warn("cannot remember the store of weights; a missing disk will not be noticed", "error", err)
		}
	}
	return nil
}

func (a *Agent) storeLack(message string) *Lack {
	return &Lack{Reason: levelrail.WeightsNotMounted, Message: message,
		Next: "mount " + a.Paths.Weights + " (findmnt --fstab " + a.Paths.Weights + " says what belongs there); models then start by themselves. To go on without that disk: rm " +
			a.Paths.storeNote()}
}

// mountOf names the mount, as process 1 sees it, that a path lies on; "" when that cannot be told. This process would not do:
// its unit has mounts of its own, and what is mounted below them after its start is not seen in here.
func (a *Agent) mountOf(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	b, err := os.ReadFile(a.Mounts)
	if err != nil {
		return ""
	}
	best, found := -1, ""
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line) // 36 35 98:0 /root /mount/point options …
		if len(f) < 5 {
			continue
		}
		point := unescape(f[4])
		if inside := point == "/" || path == point || strings.HasPrefix(path, point+"/"); inside && len(point) >= best { // of two on one place the later is above
			best, found = len(point), f[2]+" "+f[3]+" "+point
		}
	}
	return found
}

// unescape reads the octal digits by which mountinfo writes blanks.
func unescape(s string) string {
	for i := 0; i+3 < len(s); i++ {
		if s[i] == '\\' {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				s = s[:i] + string(rune(n)) + s[i+4:]
			}
		}
	}
	return s
}

// errRemounted ends the agent so that systemd starts it anew, with the mounts that are there now. Engines do not notice.
var errRemounted = errors.New("what is mounted on the store of weights has changed since the agent started, so it starts anew to see it")

// remounted tells whether the store lies on another mount than when this process started.
func (a *Agent) remounted(s *state) bool {
	if s.storeMount == "" {
		s.storeMount = a.mountOf(a.Paths.Weights)
		return false
	}
	now := a.mountOf(a.Paths.Weights)
	return now != "" && now != s.storeMount && time.Since(s.began) > time.Second
}
