package agent

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/agent/fetch"
	"github.com/levelrail/levelrail/client/wire"
	"github.com/levelrail/levelrail/engine"
	"github.com/levelrail/levelrail/systemd"
)

// gatewayGroup may reach engines.
const gatewayGroup = "levelrail-gateway"

// plan works out what this node has to run from what is assigned and what the node has.
func (a *Agent) plan(s *state) {
	s.want = make(map[string]Want, len(s.assignments))
	for r, as := range s.assignments {
		s.want[r] = a.wanted(s, as, s.have[r])
	}
}

func (a *Agent) wanted(s *state, as wire.Assignment, have Have) Want {
	w := Want{Assignment: as, Hash: specHash(as)}
	if err := checkAssignment(as); err != nil {
		w.Lack = refusal(err)
		return w
	}
	e, err := engine.Get(as.Spec.Engine)
	if err != nil {
		w.Lack = lackOf(levelrail.EngineNotInstalled, err)
		w.Lack.Next = "update levelrail-agent on this node, which does not know this engine"
		return w
	}
	if s.storeLack != nil {
		w.Lack = s.storeLack
		return w
	}
	program, lack := a.program(e)
	if lack != nil {
		w.Lack = lack
		return w
	}
	attach, lack := a.attach(s, as)
	if lack != nil {
		w.Lack = lack
		return w
	}
	order := fetch.Want{Engine: as.Spec.Engine, Spec: as.Spec, Names: as.ServedNames}
	manifest, missing := fetch.Missing(a.Paths.set(as.Model), order)
	if missing == "" {
		// A file of the node that its owner has replaced is taken anew when the engine is started anew anyhow.
		if file, written := have.Files[systemd.EngineUnit(as.Replica)]; written && file.Marks.Hash != w.Hash {
			if p := manifest.Outdated(a.Settings.importDirs()); p != "" {
				missing = "the file " + p + " has changed since it was copied"
			}
		}
	}
	w.Program, w.Files = program, manifest.Files
	if missing != "" {
		w.Missing, w.FetchKey = missing, fetchKey(as, a.hubURL(as), program)
		return w
	}
	if err := a.render(e, &w, attach); err != nil {
		w.Lack = lackOf(levelrail.EngineFailed, err)
	}
	return w
}

// attach is how a replica gets its cards.
type attach struct {
	minors []int
	all    bool
	groups []int
}

// attach finds the device numbers of the cards that a replica was given, and whether its engine could open them.
func (a *Agent) attach(s *state, as wire.Assignment) (attach, *Lack) {
	var at attach
	if len(as.Devices) == 0 {
		return at, nil
	}
	lack := &Lack{Reason: levelrail.GPURuntimeMissing, Next: "nvidia-smi on this node shows what the driver has; the model starts by itself when it is mended"}
	if !s.gpusRead {
		return at, &Lack{Reason: levelrail.Starting, Message: "the cards of this node are being read"}
	}
	for _, id := range as.Devices {
		minor, ok := s.gpus.Minors[id]
		if !ok {
			lack.Message = "the card " + id + " is not on this node now"
			if s.gpus.Note != "" {
				lack.Message += ": " + s.gpus.Note
			}
			return at, lack
		}
		at.minors = append(at.minors, minor)
	}
	if len(s.gpus.Missing) > 0 {
		lack.Message = "the cards cannot be opened: " + strings.Join(s.gpus.Missing, ", ") + " is missing, and an engine may not make it"
		lack.Next = fmt.Sprintf("sudo nvidia-modprobe -u -c %d; the model then starts by itself", at.minors[0])
		return at, lack
	}
	at.groups, at.all = s.gpus.Groups, a.Settings.GPUAttach == "legacy"
	return at, nil
}

