// Package late keeps one site's missing address from taking the whole gateway down. Caddy opens the listeners of all sites
// one after another, and the first that fails ends the start. Listeners of the network that this package registers are opened
// as soon as they can be: a VPN's address that comes up minutes after the boot, or a port that another program still has.
//
// It owns the adapter "levelrail", which is Caddy's for Caddyfiles with every site on that network, and the words for what
// waits: in the log, in systemd's status of the service, and as warnings of `levelrail-gateway validate`. How an address is
// tried again is package listener's.
package late

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/notify"
	"go.uber.org/zap"

	"github.com/levelrail/levelrail/listener"
)

// network is what listeners are opened on; in a configuration an address reads tcp-later/10.0.0.5:7421.
const network = "tcp-later"

func init() {
	caddy.RegisterNetwork(network, open)
	caddyhttp.RegisterNetworkHTTP3(network, "udp")
}

// open is Caddy's own listener where it can be opened now, else one that waits.
func open(_ context.Context, _, host, portRange string, offset uint, config net.ListenConfig) (any, error) {
	all, err := caddy.ParseNetworkAddress(caddy.JoinNetworkAddress("tcp", host, portRange))
	if err != nil {
		return nil, err
	}
	at := all.At(offset)
	w := new(waits)
	l := listener.Open(address{at}, func(ctx context.Context) (net.Listener, error) {
		l, err := at.Listen(ctx, 0, config)
		if err != nil {
			return nil, err
		}
		return l.(net.Listener), nil
	}, func(err error) { w.changed(at, err) })
	if !w.ever {
		return l, nil
	}
	return closes{l, w}, nil
}

// closes takes a listener that has waited off the list when it is closed.
type closes struct {
	net.Listener
	w *waits
}

func (c closes) Close() error {
	err := c.Listener.Close()
	mu.Lock()
	defer mu.Unlock()
	c.w.closed = true
	c.w.over()
	return err
}

type address struct{ caddy.NetworkAddress }

func (address) Network() string  { return "tcp" }
func (a address) String() string { return a.JoinHostPort(0) }

// waits is one listener that could not be opened at first.
type waits struct {
	ever   bool // set before Open returns, and not written after that
	closed bool
	text   string
}

var (
	mu  sync.Mutex
	all = map[*waits]bool{} // that wait now
)

// Waiting is how many addresses of sites are not open.
func Waiting() int {
	mu.Lock()
	defer mu.Unlock()
	return len(all)
}

func (w *waits) changed(at caddy.NetworkAddress, err error) {
	log := caddy.Log().Named("listener") // not "levelrail": Caddy sends that to another log than this logger
	site, where := names.of(at), at.JoinHostPort(0)
	if err == nil {
		log.Info("a site that has waited for its address is served", zap.String("address", where), zap.String("site", site))
		mu.Lock()
		defer mu.Unlock()
		w.over()
		return
	}
	log.Error("a site waits for its address, which is tried every second; the others are served", zap.String("address", where), zap.String("site", site),
		zap.Error(err), zap.String("next", next(at)))
	if !w.ever {
		w.ever = true
	}
	mu.Lock()
	defer mu.Unlock()
	if w.closed {
		return
	}
	w.text = fmt.Sprintf("%s waits for %s: %v", cmp.Or(site, "a site"), where, cause(err))
	all[w] = true
	tell()
}

// over takes it off the list, whose lock is held.
func (w *waits) over() {
	if all[w] {
		delete(all, w)
		tell()
	}
}

// Status is what the service does, as systemd shows it.
func Status() string {
	mu.Lock()
	defer mu.Unlock()
	return status()
}

func status() string {
	if len(all) == 0 {
		return "serving"
	}
	var texts []string
	for w := range maps.Keys(all) {
		texts = append(texts, w.text)
	}
	slices.Sort(texts)
	return "serving, but " + strings.Join(texts, "; ")
}

// tell tells systemd. Outside it nobody listens.
func tell() { notify.Status(status()) }

// cause is an error without what is said beside it: the network and the address.
func cause(err error) error {
	for inner := err; inner != nil; inner = errors.Unwrap(inner) {
		err = inner
	}
	return err
}

// next is what to do about an address that cannot be opened.
func next(at caddy.NetworkAddress) string {
	return fmt.Sprintf("see whether this machine has the address (ip addr) and who has the port (ss -ltnp 'sport = :%d'), or take the site away", at.StartPort)
}
