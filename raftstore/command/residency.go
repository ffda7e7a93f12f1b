package command

import "github.com/levelrail/levelrail"

// ResidencyPut says where an on-demand model stands: asleep, waking or awake.
type ResidencyPut struct {
	Residency levelrail.Residency `json:"residency"`
}

func (ResidencyPut) Kind() string { return "residency.put" }
func (c ResidencyPut) Subject() (levelrail.Kind, string) {
	return levelrail.KindResidency, c.Residency.Model
}

func (c ResidencyPut) Validate() error {
	switch c.Residency.State {
	case "asleep", "waking", "awake":
		return required("model name", c.Residency.Model)
	}
	return invalid("a model is asleep, waking or awake, not %q", c.Residency.State)
}

func (c ResidencyPut) Apply(t *Tx) (any, error) {
	if _, err := standing(t, c.Residency.Model); err != nil {
		return nil, err
	}
	if old, there := get[levelrail.Residency](t, c.Residency.Model); there && old.State == c.Residency.State {
		return nil, nil
	}
	c.Residency.Since = t.now
	put(t, c.Residency)
	return nil, nil
}
