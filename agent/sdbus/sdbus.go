// Package sdbus speaks to systemd over D-Bus: jobs that are waited for, states of units, and a sign that something
// changed. It meets agent.Units. It owns the connection and makes a new one when systemd or the bus was restarted. It
// decides nothing and writes no file.
package sdbus

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"

	"github.com/levelrail/levelrail/agent/units"
)

// Manager is systemd's manager on this machine. Its methods may be called from several goroutines.
type Manager struct {
	changes chan struct{}
	mu      sync.Mutex
	conn    *dbus.Conn
}

// New returns a manager that connects when it is first asked. root is needed for all but reading.
func New() *Manager { return &Manager{changes: make(chan struct{}, 1)} }

// Changes says that the state of one of Levelrail's units may have changed. A sign may be lost while systemd is busy, so
// a caller looks by itself now and then as well.
func (m *Manager) Changes() <-chan struct{} { return m.changes }

// Close ends the connection.
func (m *Manager) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.conn != nil {
		m.conn.Close()
		m.conn = nil
	}
}

// connection returns the live connection, or makes one: over the system bus, and where there is none over systemd's own
// socket, which is root's.
func (m *Manager) connection(ctx context.Context) (*dbus.Conn, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.conn != nil && m.conn.Connected() {
		return m.conn, nil
	}
	if m.conn != nil {
		m.conn.Close()
		m.conn = nil
	}
	// The connection outlives the call that needed it first.
	conn, err := dbus.NewWithContext(context.WithoutCancel(ctx))
	if err != nil {
		return nil, fmt.Errorf("connect to systemd: %w", err)
	}
	if err := conn.Subscribe(); err != nil {
		conn.Close()
		return nil, fmt.Errorf("subscribe to systemd's signals: %w", err)
	}
	updates := make(chan *dbus.PropertiesUpdate, 256)
	lost := make(chan error, 1)
	conn.SetPropertiesSubscriber(updates, lost)
	go func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for conn.Connected() {
			select {
			case u := <-updates:
				if strings.HasPrefix(u.UnitName, "levelrail-") {
					m.poke()
				}
			case <-lost: // the channel was full: some change went by
				m.poke()
			case <-tick.C: // look whether the connection still stands
			}
		}
		m.poke()
	}()
	m.conn = conn
	return conn, nil
}

func (m *Manager) poke() {
	select {
	case m.changes <- struct{}{}:
	default:
	}
}

// Reload makes systemd read all unit files again.
func (m *Manager) Reload(ctx context.Context) error {
	conn, err := m.connection(ctx)
	if err != nil {
		return err
	}
	if err := conn.ReloadContext(ctx); err != nil {
		return fmt.Errorf("reload systemd's units: %w", err)
	}
	return nil
}

// Start starts a unit and returns when the job has ended; *units.JobError when it did not end well.
func (m *Manager) Start(ctx context.Context, unit string) error {
	return m.job(ctx, "start", unit, (*dbus.Conn).StartUnitContext)
}

// Stop stops a unit and returns when its processes are gone. A unit that systemd does not know is stopped already.
func (m *Manager) Stop(ctx context.Context, unit string) error {
	err := m.job(ctx, "stop", unit, (*dbus.Conn).StopUnitContext)
	if isNoSuchUnit(err) {
		return nil
	}
	return err
}

func (m *Manager) job(ctx context.Context, verb, unit string, begin func(*dbus.Conn, context.Context, string, string, chan<- string) (int, error)) error {
	conn, err := m.connection(ctx)
	if err != nil {
		return err
	}
	done := make(chan string, 1) // go-systemd delivers while it holds a lock
	if _, err := begin(conn, ctx, unit, "replace", done); err != nil {
		return fmt.Errorf("%s %s: %w", verb, unit, err)
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case result := <-done:
			if result != "done" {
				return &units.JobError{Verb: verb, Unit: unit, Result: result}
			}
			return nil
		case <-tick.C: // a lost connection would never tell
			if !conn.Connected() {
				return fmt.Errorf("%s %s: the connection to systemd was lost before the job ended", verb, unit)
			}
		case <-ctx.Done():
			return fmt.Errorf("%s %s: %w", verb, unit, ctx.Err())
		}
	}
}