// specHash is the hash of all that decides the process of a replica, as it was assigned: what the node adds to it (where
// the program lies, how this version of the agent writes units) is no reason to restart an engine that serves.
func specHash(as wire.Assignment) string {
	b, err := json.Marshal(struct {
		Form     int
		Spec     levelrail.ModelSpec
		Names    []string
		Devices  []string
		Key      string
		Restarts int
	}{1, as.Spec, as.ServedNames, as.Devices, levelrail.HashSecret(as.EngineKey), as.Restarts})
	if err != nil {
		panic(err) // strings and numbers only
	}
	return digest(b)
}

// fetchKey names an order to bring weights: another key is another order.
func fetchKey(as wire.Assignment, hubURL, program string) string {
	b, err := json.Marshal([]any{as.Model, as.Spec, as.ServedNames, as.HubTokenSet, hubURL, program})
	if err != nil {
		panic(err) // strings and numbers only
	}
	return digest(b)
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// hubURL is where weights come from: this node's own setting, else what the control plane says.
func (a *Agent) hubURL(as wire.Assignment) string {
	if a.Settings.HFBaseURL != "" {
		return a.Settings.HFBaseURL
	}
	return as.HubBaseURL
}

// params are what an engine's adapter is told of a replica.
func (a *Agent) params(as wire.Assignment, program string, files []levelrail.WeightsFile) engine.Params {
	return engine.Params{
		Name: as.Replica, Model: as.Model, Spec: as.Spec, ServedNames: as.ServedNames, Program: program,
		WeightsDir: a.Paths.set(as.Model), Files: files, Socket: systemd.SocketPath(as.Replica),
		CacheDir: "/var/cache/" + cache(as.Replica), Devices: as.Devices,
		KeyFile: systemd.CredentialDir(systemd.EngineUnit(as.Replica)) + "/engine-key", Key: as.EngineKey,
	}
}

// render writes the text of a replica's units.
func (a *Agent) render(e engine.Engine, w *Want, at attach) error {
	as := w.Assignment
	launch, err := e.Launch(a.params(as, w.Program, w.Files))
	if err != nil {
		return err
	}
	w.KeyVariable = launch.KeyVariable
	marks := systemd.Marks{Hash: w.Hash, Replica: as.Replica, Model: as.Model, Engine: e.Name(), Revision: as.Revision, Restarts: as.Restarts}
	u := systemd.Engine{
		Marks: marks, Number: as.Number, Args: launch.Args, Env: launch.Env,
		Weights: a.Paths.set(as.Model), Cache: cache(as.Replica), Door: launch.Door != "",
		Loopback: launch.InetFamilies, Resources: launch.Resources, WriteExec: launch.WriteExec, SystemCalls: launch.SystemCalls,
		StopSeconds: launch.StopSeconds, KillMode: launch.KillMode,
		Minors: at.minors, AllGPUs: at.all, Groups: at.groups, Memory: a.Settings.EngineMemoryMax, Visible: []string{w.Program},
	}
	if real, err := filepath.EvalSymlinks(w.Program); err == nil {
		u.Visible = append(u.Visible, real)
	}
	secret := a.Paths.credentials(as.Replica) + "/"
	if launch.KeyVariable != "" {
		u.EnvironmentFile = secret + engineEnv
	} else {
		u.Credentials = []systemd.Credential{{Name: engineKey, Path: secret + engineKey}}
	}
	main, err := u.Unit()
	if err != nil {
		return err
	}
	all := []systemd.Unit{main}
	if launch.Door != "" {
		socket, service, err := systemd.Door{Marks: marks, Socket: systemd.SocketPath(as.Replica), Address: launch.Door, Group: gatewayGroup}.Units()
		if err != nil {
			return err
		}
		all = append(all, socket, service)
	}
	for _, unit := range all {
		text, err := systemd.Render(unit)
		if err != nil {
			return err
		}
		w.Units = append(w.Units, Text{unit.Name, text})
	}
	return nil
}

// The files of a replica's credentials.
const (
	engineKey = "engine-key" // the key that the gateway shows the engine
	engineEnv = "engine-env" // the same as a variable, for an engine that reads its environment
)
