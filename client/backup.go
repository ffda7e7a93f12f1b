package client

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

// CreateBackup writes a backup to w and checks it on the way. It fails with unavailable when the server broke off, in which
// case w has only a part. Ability root.
func (c *Client) CreateBackup(ctx context.Context, w io.Writer) (wire.Backup, error) {
	var b wire.Backup
	sum, whole := sha256.New(), false
	header := func(h http.Header) { b.MasterKeyID = h.Get(wire.MasterKeyHeader) }
	n := 0
	err := c.linesWithHeader(ctx, http.MethodPost, "/backups", nil, struct{}{}, backupSilence, header, func(line []byte) error {
		n++
		switch {
		case whole:
			return levelrail.Errorf(levelrail.ErrInternal, "the backup from %s goes on after its end", c.Where())
		case n == 1:
			if err := json.Unmarshal(line, &b); err != nil || b.ClusterID == "" {
				return levelrail.Errorf(levelrail.ErrInternal, "what %s sent is no backup", c.Where()).WithNext("compare the versions: levelrail version")
			}
		case bytes.HasPrefix(line, []byte(`{"records":`)):
			have, said := b.Records, b
			if err := json.Unmarshal(line, &said); err != nil {
				return levelrail.Errorf(levelrail.ErrInternal, "the end of the backup from %s cannot be read: %v", c.Where(), err)
			}
			if said.Records != have || said.SHA256 != hex.EncodeToString(sum.Sum(nil)) {
				return levelrail.Errorf(levelrail.ErrInternal, "the backup from %s does not match its own checksum", c.Where()).WithNext("take it again")
			}
			b.SHA256, whole = said.SHA256, true
		default:
			b.Records++
		}
		line = append(line[:len(line):len(line)], '\n')
		sum.Write(line)
		wrote, err := w.Write(line)
		b.Bytes += int64(wrote)
		if err != nil {
			return levelrail.Errorf(levelrail.ErrUnavailable, "write the backup: %v", err)
		}
		return nil
	})
	if err == nil && !whole {
		err = levelrail.Errorf(levelrail.ErrUnavailable, "the backup from %s is cut off after %d records", c.Where(), b.Records).WithNext("take it again")
	}
	return b, err
}
