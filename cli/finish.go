package cli

import (
	"time"

	"github.com/levelrail/levelrail/client/wire"
)

// finish ends a command that began work: it follows when asked, and with --json writes the one document, which then has
// the model as last seen. The document comes at the end and whatever ends the wait, so that a key in it is never lost.
func (s *session) finish(api API, g goal, follow bool, limit time.Duration, model *wire.Model, document func() any) error {
	var err error
	if follow {
		var last *wire.Model
		if last, err = s.follow(api, g, limit); last != nil {
			*model = *last
		}
	} else if !s.json && g.settled {
		s.note("More about it: levelrail models get %s", g.model)
	} else if !s.json {
		s.note("Follow it with: levelrail models wait %s", g.model)
	}
	if s.json {
		if docErr := s.document(document()); err == nil {
			err = docErr
		}
	}
	return err
}
