package cli

import (
	"context"
	"runtime"
	"time"

	ucli "github.com/urfave/cli/v2"

	"github.com/levelrail/levelrail"
)

func versionVerb() verb {
	return verb{
		name: "version", usage: "show the versions of this program and of the server",
		long:     "The server's version is left out when it cannot be reached within two seconds; that is no error.",
		examples: []example{{"Both versions", "levelrail version"}},
		run: func(s *session, c *ucli.Context) error {
			answer := versions{Client: levelrail.Version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
			ctx, cancel := context.WithTimeout(s.ctx, 2*time.Second)
			defer cancel()
			if api, err := s.api(); err == nil {
				if st, err := api.Status(ctx); err == nil {
					answer.Server = &st.Version
				}
			}
			if answer.Server != nil && *answer.Server != answer.Client {
				s.note("note: the server's version is %s and this program's %s; upgrade the older one", *answer.Server, answer.Client)
			}
			if s.json {
				return s.document(answer)
			}
			s.say("levelrail %s (%s, %s)", answer.Client, answer.Platform, answer.Go)
			if answer.Server != nil {
				s.say("server    %s", *answer.Server)
			}
			return nil
		},
	}
}

// versions is what `version --json` prints.
type versions struct {
	Client   string  `json:"client"`
	Server   *string `json:"server"` // null: not reached
	Platform string  `json:"platform"`
	Go       string  `json:"go"`
}
