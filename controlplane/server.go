package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/beneath"
	"github.com/levelrail/levelrail/controlplane/authority"
	"github.com/levelrail/levelrail/controlplane/httpapi"
	"github.com/levelrail/levelrail/controlplane/ledger"
	"github.com/levelrail/levelrail/controlplane/reconcile"
	"github.com/levelrail/levelrail/controlplane/seal"
	"github.com/levelrail/levelrail/controlplane/stored"
	"github.com/levelrail/levelrail/controlplane/view"
	"github.com/levelrail/levelrail/raftstore"
	"github.com/levelrail/levelrail/raftstore/command"
)

// stateDirectory is where a server keeps its things when systemd does not say ($STATE_DIRECTORY).
const stateDirectory = "/var/lib/levelrail/server"

// stopWithin is how long requests under way may take once the server is told to stop.
const stopWithin = 5 * time.Second

// Config is what a server is made from.
type Config struct {
	Getenv func(string) string
	Log    *slog.Logger
	// Ready is called once when the server answers, with the address of its TLS port ("" for none).
	Ready func(tlsAddress string)

	open      func(ctx context.Context, c raftstore.Config) (*raftstore.Store, error) // raftstore.Open, in memory in tests
	heartbeat time.Duration                                                           // of watches
	// networkTime bounds requests on the TLS port. Default: the constant of that name.
	networkTime time.Duration
}

// Server is one control plane.
type Server struct {
	config   Config
	settings atomic.Pointer[Settings]
	document int // the version of the settings document in force
	loaded   bool
	warning  atomic.Pointer[string]
	// portWarning says why the TLS port is not open.
	portWarning atomic.Pointer[string]
	dir         string
}

// New reads the settings and opens nothing.
func New(c Config) (*Server, error) {
	if c.open == nil {
		c.open = raftstore.Open
	}
	if c.networkTime == 0 {
		c.networkTime = networkTime
	}
	s := &Server{config: c, dir: stateDirectory}
	if dirs := c.Getenv("STATE_DIRECTORY"); dirs != "" {
		s.dir, _, _ = strings.Cut(dirs, ":")
	}
	settings, err := LoadSettings(c.Getenv, nil)
	if err != nil {
		return nil, err
	}
	s.settings.Store(&settings)
	return s, nil
}

// Run serves until ctx ends, then ends all streams, finishes what is under way and closes the store.
func (s *Server) Run(ctx context.Context) error {
	began := time.Now()
	if uid, _, other, err := beneath.Owner(s.dir); err != nil {
		return err
	} else if other && os.Geteuid() == 0 {
		return fmt.Errorf("%s belongs to the user with id %d, who could lead root to any file from there, so root does not serve from it; "+
			"start the service: systemctl start levelrail-server", s.dir, uid)
	}
	settings := *s.settings.Load()
	doors, err := sockets(settings.RuntimeDir, s.config.Log)
	if err != nil {
		return err
	}
	defer closeDoors(doors)

	store, err := s.openStore(ctx)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		if err := store.Close(closing); err != nil {
			s.config.Log.Error("the store was not closed cleanly; it is read back from its log at the next start", "error", err)
		}
	}()
	reader := stored.New(store)
	sealer, keyInFile, err := s.openSecrets(ctx, store, reader, settings)
	if err != nil {
		return err
	}
	ca, err := authority.Open(filepath.Join(s.dir, "tls"), hostNames(settings), time.Now, &keeper{ctx, store, reader, sealer, byServer(store, "authority")})
	if err != nil {
		return err
	}
	if err := s.rotateAuthorityAsked(ca); err != nil {
		return err
	}
	if ca.Replaced() {
		s.config.Log.Warn("the authority's key is not in this store, so there is a new authority; clients from elsewhere need its certificate", "file", ca.Path())
	}
	port, err := tlsPort(settings.Listen, ca, s.portWaits)
	if err != nil {
		return err
	}
	address := ""
	if port != nil {
		address = port.Addr().String()
		doors = append(doors, door{httpapi.DoorTLS, port})
		defer port.Close()
	}

	reports, board := ledger.New(), view.NewBoard()
	defer reports.Close()
	world := s.worlds(store, sealer, reports)
	keyFile := ""
	if keyInFile {
		keyFile = s.masterKeyFile()
	}
	api := httpapi.New(httpapi.Options{
		Store: store, Reader: reader, Ledger: reports, Board: board, Sealer: sealer, World: world, Clock: time.Now, Log: s.config.Log, Heartbeat: s.config.heartbeat,
		Serves: ca.Serves,
		Keys:   func() httpapi.KeyRules { return s.settings.Load().Keys() },
		Facts: func() httpapi.Facts {
			f := httpapi.Facts{StartedAt: began.UTC(), TLSAddress: address, CAFile: ca.Path(), CAPEM: ca.PEM(), MadeKeyFile: keyFile}
			for _, w := range []*string{s.warning.Load(), s.portWarning.Load()} {
				if w != nil {
					f.Warnings = append(f.Warnings, *w)
				}
			}
			return f
		},
	})
	l := &loop{store: store, reader: reader, ledger: reports, board: board, sealer: sealer, world: world, settings: s.take, retention: func() time.Duration { return s.settings.Load().UsageRetention }, newID: levelrail.NewID, log: s.config.Log}
	return s.serve(ctx, doors, api, l, address, began)
}

