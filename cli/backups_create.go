package cli

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	ucli "github.com/urfave/cli/v2"

	"github.com/levelrail/levelrail"
)

func backupsCreate() verb {
	return verb{
		name: "create", usage: "take a backup of all that the cluster must not forget",
		long: "A backup is one file: models with their revisions, keys and tokens (their hashes), sealed secrets, settings, usage and the audit, as of one moment. Nothing is " +
			"stopped for it. The master key, which opens the secrets in it, is not in the file: keep a copy of that apart. Weights are not in it either; they are fetched " +
			"again. It is put back with `levelrail-server restore FILE`, see levelrail-server(8).",
		examples: []example{
			{"To a file named after cluster and time", "levelrail backups create"},
			{"To another machine, without a file here", "levelrail backups create --output - | ssh backup 'cat >levelrail.backup'"},
		},
		flags: []ucli.Flag{
			&ucli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "where to write it; - is standard output (default: levelrail-CLUSTER-TIME.backup here)"},
		},
		run: runBackupsCreate,
	}
}

func runBackupsCreate(s *session, c *ucli.Context) error {
	to := c.String("output")
	if to == "-" && s.json {
		return usagef(helpOf(c), "--output - writes the backup to standard output, where --json would write as well; give a file")
	}
	api, err := s.api()
	if err != nil {
		return err
	}
	if to == "-" {
		b, err := api.CreateBackup(s.ctx, s.stdout)
		if err == nil {
			s.note("%d records, %s, of cluster %s. The master key %s is not in it: keep it apart.", b.Records, size(b.Bytes), b.ClusterID, b.MasterKeyID)
		}
		return err
	}
	if to == "" {
		st, err := api.Status(s.ctx)
		if err != nil {
			return err
		}
		to = "levelrail-" + st.ClusterID + "-" + s.now().UTC().Format("20060102T150405Z") + ".backup"
	}
	// Written beside its name, which it gets when it is whole: no file of that name is ever a part of a backup.
	f, err := os.CreateTemp(filepath.Dir(to), ".levelrail-backup-") // mode 0600
	if err != nil {
		return fileError(to, err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	b, err := api.CreateBackup(s.ctx, f)
	if err != nil {
		return err
	}
	if err = errors.Join(f.Sync(), f.Close()); err == nil {
		err = os.Link(f.Name(), to) // unlike a rename, it never replaces an earlier backup
	}
	if err != nil {
		return fileError(to, err)
	}
	b.File = to
	if s.json {
		return s.document(b)
	}
	s.say("File        %s", b.File)
	s.say("Cluster     %s", b.ClusterID)
	s.say("Position    %d", b.Index)
	s.say("Holds       %d records, %s", b.Records, size(b.Bytes))
	s.say("Master key  %s, which is not in the file", b.MasterKeyID)
	s.note("Without the master key the backup cannot be restored: keep a copy of it apart from this file\n" +
		"(on the server's machine /var/lib/levelrail/server/master.key, unless you gave it a key yourself).")
	return nil
}

func fileError(path string, err error) error {
	if errors.Is(err, fs.ErrExist) {
		return levelrail.Errorf(levelrail.ErrConflict, "%s is there already, and a backup is not written over another", path).WithNext("give another name with --output")
	}
	var in *fs.PathError
	var link *os.LinkError
	switch {
	case errors.As(err, &in):
		err = in.Err
	case errors.As(err, &link):
		err = link.Err
	}
	return levelrail.Errorf(levelrail.ErrInvalid, "the backup cannot be written to %s: %v", path, err).WithNext("give a file in a directory that you may write to with --output")
}
