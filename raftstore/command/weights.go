package command

import "github.com/levelrail/levelrail"

// WeightsPut writes a set of weights whole: what it holds and where it lies.
type WeightsPut struct {
	Weights levelrail.Weights `json:"weights"`
	IfIndex uint64            `json:"if_index,omitempty"`
}

func (WeightsPut) Kind() string                        { return "weights.put" }
func (c WeightsPut) Subject() (levelrail.Kind, string) { return levelrail.KindWeights, c.Weights.ID }

func (c WeightsPut) Validate() error {
	return required("weights' id", c.Weights.ID, "weights' source", c.Weights.Source)
}

func (c WeightsPut) Apply(t *Tx) (any, error) {
	_, at, _ := getAt[levelrail.Weights](t, c.Weights.ID)
	if err := unchanged(levelrail.KindWeights, c.Weights.ID, c.IfIndex, at); err != nil {
		return nil, err
	}
	c.Weights.Owner = orDefault(c.Weights.Owner)
	put(t, c.Weights)
	return nil, nil
}

// WeightsRemove forgets a set of weights that lies nowhere any more.
type WeightsRemove struct {
	ID string `json:"id"`
}

func (WeightsRemove) Kind() string                        { return "weights.remove" }
func (c WeightsRemove) Subject() (levelrail.Kind, string) { return levelrail.KindWeights, c.ID }
func (c WeightsRemove) Validate() error                   { return required("weights' id", c.ID) }

func (c WeightsRemove) Apply(t *Tx) (any, error) {
	if _, there := get[levelrail.Weights](t, c.ID); !there {
		return nil, levelrail.Errorf(levelrail.ErrNotFound, "there are no weights %s", c.ID)
	}
	drop(t, levelrail.KindWeights, c.ID)
	return nil, nil
}
