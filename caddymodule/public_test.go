package caddymodule

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig"

	"github.com/levelrail/levelrail/caddymodule/public"
)

// TestPublicSite: the packaged configuration takes the public site as it is written, and asks us for whom certificates are.
func TestPublicSite(t *testing.T) {
	h := prepareHost(t)
	sites := filepath.Join(h.dir, "sites")
	if err := os.Mkdir(sites, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(sites, "public.caddy"), []byte(public.Site), 0o600); err != nil {
		t.Fatal(err)
	}
	config, warnings, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(h.caddyfile()), map[string]any{"filename": "Caddyfile"})
	if err != nil || len(warnings) > 0 {
		t.Fatalf("%v %v", warnings, err)
	}
	for _, want := range []string{`"listen":[":443"]`, `"on_demand":true`, `"permission":{"module":"levelrail"}`} {
		if !strings.Contains(string(config), want) {
			t.Errorf("the configuration has no %s: %s", want, config)
		}
	}
}
