package listener

import (
	"net/http/httptest"
	"testing"
)

// TestLocal: programs pass with any of the listener's names; what a browser sends for another page, or for a name that was
// made to lead here, does not, with any method.
func TestLocal(t *testing.T) {
	const same, cross = "same-origin", "cross-site"
	for _, c := range []struct {
		name, host, origin, fetch string
		pass                      bool
	}{
		{"the command line", "localhost", "", "", true},
		{"curl through a forwarded socket", "127.0.0.1:8080", "", "", true},
		{"an IPv6 loopback", "[::1]:8080", "", "", true},
		{"without a port", "[::1]", "", "", true},
		{"in capitals, with a final dot", "LOCALHOST.:8080", "", "", true},
		{"a page that the listener served", "localhost:8080", "http://localhost:8080", same, true},
		{"an address that was typed", "localhost:8080", "", "none", true},
		{"a page elsewhere", "localhost:8080", "https://evil.example.com", cross, false},
		{"a page elsewhere, in an old browser", "localhost:8080", "https://evil.example.com", "", false},
		{"a link or an image elsewhere", "localhost:8080", "", cross, false},
		{"a page on another port", "localhost:8080", "http://localhost:3000", "same-site", false},
		{"a page on another port, in an old browser", "localhost:8080", "http://localhost:3000", "", false},
		{"a page without an origin", "localhost:8080", "null", "", false},
		{"a name that was made to lead here", "evil.example.com:8080", "http://evil.example.com:8080", same, false},
		{"the same, for a program", "evil.example.com", "", "", false},
		{"no name", "", "", "", false},
		{"another loopback address", "127.0.0.2", "", "", false},
		{"a name that begins like one", "localhost.evil.example.com", "", "", false},
	} {
		for _, method := range []string{"GET", "HEAD", "POST", "DELETE", "OPTIONS"} {
			r := httptest.NewRequest(method, "/api/v1/models/chat/restart", nil)
			r.Host = c.host
			for name, value := range map[string]string{"Origin": c.origin, "Sec-Fetch-Site": c.fetch} {
				if value != "" {
					r.Header.Set(name, value)
				}
			}
			if err := Local(r, Loopback); (err == nil) != c.pass {
				t.Errorf("%s, %s: %v", c.name, method, err)
			}
			if r.Method != method {
				t.Fatalf("the request's method is now %s", r.Method)
			}
		}
	}
}