// serve runs the loop and the doors until ctx ends or a door breaks.
func (s *Server) serve(ctx context.Context, doors []door, api *httpapi.Server, l *loop, address string, began time.Time) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var work sync.WaitGroup
	defer work.Wait()
	work.Go(func() { l.run(ctx) })
	work.Go(func() { api.Run(ctx) })
	work.Go(func() {
		watchdog(ctx, func() bool { _, err := l.reader.Read(); return err == nil })
	})

	broken := make(chan error, len(doors))
	var servers []*http.Server
	for _, d := range doors {
		srv := &http.Server{
			Handler: api.Handler(d.kind), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
			ConnContext: httpapi.ConnContext, ErrorLog: log.New(lineLog{s.config.Log}, "", 0),
		}
		s.bounded(srv, d.kind, *s.settings.Load())
		servers = append(servers, srv)
		work.Go(func() {
			if err := srv.Serve(d.l); !errors.Is(err, http.ErrServerClosed) {
				broken <- fmt.Errorf("serve the door %s: %w", d.kind, err)
			}
		})
	}
	s.config.Log.Info("ready", "cluster", s.cluster(l.reader), "tls", address, "took", time.Since(began).Round(time.Millisecond))
	ready := []string{"READY=1", "STATUS=serving"}
	if why := s.portWarning.Load(); why != nil {
		ready[1] = "STATUS=serving the sockets; " + *why
	}
	notify(ready...)
	if s.config.Ready != nil {
		s.config.Ready(address)
	}

	var err error
	select {
	case <-ctx.Done():
	case err = <-broken:
	}
	notify("STOPPING=1", "STATUS=stopping")
	s.config.Log.Info("stopping")
	api.Stop()
	closing, done := context.WithTimeout(context.WithoutCancel(ctx), stopWithin)
	defer done()
	var closed sync.WaitGroup
	for _, srv := range servers {
		closed.Go(func() {
			if srv.Shutdown(closing) != nil {
				srv.Close()
			}
		})
	}
	closed.Wait()
	cancel()
	return err
}

// portWaits notes why the TLS port is not open yet, or with "" that it is.
func (s *Server) portWaits(why string) {
	if why == "" {
		s.portWarning.Store(nil)
		s.config.Log.Info("the TLS port is open")
		notify("STATUS=serving")
		return
	}
	s.portWarning.Store(&why)
	s.config.Log.Error(why, "next", "give this machine the address or free the port, or set LEVELRAIL_LISTEN in "+environmentFile)
	notify("STATUS=serving the sockets; " + why)
}

func (s *Server) cluster(reader *stored.Reader) string {
	d, err := reader.Read()
	if err != nil {
		return ""
	}
	return d.Cluster.ID
}

// openStore opens the store and makes sure that its cluster has its record.
func (s *Server) openStore(ctx context.Context) (*raftstore.Store, error) {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the state directory: %w", err)
	}
	if err := s.storeLost(); err != nil {
		return nil, err
	}
	opening, opened := context.WithCancel(ctx)
	defer opened()
	go extendStart(opening)
	store, err := s.config.open(ctx, raftstore.Config{Dir: filepath.Join(s.dir, "store"), Logger: s.config.Log})
	if err != nil {
		return nil, fmt.Errorf("open the store: %w", err)
	}
	return store, nil
}

