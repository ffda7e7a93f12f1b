package late

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
)

// AdapterName is the adapter's: run --adapter levelrail.
const AdapterName = "levelrail"

func init() { caddyconfig.RegisterAdapter(AdapterName, adapter{}) }

// adapter reads a Caddyfile as Caddy does, and has every site listen on the network of this package.
type adapter struct{}

func (adapter) Adapt(body []byte, options map[string]any) ([]byte, []caddyconfig.Warning, error) {
	config, warnings, err := caddyfile.Adapter{ServerType: httpcaddyfile.ServerType{}}.Adapt(body, options)
	if err != nil {
		return config, warnings, err
	}
	file, _ := options["filename"].(string)
	if blocks, err := caddyfile.Parse(file, body); err == nil { // for words alone; Caddy has just read the same
		names.read(blocks)
		warnings = append(warnings, absent(blocks)...)
	}
	config, err = rewrite(config)
	return config, warnings, err
}

// rewrite puts the listeners of all HTTP servers on the network. All else of the configuration stays as it is.
func rewrite(config []byte) ([]byte, error) {
	doc, err := members(config)
	if err != nil || doc["apps"] == nil {
		return config, err
	}
	apps, err := members(doc["apps"])
	if err != nil || apps["http"] == nil {
		return config, err
	}
	http, err := members(apps["http"])
	if err != nil || http["servers"] == nil {
		return config, err
	}
	servers, err := members(http["servers"])
	if err != nil {
		return nil, err
	}
	for name, text := range servers {
		server, err := members(text)
		if err != nil {
			return nil, err
		}
		var listen []string
		if server["listen"] == nil || json.Unmarshal(server["listen"], &listen) != nil {
			continue
		}
		for i := range listen {
			listen[i] = later(listen[i])
		}
		server["listen"] = caddyconfig.JSON(listen, nil)
		servers[name] = caddyconfig.JSON(server, nil)
	}
	http["servers"] = caddyconfig.JSON(servers, nil)
	apps["http"] = caddyconfig.JSON(http, nil)
	doc["apps"] = caddyconfig.JSON(apps, nil)
	return json.Marshal(doc)
}

func members(text []byte) (map[string]json.RawMessage, error) {
	var out map[string]json.RawMessage
	err := json.Unmarshal(text, &out)
	return out, err
}

// later is an address on the network, if it is one of TCP.
func later(text string) string {
	name, host, port, err := caddy.SplitNetworkAddress(text)
	if err != nil || name != "" && name != "tcp" {
		return text
	}
	return caddy.JoinNetworkAddress(network, host, port)
}

// sites are the words for addresses: which site of which file listens there.
type sites struct {
	mu  sync.Mutex
	all []site
}

type site struct {
	host, port string
	text       string // its name and place
}

// names are those of the Caddyfile that was read last.
var names sites

func (s *sites) read(blocks []caddyfile.ServerBlock) {
	var found []site
	for _, b := range blocks {
		for _, k := range b.Keys {
			a, err := httpcaddyfile.ParseAddress(strings.TrimSuffix(k.Text, ","))
			if err != nil {
				continue
			}
			port := a.Port
			switch {
			case port != "":
			case a.Scheme == "http":
				port = "80"
			default:
				port = "443"
			}
			for _, host := range hosts(binds(b)) {
				found = append(found, site{host: host, port: port, text: fmt.Sprintf("the site %s (%s:%d)", k.Text, k.File, k.Line)})
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = found
}

// of is the site that listens at an address; Caddy's own redirects from port 80 count as the site that they lead to. It is
// empty where that cannot be told.
func (s *sites) of(at caddy.NetworkAddress) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	port := strconv.FormatUint(uint64(at.StartPort), 10)
	for _, is := range []func(site) bool{
		func(one site) bool { return one.host == at.Host && one.port == port },
		func(one site) bool { return one.host == at.Host },                // redirects
		func(one site) bool { return one.host == "" && one.port == port }, // default_bind
	} {
		var out []string
		for _, one := range s.all {
			if is(one) && !slices.Contains(out, one.text) {
				out = append(out, one.text)
			}
		}
		if len(out) > 0 {
			return strings.Join(out, ", ")
		}
	}
	return ""
}

// binds are the addresses after bind in a site, as tokens.
func binds(b caddyfile.ServerBlock) (out []caddyfile.Token) {
	for _, seg := range b.Segments {
		if seg.Directive() != "bind" {
			continue
		}
		for _, t := range seg[1:] {
			if t.Text == "{" {
				break
			}
			out = append(out, t)
		}
	}
	return out
}

func hosts(binds []caddyfile.Token) []string {
	if len(binds) == 0 {
		return []string{""}
	}
	var out []string
	for _, t := range binds {
		_, host, found := strings.Cut(t.Text, "/")
		if !found {
			host = t.Text
		}
		out = append(out, strings.Trim(host, "[]"))
	}
	return out
}

// absent warns of addresses that sites are bound to and no interface has now.
func absent(blocks []caddyfile.ServerBlock) (out []caddyconfig.Warning) {
	interfaces, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	for _, b := range blocks {
		for _, t := range binds(b) {
			ip, err := netip.ParseAddr(strings.Trim(t.Text, "[]"))
			if err != nil || ip.IsUnspecified() || ip.IsLoopback() || slices.ContainsFunc(interfaces, func(a net.Addr) bool {
				p, err := netip.ParsePrefix(a.String())
				return err == nil && p.Addr().Unmap() == ip.Unmap().WithZone("")
			}) {
				continue
			}
			name := ""
			if len(b.Keys) > 0 {
				name = b.Keys[0].Text
			}
			out = append(out, caddyconfig.Warning{File: t.File, Line: t.Line, Directive: "bind",
				Message: fmt.Sprintf("no interface of this machine has the address %s now; the site %s is served once one has", ip, name)})
		}
	}
	return out
}
