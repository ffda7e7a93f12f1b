package caddymodule

import (
	"crypto/tls"
	"net"
	"net/http"
	"testing"
	"time"
)

// TestOnDemandCertificates: a handshake for a model's own domain gets a certificate and the model, over HTTP/2 too; any
// other name, and none, gets no certificate, so that nobody can make the gateway ask for one.
func TestOnDemandCertificates(t *testing.T) {
	port := freePort(t)
	h := newHost(t,
		"\tlevelrail {\n", "\tskip_install_trust\n\tlevelrail {\n",
		"# Further sites.", "https://:"+port+" {\n\tbind 127.0.0.1\n\ttls {\n\t\tissuer internal\n\t\ton_demand\n\t}\n\tlevelrail\n}\n# Further sites.")
	r := h.route("own")
	r.Domain = "own.example.com"
	h.cp.putRoute(r)
	key := h.cp.newKey("key_own", "own")
	h.caughtUp()
	dial := func(name string) (*tls.Conn, error) {
		d := tls.Dialer{NetDialer: &net.Dialer{Timeout: 5 * time.Second}, Config: &tls.Config{ServerName: name, InsecureSkipVerify: true}} // the authority is the test's own
		c, err := d.Dial("tcp", "127.0.0.1:"+port)
		if err != nil {
			return nil, err
		}
		return c.(*tls.Conn), nil
	}
	for name, ok := range map[string]bool{"own.example.com": true, "OWN.example.com": true, "other.example.com": false, "example.com": false, "chat": false} {
		c, err := dial(name)
		if (err == nil) != ok {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			c.Close()
		}
	}
	tr := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{ServerName: "own.example.com", InsecureSkipVerify: true}}
	defer tr.CloseIdleConnections()
	req := h.request("POST", chatPath, `{"model":"anything"}`, "Host", "own.example.com", "Authorization", "Bearer "+key)
	req.URL.Scheme, req.URL.Host = "https", "127.0.0.1:"+port
	resp, err := (&http.Client{Transport: tr, Timeout: 10 * time.Second}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 || resp.ProtoMajor != 2 {
		t.Errorf("HTTP/%d %d", resp.ProtoMajor, resp.StatusCode)
	}
}
