package listener

import (
	"fmt"
	"net"
	"net/http"
	"strings"
)

// protection has no exceptions: no origin is trusted, and no path is open to others.
var protection = http.NewCrossOriginProtection()

// Local refuses what a browser sends on behalf of a page that this listener did not serve, whatever the method, and
// requests for a host name that is none of the listener's. The first is cross-site request forgery; the second is what a
// page sends whose own name has been made to lead here (DNS rebinding), and which the browser takes for the same origin.
//
// serves tells whether a host, lower-case and without its port, is one of the listener's names. Programs that are no
// browsers send neither Origin nor Sec-Fetch-Site and have only their Host looked at.
func Local(r *http.Request, serves func(host string) bool) error {
	if host := hostName(r.Host); !serves(host) {
		return fmt.Errorf("the request is for the host %q, which is not a name of this listener", clip(r.Host))
	}
	// Go lets safe methods pass, since they change nothing. Here they may still hold a stream open, and nobody is served by
	// answering them.
	strict := *r
	strict.Method = http.MethodPost
	if protection.Check(&strict) != nil {
		from := r.Header.Get("Origin")
		if from == "" {
			from = "another site"
		}
		return fmt.Errorf("a browser sent the request on behalf of %s", clip(from))
	}
	return nil
}

// Loopback tells whether a host is one of the names of this machine that lead to no other: what clients of a Unix socket
// call it, and what a port that ssh -L forwards to one is called.
func Loopback(host string) bool {
	return host == "localhost" || host == "127.0.0.1" || host == "::1"
}

// hostName is the host in a Host header: lower-case, without port, brackets and a final dot.
func hostName(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}
