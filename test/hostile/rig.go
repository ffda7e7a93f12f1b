// Package hostile attacks an installed host as those would who are on it or near it: a local user, a member of the
// administrators' group who is not root, the holder of one key, an engine, a gateway and a control plane that somebody
// else has taken over. Each attempt is recorded with what it reached, and a table of all of them is printed at the end of
// each test: an attempt that gets through fails it.
//
// The package owns the roles and the record. Installing and asking are package e2e's.
package hostile

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/levelrail/levelrail/test/e2e"
	hosttest "github.com/levelrail/levelrail/test/host"
)

// A Role is who attacks.
type Role string

// The roles, and what each has at the start.
const (
	LocalUser Role = "local user"           // an account (mallory) without any group
	Member    Role = "member of the group"  // an account (member) in the group levelrail, not root
	KeyHolder Role = "holder of one key"    // World.Key, a key of the model chat, from the network
	WebPage   Role = "web page"             // a browser of somebody who has access, sent by a page from elsewhere
	Engine    Role = "compromised engine"   // code in an engine's unit
	Fetch     Role = "compromised download" // code in a fetch unit
	Gateway   Role = "compromised gateway"  // code as levelrail-gateway
	Server    Role = "compromised server"   // code as levelrail, with the agent's connection
)

// Chat deploys the model that most attacks are aimed at.
const Chat = "--name chat --engine llamacpp --gpus none --context 2048 --model " + hosttest.WeightsPath

// World is an installed host with the model chat, one key, and the accounts mallory and member.
type World struct {
	*e2e.Host
	Key string // opens chat

	t        *testing.T
	mu       sync.Mutex
	attempts []attempt
}

type attempt struct {
	role    Role
	what    string
	reached string // empty: nothing
}

// New boots and installs a host on Debian 13 with a real llama-server behind the model chat.
func New(t *testing.T, opts ...hosttest.Option) *World {
	t.Helper()
	w := Bare(t, append([]hosttest.Option{hosttest.WithEngine(hosttest.LlamaCpp), hosttest.WithWeights()}, opts...)...)
	w.Key = w.Deploy(Chat)
	return w
}

// Bare is New without a model.
func Bare(t *testing.T, opts ...hosttest.Option) *World {
	t.Helper()
	w := &World{Host: e2e.Install(t, hosttest.Trixie, opts...), t: t}
	w.Run("useradd --create-home mallory && useradd --create-home --groups levelrail member")
	for _, user := range []string{"mallory", "member"} { // else every attempt below would be refused for the wrong reason
		if name, err := w.As(user, "id -un"); err != nil || strings.TrimSpace(name) != user {
			t.Fatalf("acting as %s: %q, %v", user, name, err)
		}
	}
	t.Cleanup(w.report)
	return w
}

// As runs a script as an account of the host, with its groups and none of root's rights. The error is a
// *hosttest.ExitError when the script ended with a status other than 0.
func (w *World) As(user, script string) (output string, err error) {
	stdout, stderr, err := w.Exec(context.Background(), fmt.Sprintf("setpriv --reuid %[1]s --regid %[1]s --init-groups --inh-caps=-all --bounding-set=-all --no-new-privs -- bash -c %[2]s",
		user, quote(script)))
	return stdout + stderr, err
}

// Attempt records that a role tried something, and fails the test when it reached anything. What it reached is printed,
// so it must not be a secret.
func (w *World) Attempt(role Role, what, reached string) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.attempts = append(w.attempts, attempt{role, what, reached})
	if reached != "" {
		w.t.Errorf("%s, %s: reached %s", role, what, reached)
	}
}

// Refused is Attempt for a script run by an account, which reaches something when it succeeds.
func (w *World) Refused(role Role, user, what, script string) {
	w.t.Helper()
	output, err := w.As(user, script)
	var exit *hosttest.ExitError
	switch {
	case err == nil:
		w.Attempt(role, what, fmt.Sprintf("it: %.300q", output))
	case errors.As(err, &exit) && exit.Status == 127:
		w.t.Errorf("%s, %s: the attempt itself could not be made: %s", role, what, output)
	default:
		w.Attempt(role, what, "")
	}
}

// report prints what each role tried and reached.
func (w *World) report() {
	var b strings.Builder
	reached := 0
	for _, a := range w.attempts {
		result := "nothing"
		if a.reached != "" {
			result, reached = a.reached, reached+1
		}
		fmt.Fprintf(&b, "\n  %-22s %-70s %s", a.role, a.what, result)
	}
	if len(w.attempts) == 0 {
		return
	}
	w.t.Logf("who tried what, and what it reached:%s", b.String())
	w.t.Attr("attempts", fmt.Sprintf("%d, of which %d reached something", len(w.attempts), reached))
}

// quote makes one shell word.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