// storeLost refuses to begin a cluster beside what is left of another one: the certificate of its authority is written once
// its store is there. A server that began anew without being asked would leave engines and gateways without their cluster.
func (s *Server) storeLost() error {
	store := filepath.Join(s.dir, "store")
	if _, err := raftstore.Identify(store); !errors.Is(err, fs.ErrNotExist) {
		return nil // the store itself says what is wrong with it
	}
	if _, err := os.Stat(filepath.Join(s.dir, "tls", authority.CAFile)); err != nil {
		return nil
	}
	return levelrail.Errorf(levelrail.ErrRefused, "the store %s is gone, and %s says that this server has had one", store, filepath.Join(s.dir, "tls", authority.CAFile)).
		WithNext("bring the disk back, or restore a backup: levelrail-server restore BACKUP; to begin a new cluster: levelrail-server begin-anew")
}

func (s *Server) masterKeyFile() string { return filepath.Join(s.dir, "master.key") }

// openSecrets finds the master key and checks it against the cluster. A cluster that has no check value yet is new: it gets
// its record and the check value now.
func (s *Server) openSecrets(ctx context.Context, store Store, reader *stored.Reader, settings Settings) (sealer *seal.Sealer, inFile bool, err error) {
	d, err := reader.Read()
	if err != nil {
		return nil, false, err
	}
	check, there := d.Secrets[seal.CheckPath]
	key, inFile, err := seal.Load(seal.Sources{Setting: settings.MasterKey, Credentials: s.config.Getenv("CREDENTIALS_DIRECTORY"), File: s.masterKeyFile(), Make: !there})
	if err != nil {
		return nil, false, err
	}
	id := store.Status().ClusterID
	next, rotating, nextInFile, err := seal.LoadNext(settings.MasterKeyNext, s.masterKeyFile()+nextSuffix)
	if err != nil {
		return nil, false, err
	}
	if nextInFile && !inFile {
		s.config.Log.Error("the next master key in the file is not used, since the present one is in no file", "file", s.masterKeyFile()+nextSuffix, "next", "set APP_MASTER_KEY_NEXT in "+environmentFile+", and remove the file")
		rotating = false
	}
	if rotating && there {
		return s.rotate(ctx, store, reader, rotation{id, key, next, nextInFile})
	}
	if sealer, err = seal.New(id, key); err != nil {
		return nil, false, err
	}
	if there {
		return sealer, inFile, sealer.Check(check)
	}
	by := byServer(store, "first start")
	if _, err := store.Propose(ctx, by, command.ClusterInit{Cluster: levelrail.Cluster{ID: id}}); err != nil {
		return nil, false, fmt.Errorf("begin the cluster: %w", err)
	}
	if check, err = sealer.SealCheck(); err != nil {
		return nil, false, err
	}
	if _, err := store.Propose(ctx, by, command.SecretPut{Secret: check}); err != nil {
		return nil, false, fmt.Errorf("keep the check of the master key: %w", err)
	}
	s.config.Log.Info("a new cluster begins", "cluster", id, "master_key", key.ID())
	return sealer, inFile, nil
}

// worlds returns what makes the world of views out of a state.
func (s *Server) worlds(store Store, sealer *seal.Sealer, reports *ledger.Ledger) func(*reconcile.Desired) view.World {
	open := func(secret levelrail.Secret) (string, error) {
		value, err := sealer.Open(secret)
		return string(value), err
	}
	return func(d *reconcile.Desired) view.World {
		settings := s.settings.Load()
		return view.World{Desired: d, Observed: reports.Snapshot(), Term: store.Status().Term, Limits: settings.Limits(),
			HubBaseURL: settings.HubBaseURL, PublicHost: settings.PublicHost, Open: open}
	}
}

// take puts the settings document of a state in force. One that cannot be used changes nothing and is a warning in the
// status. It is called by the loop alone.
func (s *Server) take(d *reconcile.Desired) {
	if s.loaded && d.Settings.Version == s.document {
		return
	}
	s.loaded, s.document = true, d.Settings.Version
	settings, err := LoadSettings(s.config.Getenv, d.Settings.Values)
	if err != nil {
		text := fmt.Sprintf("version %d of the cluster's settings is not in force: %v", d.Settings.Version, err)
		s.warning.Store(&text)
		s.config.Log.Error("the cluster's settings cannot be used; those of before stay in force", "version", d.Settings.Version, "error", err)
		return
	}
	s.warning.Store(nil)
	s.settings.Store(&settings)
}

// lineLog passes the HTTP server's complaints (broken handshakes, mostly) on.
type lineLog struct{ log *slog.Logger }

var _ io.Writer = lineLog{}

func (l lineLog) Write(b []byte) (int, error) {
	l.log.Debug("http", "message", strings.TrimSpace(string(b)))
	return len(b), nil
}
