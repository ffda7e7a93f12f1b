package hostile

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestRevokedMember: what a member of the administrators' group follows ends within two seconds after the group no longer
// lists the user, and what a token follows within two seconds after it was revoked; both are told why.
func TestRevokedMember(t *testing.T) {
	t.Parallel()
	w := New(t)
	var token struct{ ID, Secret string }
	w.JSON(&token, "tokens create --name far --ability read")
	w.Run("curl -sS --unix-socket /run/levelrail/api.sock http://localhost/api/v1/ca.pem >/tmp/ca.pem && chmod 644 /tmp/ca.pem")

	type follower struct {
		what string
		done chan error
		out  *bytes.Buffer
		lose string
		says string
	}
	follow := func(what, script, lose, says string) *follower {
		f := &follower{what, make(chan error, 1), &bytes.Buffer{}, lose, says}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		t.Cleanup(cancel)
		ready := "/tmp/" + strings.ReplaceAll(what, " ", "-")
		go func() {
			out, stderr, err := w.Exec(ctx, fmt.Sprintf(script, "logs chat --follow --lines 5 2>&1 | tee "+ready))
			f.out.WriteString(out + stderr)
			f.done <- err
		}()
		w.Eventually(what+" to read", 20*time.Second, func() error {
			if len(w.Run("cat "+ready+" 2>/dev/null || true")) == 0 {
				return fmt.Errorf("nothing yet")
			}
			return nil
		})
		return f
	}
	// The pipe's status is that of the command line, not of tee.
	member := follow("the member", "setpriv --reuid member --regid member --init-groups -- bash -o pipefail -c 'levelrail models %s'", "gpasswd -d member levelrail", "no longer in the group")
	holder := follow("the token", "LEVELRAIL_URL=https://127.0.0.1:7420 LEVELRAIL_TOKEN="+token.Secret+" LEVELRAIL_CA_FILE=/tmp/ca.pem bash -o pipefail -c 'levelrail models %s'", "levelrail tokens revoke "+token.ID, "was revoked")
	for role, f := range map[Role]*follower{Member: member, KeyHolder: holder} {
		w.Run(f.lose)
		lost := time.Now()
		reached := ""
		select {
		case err := <-f.done:
			took := time.Since(lost)
			t.Logf("%s ended after %v: %v: %.400s", f.what, took.Round(time.Millisecond), err, f.out)
			if took > 2*time.Second {
				reached = fmt.Sprintf("lines for %v", took)
			}
			if err == nil || !strings.Contains(f.out.String(), f.says) {
				t.Errorf("%s ended with %v and was told %q", f.what, err, f.out)
			}
		case <-time.After(10 * time.Second):
			reached = "lines without end"
		}
		w.Attempt(role, "go on reading as "+f.what+" after the right is lost", reached)
	}
}