// ResetFailed clears a unit's failure and its count of starts, so that it can be started again.
func (m *Manager) ResetFailed(ctx context.Context, unit string) error {
	conn, err := m.connection(ctx)
	if err != nil {
		return err
	}
	if err := conn.ResetFailedUnitContext(ctx, unit); err != nil && !isNoSuchUnit(err) {
		return fmt.Errorf("reset %s: %w", unit, err)
	}
	return nil
}

// Clean removes a stopped unit's cache directory.
func (m *Manager) Clean(ctx context.Context, unit string) error {
	// go-systemd has no call for it, so this one has a connection of its own, made in the same order.
	bus, err := godbus.ConnectSystemBus(godbus.WithContext(ctx))
	if err != nil {
		if bus, err = private(ctx); err != nil {
			return fmt.Errorf("clean %s: %w", unit, err)
		}
	}
	defer bus.Close()
	call := bus.Object("org.freedesktop.systemd1", "/org/freedesktop/systemd1").CallWithContext(ctx, "org.freedesktop.systemd1.Manager.CleanUnit", 0, unit, []string{"cache"})
	if call.Err != nil && !isNoSuchUnit(call.Err) {
		return fmt.Errorf("clean %s: %w", unit, call.Err)
	}
	return nil
}

// private connects to systemd's own socket, which is root's and needs no D-Bus daemon.
func private(ctx context.Context) (*godbus.Conn, error) {
	conn, err := godbus.Dial("unix:path=/run/systemd/private", godbus.WithContext(ctx))
	if err != nil {
		return nil, err
	}
	if err := conn.Auth([]godbus.Auth{godbus.AuthExternal(strconv.Itoa(os.Getuid()))}); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// States reads the states of the units named. A unit that systemd does not know is in the answer as not-found.
func (m *Manager) States(ctx context.Context, names []string) (map[string]units.State, error) {
	conn, err := m.connection(ctx)
	if err != nil {
		return nil, err
	}
	states := make(map[string]units.State, len(names))
	for _, name := range names {
		p, err := conn.GetUnitPropertiesContext(ctx, name)
		if isNoSuchUnit(err) {
			states[name] = units.State{Load: "not-found", Active: "inactive", Sub: "dead"}
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read the state of %s: %w", name, err)
		}
		s := units.State{
			Load: text(p, "LoadState"), Active: text(p, "ActiveState"), Sub: text(p, "SubState"),
			DropIns: list(p, "DropInPaths"), NeedReload: p["NeedDaemonReload"] == true,
			Changed: when(p, "StateChangeTimestamp"), Entered: when(p, "ActiveEnterTimestamp"),
		}
		if id, ok := p["InvocationID"].([]byte); ok && len(id) == 16 {
			s.Invocation = fmt.Sprintf("%x", id)
		}
		if strings.HasSuffix(name, ".service") && s.Load == "loaded" {
			// What ended a service and how often is only on its other interface.
			q, err := conn.GetUnitTypePropertiesContext(ctx, name, "Service")
			if err != nil && !isNoSuchUnit(err) {
				return nil, fmt.Errorf("read the state of %s: %w", name, err)
			}
			s.Result, s.MainPID, s.Restarts = text(q, "Result"), int(number(q, "MainPID")), int(number(q, "NRestarts"))
			s.ExitCode, s.ExitStatus = int(number(q, "ExecMainCode")), int(number(q, "ExecMainStatus"))
		}
		states[name] = s
	}
	return states, nil
}

func isNoSuchUnit(err error) bool {
	var e godbus.Error
	if errors.As(err, &e) {
		return strings.HasSuffix(e.Name, ".NoSuchUnit")
	}
	var p *godbus.Error
	return errors.As(err, &p) && strings.HasSuffix(p.Name, ".NoSuchUnit")
}

func text(p map[string]any, key string) string { s, _ := p[key].(string); return s }

func list(p map[string]any, key string) []string { l, _ := p[key].([]string); return l }

func number(p map[string]any, key string) int64 {
	switch n := p[key].(type) {
	case uint32:
		return int64(n)
	case int32:
		return int64(n)
	case uint64:
		return int64(n)
	}
	return 0
}

func when(p map[string]any, key string) time.Time {
	if us, ok := p[key].(uint64); ok && us > 0 {
		return time.UnixMicro(int64(us)).UTC()
	}
	return time.Time{}
}
