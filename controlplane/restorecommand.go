package controlplane

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/beneath"
	"github.com/levelrail/levelrail/controlplane/restore"
	"github.com/levelrail/levelrail/controlplane/seal"
)

const restoreUsage = `levelrail-server restore puts a backup in the place of this server's store. The server must be stopped.

Usage:
  levelrail-server restore [--master-key-file FILE] [--revoke-returned] [--yes] [--json] BACKUP

  BACKUP is a file of "levelrail backups create", or a copy of a server's state directory.

  --master-key-file FILE  the master key that the backup's secrets are sealed under, where this host has another or none
  --revoke-returned       revoke the keys that would open models again although this host's gateway no longer knew them
  --yes                   do not ask
  --json                  print the report as JSON

What is replaced is set aside in the state directory, and nothing is replaced when the backup is damaged or the master key
does not open it.
`

// Where a host keeps what a restore compares with.
const (
	gatewayDirectory = "/var/lib/levelrail/gateway"
	unitDirectory    = "/etc/systemd/system"
	credentialStore  = "/etc/credstore/" + seal.Credential
)

// restoreFlags are what the command line says. The second half is for the process without root's rights.
type restoreFlags struct {
	source    string
	keyFile   string
	revoke    bool
	yes, json bool
	staged    string // a directory with known.json, that root made
}

func parseRestore(args []string, stderr io.Writer) (restoreFlags, bool) {
	var f restoreFlags
	set := flag.NewFlagSet("restore", flag.ContinueOnError)
	set.SetOutput(stderr)
	set.Usage = func() { fmt.Fprint(stderr, restoreUsage) }
	set.StringVar(&f.keyFile, "master-key-file", "", "")
	set.BoolVar(&f.revoke, "revoke-returned", false, "")
	set.BoolVar(&f.yes, "yes", false, "")
	set.BoolVar(&f.json, "json", false, "")
	set.StringVar(&f.staged, "staged", "", "")
	if set.Parse(args) != nil {
		return f, false
	}
	if set.NArg() != 1 {
		fmt.Fprintf(stderr, "levelrail-server: restore takes one backup, and %d were given\n\n%s", set.NArg(), restoreUsage)
		return f, false
	}
	f.source = set.Arg(0)
	return f, true
}

// restoreCommand is `levelrail-server restore`. As root it only reads what the host knows and copies the backup; the store
// is the server's user's, and written by a process of that user.
func restoreCommand(args []string, getenv func(string) string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(args) == 1 && (args[0] == "--help" || args[0] == "-h" || args[0] == "help") {
		fmt.Fprint(stdout, restoreUsage)
		return 0
	}
	f, ok := parseRestore(args, stderr)
	if !ok {
		return 2
	}
	syscall.Umask(0o077)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	stateDir := stateDirectory
	if dir := getenv("STATE_DIRECTORY"); dir != "" {
		stateDir = dir
	}
	var err error
	if uid, gid, ownErr := ownerOf(stateDir); os.Geteuid() == 0 && f.staged == "" && (ownErr != nil || uid != 0) {
		if err = ownErr; err == nil {
			var code int
			if code, err = restoreAs(ctx, uid, gid, stateDir, f, getenv, stdin, stdout, stderr); err == nil {
				return code
			}
		}
	} else {
		err = restoreHere(ctx, stateDir, f, getenv, stdin, stdout, stderr)
	}
	if err == nil {
		return 0
	}
	fmt.Fprintln(stderr, "levelrail-server: restore:", message(err))
	var e *levelrail.Error
	if errors.As(err, &e) && e.Next != "" {
		fmt.Fprintln(stderr, "try:", e.Next)
	}
	if errors.As(err, &e) {
		return 4
	}
	return 1
}

// message is an error without its next step, which has a line of its own.
func message(err error) string {
	var e *levelrail.Error
	if errors.As(err, &e) && e.Next != "" {
		return strings.TrimSuffix(err.Error(), " (next: "+e.Next+")")
	}
	return err.Error()
}

// ownerOf is who owns the state directory, or will.
func ownerOf(stateDir string) (uid, gid int, err error) {
	info, err := os.Lstat(stateDir)
	if err == nil && info.IsDir() {
		st := info.Sys().(*syscall.Stat_t)
		return int(st.Uid), int(st.Gid), nil
	}
	u, err := user.Lookup("levelrail")
	if err != nil {
		return 0, 0, levelrail.Errorf(levelrail.ErrInvalid, "there is neither the directory %s nor the user levelrail", stateDir).WithNext("install the package levelrail-server")
	}
	uid, _ = strconv.Atoi(u.Uid)
	gid, err = strconv.Atoi(u.Gid)
	return uid, gid, err
}

