package cli

import (
	"maps"

	ucli "github.com/urfave/cli/v2"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

func modelsUpdate() verb {
	return verb{
		name: "update", args: "NAME", usage: "change what a model runs", complete: []string{"@model"},
		long: "Makes a new revision of the model with the flags that are given; everything else stays. The engine is started anew with it. Options are changed one by one: " +
			"`--option name=value` sets one, `--option name=` takes one away. --served-name replaces the further names; an empty text for any other flag takes the value away.",
		examples: []example{
			{"A longer context", "levelrail models update chat --context 16384"},
			{"Other weights on another number of GPUs", "levelrail models update chat --model llama3.1:70b --gpus 2"},
			{"One engine option", "levelrail models update chat --option parallel=8"},
		},
		flags: append(specFlags(), waitFlags()...),
		run:   runUpdate,
	}
}

func runUpdate(s *session, c *ucli.Context) error {
	name := arg(c, 0)
	follow, limit, err := s.waiting(c)
	if err != nil {
		return err
	}
	api, err := s.api()
	if err != nil {
		return err
	}
	u, err := s.updateWish(c, api, name)
	if err != nil {
		return err
	}
	answer, err := api.UpdateModel(s.ctx, name, u)
	if err != nil {
		return err
	}
	s.notes(answer.Notes)
	if !s.json {
		if answer.Unchanged {
			s.say("%s runs this already (revision %d); nothing was changed.", answer.Model.Name, answer.Model.Revision)
		} else {
			s.say("%s is being updated to revision %d.", answer.Model.Name, answer.Model.Revision)
		}
	}
	g := goal{model: answer.Model.Name, doing: "the update of " + answer.Model.Name, revision: answer.Model.Revision, settled: answer.Unchanged}
	return s.finish(api, g, follow, limit, &answer.Model, func() any { return answer })
}

// updateWish reads the flags; those that are not given stay absent.
func (s *session) updateWish(c *ucli.Context, api API, name string) (u wire.Update, err error) {
	if specWords(c) == "" {
		return u, usagef(helpOf(c), "models update needs something to change, as in: levelrail models update %s --context 16384", name)
	}
	text := func(flag string) *string {
		if !given(c, flag) {
			return nil
		}
		v := c.String(flag)
		return &v
	}
	u = wire.Update{Engine: text("engine"), Quantization: text("quantization"), Domain: text("domain"), SourceCommit: text("commit"), SHA256: text("sha256")}
	if given(c, "model") {
		src, err := s.source(c)
		if err != nil {
			return u, err
		}
		u.Model = &src
	}
	if given(c, "gpus") || given(c, "gpu-devices") {
		r, err := gpuRequest(c)
		if err != nil {
			return u, err
		}
		u.GPUs = &r
	}
	if given(c, "context") {
		n := c.Int("context")
		u.Context = &n
	}
	if given(c, "served-name") {
		names := []string{}
		for _, n := range c.StringSlice("served-name") {
			if n != "" {
				names = append(names, n)
			}
		}
		u.ServedNames = &names
	}
	changes, err := options(c)
	if err != nil || changes == nil {
		return u, err
	}
	m, err := api.Model(s.ctx, name)
	if err != nil {
		return u, err
	}
	merged := levelrail.Options{}
	maps.Copy(merged, m.Spec.Options)
	for option, value := range changes {
		if merged[option] = value; value == "" {
			delete(merged, option)
		}
	}
	u.Options = &merged
	return u, nil
}
