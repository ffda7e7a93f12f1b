package controlplane

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client"
	"github.com/levelrail/levelrail/client/wire"
)

func writeFile(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestSecrets: after a life with keys, tokens and a hub token, none of their texts is in any answer to a reading request,
// in any watch for people, in the log, or in any file of the server.
func TestSecrets(t *testing.T) {
	dir := shortDir(t)
	r := start(t, rigOptions{dir: dir})
	ctx := t.Context()
	n := r.join(1)
	seen := follow(t, r.people, client.WatchOptions{Kinds: []string{wire.WatchModel, wire.WatchNode}})
	authority, err := os.ReadFile(filepath.Join(dir, "tls", "ca.pem"))
	if err != nil || !strings.Contains(string(authority), "CERTIFICATE") {
		t.Fatalf("the authority's certificate: %.60s, %v", authority, err)
	}
	secrets := map[string]string{"hub token": "hf_Qm9udGFyZ2V0c2VjcmV0"}
	made := r.deploy("chat", func(d *wire.Deploy) { d.HubToken = secrets["hub token"] })
	secrets["key"] = made.Key.Secret
	a := n.assigned("chat", anyAssignment)
	secrets["engine key"] = a.EngineKey
	n.say(a, loaded)
	scoped, err := r.people.CreateKey(ctx, "chat", wire.CreateKey{Name: "ci", AllowModels: []string{"chat"}, Limits: levelrail.KeyLimits{RPM: 2}})
	if err != nil {
		t.Fatal(err)
	}
	replaced, err := r.people.ReplaceKey(ctx, "chat", scoped.ID, wire.RotateKey{})
	if err != nil {
		t.Fatal(err)
	}
	secrets["scoped key"], secrets["replaced key"] = scoped.Secret, replaced.Secret
	if _, err := r.people.RevokeKey(ctx, "chat", scoped.ID, false); err != nil {
		t.Fatal(err)
	}
	rotated, err := r.people.RotateKey(ctx, "chat")
	if err != nil {
		t.Fatal(err)
	}
	secrets["rotated key"] = rotated.Secret
	token := r.token("root", levelrail.AbilityRoot)
	secrets["token"] = token
	if _, err := r.people.SetHubToken(ctx, "chat", secrets["hub token"]+"2"); err != nil {
		t.Fatal(err)
	}
	n.assigned("chat", func(a wire.Assignment) bool { return a.Restarts == 1 })

	places := map[string]string{}
	for _, op := range operations(t) {
		if op.method != "GET" || strings.HasSuffix(op.path, "/logs") || strings.HasSuffix(op.path, "/watch") {
			continue
		}
		path := strings.NewReplacer("{name}", "chat", "{id}", n.id).Replace(op.path)
		if strings.HasSuffix(path, "/explain") {
			path += "?key=" + rotated.ID
		}
		got := r.ask(token, "GET", path, "")
		if got.status != 200 {
			t.Errorf("GET %s: %d %s", path, got.status, got.body)
		}
		places["GET "+path] = got.body
	}
	if _, err := r.people.DeleteModel(ctx, "chat"); err != nil {
		t.Fatal(err)
	}
	r.stop()
	places["the log"] = r.log.String()
	seen.mu.Lock()
	for _, l := range seen.lines {
		places["the watch"] += string(l.Object) + "\n"
	}
	seen.mu.Unlock()
	files := 0
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		places[path] = string(b)
		files++
		return err
	})
	if err != nil || files < 4 {
		t.Fatalf("%d files, %v", files, err)
	}
	for place, text := range places {
		if strings.Contains(text, "PRIVATE KEY") {
			t.Errorf("a private key is in %s", place)
		}
		for what, secret := range secrets {
			if _, bare, _ := strings.Cut(secret, "-"); strings.Contains(text, secret) || bare != "" && strings.Contains(text, bare) {
				t.Errorf("the %s is in %s", what, place)
			}
		}
		if strings.HasPrefix(place, "GET") && strings.Contains(text, levelrail.HashSecret(secrets["rotated key"])) {
			t.Errorf("the hash of a key is in %s", place)
		}
	}
}
