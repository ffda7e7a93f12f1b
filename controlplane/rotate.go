package controlplane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/controlplane/authority"
	"github.com/levelrail/levelrail/controlplane/seal"
	"github.com/levelrail/levelrail/controlplane/stored"
	"github.com/levelrail/levelrail/raftstore/command"
)

// A rotation is asked for by a file and done by the next start, before anything is served: so there is one process that has
// the store, and a start that is ended in between is simply followed by another, which does the rest.
const (
	nextSuffix      = ".next"            // of the file with the master key that is to come
	rotateAuthority = "authority.rotate" // its content is the certificate of the authority that is to go
)

// rotation is from one master key to the next.
type rotation struct {
	cluster  string
	from, to seal.MasterKey
	inFile   bool // both are files of the state directory
}

// rotate seals every secret under the next master key. The check value is the last: a start with the old key alone is refused
// from then on, and one with both goes on where the last one ended.
func (s *Server) rotate(ctx context.Context, store Store, reader *stored.Reader, r rotation) (*seal.Sealer, bool, error) {
	sealer, err := seal.NewRotating(r.cluster, r.from, r.to)
	if err != nil {
		return nil, false, err
	}
	d, err := reader.Read()
	if err != nil {
		return nil, false, err
	}
	if err := sealer.Check(d.Secrets[seal.CheckPath]); err != nil {
		return nil, false, err
	}
	by := byServer(store, "rotation of the master key")
	paths := slices.Sorted(maps.Keys(d.Secrets))
	paths = append(slices.DeleteFunc(paths, func(p string) bool { return p == seal.CheckPath }), seal.CheckPath)
	anew := 0
	for _, path := range paths {
		old := d.Secrets[path]
		if sealer.Current(old) {
			continue
		}
		value, err := sealer.Open(old)
		if err != nil { // it did not open before either; its owner says so
			s.config.Log.Error("a secret stays as it is", "path", path, "error", err)
			continue
		}
		secret, err := sealer.Seal(old.Namespace, path, old, value)
		if err != nil {
			return nil, false, err
		}
		if _, err := store.Propose(ctx, by, command.SecretPut{Secret: secret}); err != nil {
			return nil, false, fmt.Errorf("seal %s under the next master key: %w", path, err)
		}
		anew++
	}
	if anew > 0 {
		s.config.Log.Info("the master key is rotated", "from", r.from.ID(), "to", r.to.ID(), "secrets", anew)
	}
	switch {
	case r.inFile:
		if err := seal.ReplaceKeyFile(s.masterKeyFile()+nextSuffix, s.masterKeyFile()); err != nil {
			return nil, false, fmt.Errorf("put the next master key in its place: %w", err)
		}
	case r.from != r.to:
		s.config.Log.Warn("everything is sealed under the next master key; give it to the server in the present one's place, and take the present one and the next away", "key", r.to.ID())
	}
	sealer, err = seal.New(r.cluster, r.to)
	return sealer, r.inFile, err
}

// rotateAuthorityAsked makes a new authority in place of the one that the file names.
func (s *Server) rotateAuthorityAsked(ca *authority.Authority) error {
	path := filepath.Join(s.dir, rotateAuthority)
	which, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read which authority is to be replaced: %w", err)
	}
	if bytes.Equal(which, ca.PEM()) { // else an earlier start has done it, and was ended before it removed the file
		if err := ca.Rotate(); err != nil {
			return fmt.Errorf("replace the authority: %w", err)
		}
		s.config.Log.Warn("there is a new authority; clients from elsewhere need its certificate", "file", ca.Path())
	}
	return os.Remove(path)
}

const rotateUsage = `Usage:
  levelrail-server rotate-master-key    seal everything under a new master key
  levelrail-server rotate-authority     replace the authority that signs the certificate of the TLS port

Run it as root. It restarts levelrail-server; its sockets stay open, engines and the gateway serve on. Broken off at any
point it can be given again. Afterwards:

  rotate-master-key   keep a copy of /var/lib/levelrail/server/master.key apart. The copy of the old key opens older backups
                      and nothing else, once the log and the snapshots are new as well:
                      levelrail-server restore /var/lib/levelrail/server, then remove what it set aside
  rotate-authority    give the new /var/lib/levelrail/server/tls/ca.pem to clients elsewhere (LEVELRAIL_CA_FILE), which refuse the
                      server until then
`

