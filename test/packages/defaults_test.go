package packages

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/agent"
	"github.com/levelrail/levelrail/controlplane"
)

// TestDefaultsFilesNameEverySetting: /etc/default/levelrail-* explains each setting of its daemon, in a comment, and none
// that the daemon does not have.
func TestDefaultsFilesNameEverySetting(t *testing.T) {
	for file, settings := range map[string]any{
		"levelrail-agent":  agent.Settings{},
		"levelrail-server": controlplane.Settings{},
	} {
		t.Run(file, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join("..", "..", "packaging", "etc", "default", file))
			if err != nil {
				t.Fatal(err)
			}
			var named []string
			for _, m := range regexp.MustCompile(`(?m)^#([A-Z][A-Z0-9_]*)=`).FindAllStringSubmatch(string(text), -1) {
				named = append(named, m[1])
			}
			if set := regexp.MustCompile(`(?m)^[^#\n].*`).FindString(string(text)); set != "" {
				t.Errorf("a setting is set as shipped, so a later default would not reach anybody: %s", set)
			}
			var known []string
			for _, s := range levelrail.Settings(settings) {
				known = append(known, s.Name)
				if !slices.Contains(named, s.Name) {
					t.Errorf("%s is not explained", s.Name)
				}
			}
			for _, name := range named {
				if !slices.Contains(known, name) {
					t.Errorf("%s is explained and the daemon has no such setting", name)
				}
			}
		})
	}
}