// restoreAs stages what only root can read, and runs the restore as the owner of the state directory.
func restoreAs(ctx context.Context, uid, gid int, stateDir string, f restoreFlags, getenv func(string) string, stdin io.Reader, stdout, stderr io.Writer) (int, error) {
	if _, err := os.Lstat(stateDir); errors.Is(err, os.ErrNotExist) {
		if err := errors.Join(os.MkdirAll(filepath.Dir(stateDir), 0o755), os.Mkdir(stateDir, 0o700), os.Lchown(stateDir, uid, gid)); err != nil {
			return 1, err
		}
	}
	// Beside the state directory, where only root may make names.
	stage, err := os.MkdirTemp(filepath.Dir(stateDir), ".restore-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(stage)
	known, err := json.Marshal(restore.Find(gatewayDirectory, unitDirectory, time.Now()))
	if err != nil {
		return 1, err
	}
	if err := os.WriteFile(filepath.Join(stage, "known.json"), known, 0o600); err != nil {
		return 1, err
	}
	source, err := filepath.Abs(f.source)
	if err != nil {
		return 1, err
	}
	if source != stateDir {
		if err := stageSource(source, stateDir, filepath.Join(stage, "source")); err != nil {
			return 1, levelrail.Errorf(levelrail.ErrInvalid, "the backup %s cannot be read: %v", f.source, err).WithNext("name a file of levelrail backups create, or a copy of a server's state directory")
		}
		source = filepath.Join(stage, "source")
	}
	env := []string{"STATE_DIRECTORY=" + stateDir, "PATH=" + getenv("PATH"), "TERM=" + getenv("TERM")}
	if key, err := keyForRestore(f.keyFile, getenv); err != nil {
		return 1, err
	} else if key != "" {
		env = append(env, "APP_MASTER_KEY="+key)
	}
	if err := handOver(stage, func(path string) error { return os.Lchown(path, uid, gid) }); err != nil {
		return 1, err
	}
	args := []string{"restore", "--staged", stage}
	for flag, set := range map[string]bool{"--revoke-returned": f.revoke, "--yes": f.yes, "--json": f.json} {
		if set {
			args = append(args, flag)
		}
	}
	self, err := os.Executable()
	if err != nil {
		return 1, err
	}
	cmd := exec.CommandContext(ctx, self, append(args, source)...)
	cmd.Env, cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = env, "/", stdin, stdout, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		return exit.ExitCode(), nil
	}
	return 0, err
}

// stageSource copies the backup for the owner of the state directory. What lies in that directory is opened over no link: the
// owner could have put one there that leads root to a file which is not for him to read.
func stageSource(source, stateDir, to string) error {
	rel, err := filepath.Rel(stateDir, source)
	if err != nil || !filepath.IsLocal(rel) {
		return restore.Stage(source, to)
	}
	f, err := beneath.Open(stateDir, rel, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.IsDir() && !info.Mode().IsRegular() {
		return errors.Join(err, errors.New("it is neither a file nor a directory"))
	}
	return restore.Stage(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), to)
}

// handOver gives a directory of root's to another user, itself last: until then nobody else gets into it and could put a
// link in the place of what is still to be given.
func handOver(dir string, give func(path string) error) error {
	var paths []string
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		paths = append(paths, path)
		return err
	})
	if err != nil {
		return err
	}
	for _, path := range slices.Backward(paths) {
		if err := give(path); err != nil {
			return err
		}
	}
	return nil
}

