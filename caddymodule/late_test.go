package caddymodule

import (
	"bytes"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/levelrail/levelrail/caddymodule/late"
)

// TestSiteLater: a site whose address this machine has not, or whose port another program has, waits for it, and the other
// sites are served: at the start, through a reload, and until the reload that takes the site away. The log and the status of
// the service name the site, and its file and line; once the port is free the site is served by the same configuration.
func TestSiteLater(t *testing.T) {
	h := prepareHost(t, "\tpersist_config off", "\tpersist_config off\n\tskip_install_trust\n\tauto_https disable_redirects") // the port of plain HTTP may be this machine's own
	taken, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, port, _ := net.SplitHostPort(taken.Addr().String())
	if err := os.Mkdir(filepath.Join(h.dir, "sites"), 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(h.dir, "sites", "later.caddy")
	sites := "# Two sites.\nhttp://:" + port + " {\n\tbind 127.0.0.2\n\tlevelrail\n}\nhttps://vpn.example.com:" + port + " {\n\tbind 192.0.2.77 2001:db8::77\n\ttls internal\n\tlevelrail\n}\n"
	if err := os.WriteFile(file, []byte(sites), 0o600); err != nil {
		t.Fatal(err)
	}
	h.load()
	h.settled()
	for _, want := range []string{
		`"address":"127.0.0.2:` + port + `","site":"the site http://:` + port + ` (` + file + `:2)","error":"listen tcp 127.0.0.2:` + port + `: bind: address already in use"`,
		`"address":"192.0.2.77:` + port + `","site":"the site https://vpn.example.com:` + port + ` (` + file + `:6)"`,
		`"address":"[2001:db8::77]:` + port, "cannot assign requested address",
	} {
		h.eventually("the log has "+want, func() bool { return strings.Contains(h.log(), want) })
	}
	if s := late.Status(); !strings.Contains(s, "serving, but the site http://:"+port) || !strings.Contains(s, "waits for 127.0.0.2:"+port+": address already in use") ||
		!strings.Contains(s, "vpn.example.com") || !strings.Contains(s, "cannot assign") {
		t.Errorf("the status is %q", s)
	}
	waiting := late.Waiting()
	if waiting != 3 {
		t.Errorf("%d addresses wait", waiting)
	}
	h.load() // a reload: everything waits on
	h.settled()
	h.eventually("the old configuration no longer waits", func() bool { return late.Waiting() == waiting })

	taken.Close()
	h.eventually("the site is served", func() bool {
		resp, err := http.Get("http://127.0.0.2:" + port + "/health")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return resp.StatusCode == 200
	})
	h.eventually("the log says so", func() bool { return strings.Contains(h.log(), "a site that has waited for its address is served") })
	if s := late.Status(); strings.Contains(s, "127.0.0.2") || !strings.Contains(s, "192.0.2.77") {
		t.Errorf("the status is %q", s)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	h.load()
	h.eventually("nothing waits", func() bool { return late.Waiting() == 0 && late.Status() == "serving" })
}

// TestValidateSaysAbsent: checking a configuration warns of a site that is bound to an address which no interface has, with
// the site, its file and line, and says that it is valid.
func TestValidateSaysAbsent(t *testing.T) {
	h := prepareHost(t)
	config := filepath.Join(h.dir, "Caddyfile")
	text := h.caddyfile() + "\nhttp://:7422 {\n\tbind 127.0.0.1 192.0.2.77\n\tlevelrail\n}\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "validate", "--config", config, "--adapter", late.AdapterName)
	cmd.Env = append(os.Environ(), "LEVELRAIL_TEST_AS_GATEWAY=1", "HOME="+h.dir)
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("no interface of this machine has the address 192.0.2.77 now; the site http://:7422 is served once one has")) || bytes.Contains(out, []byte("127.0.0.1 now")) {
		t.Errorf("%v\n%s", err, out)
	}
}
