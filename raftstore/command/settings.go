package command

import (
	"fmt"

	"github.com/levelrail/levelrail"
)

const settingsKept = 50

// SettingsPut writes the next version of a settings document. The last 50 versions stay readable.
type SettingsPut struct {
	Document levelrail.SettingsDocument `json:"document"`
}

func (SettingsPut) Kind() string { return "settings.put" }
func (c SettingsPut) Subject() (levelrail.Kind, string) {
	return levelrail.KindSettings, c.Document.Name
}
func (c SettingsPut) Validate() error { return required("document's name", c.Document.Name) }

func (c SettingsPut) Apply(t *Tx) (any, error) {
	d := c.Document
	head, there := get[levelrail.SettingsDocument](t, d.Name)
	if d.Version != head.Version+1 {
		return nil, levelrail.Errorf(levelrail.ErrConflict, "the settings %s are at version %d, and the change was made for version %d", d.Name, head.Version, d.Version-1).
			WithNext("read them again and repeat the change")
	}
	d.Stamp = t.stamp(head.Stamp, there)
	put(t, d)
	t.setObject(BucketSettingsHistory, settingsID(d.Name, d.Version), d)
	if old := settingsID(d.Name, d.Version-settingsKept); d.Version > settingsKept && t.raw(BucketSettingsHistory, old) != nil {
		t.set(BucketSettingsHistory, old, nil, nil)
	}
	return nil, nil
}

func settingsID(name string, version int) string { return fmt.Sprintf("%s/%010d", name, version) }