// keyForRestore is the master key that the operator or the host gives, empty for the one in the state directory.
func keyForRestore(file string, getenv func(string) string) (string, error) {
	if file == "" {
		if key := getenv("APP_MASTER_KEY"); key != "" {
			return key, nil
		}
		file = credentialStore
		if _, err := os.Stat(file); errors.Is(err, os.ErrNotExist) {
			return "", nil
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return "", levelrail.Errorf(levelrail.ErrInvalid, "the master key cannot be read: %v", err).WithNext("give the copy that was kept apart: --master-key-file FILE")
	}
	return strings.TrimSpace(string(text)), nil
}

// restoreHere restores with the rights that this process has.
func restoreHere(ctx context.Context, stateDir string, f restoreFlags, getenv func(string) string, stdin io.Reader, stdout, stderr io.Writer) error {
	o := restore.Options{Source: f.source, StateDir: stateDir, RevokeReturned: f.revoke, Clock: time.Now}
	if f.staged != "" {
		o.MasterKey = getenv("APP_MASTER_KEY") // root has looked
		text, err := os.ReadFile(filepath.Join(f.staged, "known.json"))
		if err == nil {
			err = json.Unmarshal(text, &o.Known)
		}
		if err != nil {
			return fmt.Errorf("read what this host knows: %w", err)
		}
	} else {
		var err error
		if o.MasterKey, err = keyForRestore(f.keyFile, getenv); err != nil {
			return err
		}
		o.Known = restore.Known{From: []string{"nothing on this host, because the command does not run as root: what came back and what is gone is not known"}}
	}
	o.Confirm = func(r restore.Report) error {
		if !f.json {
			writeReport(stdout, r, f.revoke)
		}
		return confirmRestore(f, stdin, stderr)
	}
	r, err := restore.Run(ctx, o)
	if err != nil {
		return err
	}
	if f.json {
		enc := json.NewEncoder(stdout)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		return enc.Encode(r)
	}
	for _, path := range r.SetAside {
		fmt.Fprintf(stdout, "Set aside    %s\n", path)
	}
	fmt.Fprintln(stdout, "Restored. Next: systemctl start levelrail-server")
	return nil
}

func confirmRestore(f restoreFlags, stdin io.Reader, stderr io.Writer) error {
	if f.yes {
		return nil
	}
	file, ok := stdin.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return levelrail.Errorf(levelrail.ErrRefused, "nothing was replaced: without a terminal to ask at, the restore needs --yes").WithNext("add --yes once the report above is what you want")
	}
	unix.IoctlSetInt(int(file.Fd()), unix.TCFLSH, unix.TCIFLUSH) // what was typed before the question does not answer it
	fmt.Fprint(stderr, "Put this in the place of the server's store? [y/N] ")
	line, _ := bufio.NewReader(stdin).ReadString('\n')
	if a := strings.ToLower(strings.TrimSpace(line)); a != "y" && a != "yes" {
		return levelrail.Errorf(levelrail.ErrRefused, "nothing was replaced")
	}
	return nil
}

// writeReport says for people what the backup holds, and what of it differs from what was in force.
func writeReport(w io.Writer, r restore.Report, revoke bool) {
	fmt.Fprintf(w, "Backup       of %s, position %d\n", r.TakenAt.UTC().Format(time.RFC3339), r.Index)
	fmt.Fprintf(w, "Cluster      %s\n", r.ClusterID)
	if r.Replaces != "" {
		fmt.Fprintf(w, "Replaces     the cluster %s of this server, whose agents and gateways become this one's\n", r.Replaces)
	}
	fmt.Fprintf(w, "Master key   %s opens its secrets\n", r.MasterKeyID)
	fmt.Fprintf(w, "Holds        %d models, %d keys that open something, %d tokens, %d nodes, %d hours of usage by key and model\n", r.Models, r.Keys, r.Tokens, r.Nodes, r.UsageRows)
	for _, from := range r.KnownFrom {
		fmt.Fprintf(w, "Compared to  %s\n", from)
	}
	keys := func(title string, list []restore.KeyRef, then string) {
		if len(list) == 0 {
			return
		}
		fmt.Fprintf(w, "\n%s\n", title)
		for _, k := range list {
			fmt.Fprintf(w, "  %s  %s…  %s, for %s\n", k.ID, k.Prefix, k.Name, strings.Join(k.Models, ", "))
		}
		fmt.Fprintln(w, then)
	}
	returned := "They were revoked, replaced or deleted after the backup. To revoke them with the restore, add --revoke-returned."
	if revoke {
		returned = "They are revoked with the restore."
	}
	keys(fmt.Sprintf("%d keys open their models AGAIN:", len(r.ReturnedKeys)), r.ReturnedKeys, returned)
	keys(fmt.Sprintf("%d keys open NOTHING any more:", len(r.GoneKeys)), r.GoneKeys, "They were made after the backup. Their clients get 401 and need new keys.")
	models := func(title string, list []string, then string) {
		if len(list) > 0 {
			fmt.Fprintf(w, "\n%s %s\n%s\n", title, strings.Join(list, ", "), then)
		}
	}
	models(fmt.Sprintf("%d models come BACK:", len(r.ReturnedModels)), r.ReturnedModels, "They were deleted after the backup, or ran on another machine. They are fetched and started again; levelrail models delete takes them down.")
	models(fmt.Sprintf("%d models are GONE:", len(r.GoneModels)), r.GoneModels, "They were deployed after the backup. Their engines are stopped when the agent hears of it; their weights stay.")
	fmt.Fprintf(w, "\nUsage that gateways reported after %s is not in the backup; what they have not reported yet is counted.\n", r.TakenAt.UTC().Format(time.RFC3339))
}
