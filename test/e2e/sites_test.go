package e2e

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	hosttest "github.com/levelrail/levelrail/test/host"
)

// TestSiteOfAnAddressThatComesLater: with a site that is bound to an address which the machine does not have yet, the gateway
// starts and serves its other sites, also after a reboot; validate and the status of the service name the site, and it is
// served once the address is there. A port that another program has keeps one site waiting in the same way. The server's own
// TLS port keeps nothing waiting either.
func TestSiteOfAnAddressThatComesLater(t *testing.T) {
	t.Parallel()
	h := Install(t, hosttest.Trixie)
	healthy := func(at string) error {
		resp, err := h.HTTPClient().Get("http://" + at + "/health")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if body, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s %s %v", resp.Status, body, err)
		}
		return nil
	}
	const site = "http://:7430 {\n\tbind 10.77.0.5\n\tlevelrail\n}\n"
	if err := h.WriteFile("/etc/levelrail/sites/vpn.caddy", []byte(site), 0o644); err != nil {
		t.Fatal(err)
	}
	h.Run("echo LEVELRAIL_LISTEN=10.77.0.5:7420 >>/etc/default/levelrail-server")
	if said := h.Run("levelrail-gateway validate 2>&1"); !strings.Contains(said, "10.77.0.5") || !strings.Contains(said, "vpn.caddy") || !strings.Contains(said, "http://:7430") {
		t.Errorf("validate says\n%s", said)
	}
	h.Run("systemctl reload levelrail-gateway && systemctl restart levelrail-server")
	waits := func(when string) {
		t.Helper()
		h.WaitActive("levelrail-gateway.service")
		h.WaitActive("levelrail-server.service")
		h.Eventually("the site on loopback "+when, 20*time.Second, func() error { return healthy("127.0.0.1:7421") })
		h.Eventually("the status "+when, 20*time.Second, func() error {
			status := h.Run("systemctl show -P StatusText levelrail-gateway")
			if !strings.Contains(status, "http://:7430 (/etc/levelrail/sites/vpn.caddy:1) waits for 10.77.0.5:7430: cannot assign requested address") {
				return fmt.Errorf("it is %q", status)
			}
			return nil
		})
		if n := strings.TrimSpace(h.Run("systemctl show -P NRestarts levelrail-gateway")); n != "0" {
			t.Errorf("%s the gateway was restarted %s times", when, n)
		}
		if said, _ := h.CLI("status"); !strings.Contains(said, "10.77.0.5:7420 is not open") {
			t.Errorf("%s the server says\n%s", when, said)
		}
	}
	waits("after a reload")
	h.Reboot()
	waits("after a reboot")
	h.Run("ip addr add 10.77.0.5/32 dev lo")
	h.Eventually("the site on the new address", 10*time.Second, func() error { return healthy("10.77.0.5:7430") })
	h.Eventually("the API on the new address", 10*time.Second, func() error {
		_, _, err := h.Exec(t.Context(), "curl -sk --max-time 5 https://10.77.0.5:7420/api/v1/ca.pem | grep -q BEGIN")
		return err
	})
	if status := strings.TrimSpace(h.Run("systemctl show -P StatusText levelrail-gateway")); status != "serving" {
		t.Errorf("the status is %q", status)
	}

	// Another program has the port of a second site.
	other, err := h.Listen("tcp", "127.0.0.1:7431")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := h.WriteFile("/etc/levelrail/sites/second.caddy", []byte("http://:7431 {\n\tbind 127.0.0.1\n\tlevelrail\n}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	h.Run("systemctl restart levelrail-gateway")
	for _, at := range []string{"127.0.0.1:7421", "10.77.0.5:7430"} {
		h.Eventually(at+" beside a port that is taken", 20*time.Second, func() error { return healthy(at) })
	}
	if status := h.Run("systemctl show -P StatusText levelrail-gateway"); !strings.Contains(status, "second.caddy:1) waits for 127.0.0.1:7431: address already in use") {
		t.Errorf("the status is %q", status)
	}
	other.Close()
	h.Eventually("the second site, once its port is free", 10*time.Second, func() error { return healthy("127.0.0.1:7431") })
}
