package command

import (
	"slices"

	"github.com/levelrail/levelrail"
)

// ModelRestart asks for each replica of a model to be restarted. The answer is ModelRestarted.
type ModelRestart struct {
	Name string `json:"name"`
	// EngineKeys are new keys of its replicas' engines, which take their key at their start.
	EngineKeys []levelrail.Secret `json:"engine_keys,omitempty"`
	Job        *levelrail.Job     `json:"job,omitempty"`
}

// ModelRestarted answers ModelRestart.
type ModelRestarted struct {
	Restarts int `json:"restarts"` // the count that replicas must reach
}

func (ModelRestart) Kind() string                        { return "model.restart" }
func (c ModelRestart) Subject() (levelrail.Kind, string) { return levelrail.KindModel, c.Name }

func (c ModelRestart) Validate() error {
	if err := required("model name", c.Name); err != nil {
		return err
	}
	for _, s := range c.EngineKeys {
		if err := checkSecret(s); err != nil {
			return err
		}
	}
	return checkJob(c.Job, c.Name)
}

func (c ModelRestart) Apply(t *Tx) (any, error) {
	m, err := standing(t, c.Name)
	if err != nil {
		return nil, err
	}
	if err := putSecrets(t, c.EngineKeys); err != nil {
		return nil, err
	}
	m.Restarts++
	m.Stamp = t.stamp(m.Stamp, true)
	put(t, m)
	if len(c.EngineKeys) > 0 {
		// With the keys, and not a moment later: an agent that learned of the key first would restart the engine for it, and then
		// once more for the count.
		for _, r := range list[levelrail.Replica](t, "") {
			if slices.ContainsFunc(c.EngineKeys, func(s levelrail.Secret) bool { return r.Model == m.Name && s.Path == r.EngineKey.Path }) {
				r.Restarts, r.Stamp = m.Restarts, t.stamp(r.Stamp, true)
				put(t, r)
			}
		}
	}
	return ModelRestarted{Restarts: m.Restarts}, putNewJob(t, c.Job)
}