// rotateMain is the command. With --ask it only leaves the file, as the directory's owner.
func rotateMain(what string, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	syscall.Umask(0o077)
	if len(args) == 1 && args[0] == "--ask" {
		if err := ask(what, getenv("STATE_DIRECTORY")); err != nil {
			fmt.Fprintln(stderr, err)
			return 1
		}
		return 0
	}
	return rotateCommand(what, args, getenv, restartService, stdout, stderr)
}

// rotateCommand asks for a rotation and restarts the server.
func rotateCommand(what string, args []string, getenv func(string) string, restart func() error, stdout, stderr io.Writer) int {
	if len(args) > 0 {
		fmt.Fprint(stdout, rotateUsage)
		if len(args) == 1 && (args[0] == "--help" || args[0] == "-h" || args[0] == "help") {
			return 0
		}
		return 2
	}
	dir := stateDirectory
	if d := getenv("STATE_DIRECTORY"); d != "" {
		dir = d
	}
	err := ask(what, dir)
	if err == nil {
		err = restart()
	}
	if err == nil {
		err = await(what, dir)
	}
	if err != nil {
		fmt.Fprintf(stderr, "levelrail-server: %s: %s\n", what, message(err))
		var e *levelrail.Error
		if errors.As(err, &e) && e.Next != "" {
			fmt.Fprintln(stderr, "try:", e.Next)
			return 4
		}
		return 1
	}
	if what == "rotate-authority" {
		fmt.Fprintf(stdout, "The authority is new. Clients elsewhere need its certificate: %s\n", filepath.Join(dir, "tls", authority.CAFile))
		return 0
	}
	fmt.Fprintf(stdout, "The master key is new. Keep a copy apart: %s\nThe log and the snapshots still hold what was sealed under the old one; to be rid of it: systemctl stop 'levelrail-server*', "+
		"levelrail-server restore %s, remove what it set aside, systemctl start levelrail-server\n", filepath.Join(dir, "master.key"), dir)
	return 0
}

// ask leaves the file that the next start acts on, owned by whom the directory is. The directory is the server's, so root
// opens nothing in it by a name that could be a link: it works as the directory's owner.
func ask(what, dir string) error {
	uid, gid, err := ownerOf(dir)
	if err != nil {
		return err
	}
	if os.Geteuid() == 0 && uid != 0 {
		return asOwner(uid, gid, what, dir)
	}
	if what == "rotate-authority" {
		text, err := os.ReadFile(filepath.Join(dir, "tls", authority.CAFile))
		if err != nil {
			return levelrail.Errorf(levelrail.ErrNotFound, "there is no authority to replace: %v", err).WithNext("start levelrail-server, which makes one")
		}
		return os.WriteFile(filepath.Join(dir, rotateAuthority), text, 0o600)
	}
	file := filepath.Join(dir, "master.key")
	if _, err := os.Stat(file); err != nil {
		return levelrail.Errorf(levelrail.ErrRefused, "the master key of this server is not in %s", file).
			WithNext("give the new key as APP_MASTER_KEY_NEXT in %s and restart levelrail-server; afterwards put it in the present key's place, and take APP_MASTER_KEY_NEXT out", environmentFile)
	}
	err = seal.WriteKeyFile(file+nextSuffix, seal.NewMasterKey().Text())
	if errors.Is(err, fs.ErrExist) {
		return nil // one was begun: go on with it
	}
	return err
}

// asOwner runs this program's ask as the owner of the directory.
func asOwner(uid, gid int, what, dir string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, what, "--ask")
	cmd.Env, cmd.Dir = []string{"STATE_DIRECTORY=" + dir}, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return levelrail.Errorf(levelrail.ErrRefused, "%s", strings.TrimSpace(string(out))).WithNext("see levelrail-server %s --help", what)
	}
	return nil
}

// restartService restarts the server where systemd runs it.
func restartService() error {
	out, err := exec.Command("systemctl", "restart", "levelrail-server.service").CombinedOutput()
	if err != nil {
		return levelrail.Errorf(levelrail.ErrUnavailable, "the server was not restarted: %s", strings.TrimSpace(string(out))).
			WithNext("journalctl -u levelrail-server -n 20; the rotation is done at the next start")
	}
	return nil
}

// await waits until the server has done what was asked.
func await(what, dir string) error {
	path := filepath.Join(dir, rotateAuthority)
	if what == "rotate-master-key" {
		path = filepath.Join(dir, "master.key"+nextSuffix)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if time.Now().After(end) {
			return levelrail.Errorf(levelrail.ErrUnavailable, "the server has not done it within a minute").WithNext("journalctl -u levelrail-server -n 20; it is done at the next start")
		}
	}
}
