package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/levelrail/levelrail/client/wire"
)

// createBackup streams everything that the store holds, as of one moment. Sealed values stay sealed, and the master key is
// not in it. An answer that is cut off lacks the last line, by which its reader sees that.
func (s *Server) createBackup(ctx context.Context, _ *none) (*streamed, error) {
	by := callerOf(ctx).principal
	return &streamed{Body: func(ctx huma.Context) {
		_, w := humago.Unwrap(ctx)
		w.Header().Set(wire.MasterKeyHeader, s.o.Sealer.KeyID())
		out := startStream(ctx)
		defer out.close()
		began := time.Now()
		// The state cannot be tidied up while it is read, so a reader that stops reading is cut off.
		if err := s.o.Store.Backup(out.ctx, deadlined{out}); err != nil {
			s.o.Log.Warn("a backup was not completed", "by", by, "error", err)
			panic(http.ErrAbortHandler) // the answer has begun: breaking it off says that it is not whole
		}
		s.o.Log.Info("backup written", "by", by, "took", time.Since(began).Round(time.Millisecond))
	}}, nil
}

// deadlined gives each write as long as a line of a stream.
type deadlined struct{ *stream }

func (d deadlined) Write(b []byte) (int, error) {
	if err := d.deadline(); err != nil {
		return 0, err
	}
	return d.w.Write(b)
}
