package httpapi

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
	"github.com/levelrail/levelrail/engine"
)

// Bounds of a key's lists, so that a key stays small enough to be sent to every gateway.
const (
	maxAllowPaths = 16
	maxAllowNames = 64
	maxAllowName  = 256 // bytes
)

// listing is the path of the listing that the gateway itself answers for every engine; single models lie below it.
const listing = "/v1/models"

// maxWeight is how much more of a model a key may get than another.
const maxWeight = 1000

// checkScope holds the limits and lists of a new key against what is possible: limits that a gateway can count, and paths
// that the model's engine serves, so that a list opens nothing that is closed.
func (s *Server) checkScope(k wire.CreateKey, engineName string) error {
	most := s.o.Keys().MaxLimit
	for _, l := range []struct {
		flag  string
		value int64
	}{{"rpm", k.Limits.RPM}, {"tpm", k.Limits.TPM}, {"tpd", k.Limits.TPD}, {"max_parallel", k.Limits.MaxParallel}} {
		if l.value < 0 || most > 0 && l.value > most {
			return levelrail.Errorf(levelrail.ErrInvalid, "%s is between 0 (no limit) and %d (APP_MODEL_KEY_MAX_LIMIT), not %d", l.flag, most, l.value).WithNext("leave it out for no limit")
		}
	}
	if w := k.Limits.Weight; w < 0 || w > maxWeight {
		return levelrail.Errorf(levelrail.ErrInvalid, "a key's weight is between 1 and %d, not %d", maxWeight, w).WithNext("leave it out for 1")
	}
	e, err := engine.Get(engineName)
	if err != nil {
		return err
	}
	return checkLists(k, e)
}

func checkLists(k wire.CreateKey, e engine.Engine) error {
	served := []string{listing, listing + "/"}
	for _, r := range e.Routes() {
		served = append(served, r.Path)
	}
	if len(k.AllowPaths) > maxAllowPaths || len(k.AllowModels) > maxAllowNames {
		return levelrail.Errorf(levelrail.ErrInvalid, "a key has up to %d paths and %d models, not %d and %d", maxAllowPaths, maxAllowNames, len(k.AllowPaths), len(k.AllowModels)).
			WithNext("a path that ends in / opens everything below it")
	}
	for _, p := range k.AllowPaths {
		below := strings.HasSuffix(p, "/")
		if !slices.ContainsFunc(served, func(path string) bool {
			return p == path || below && strings.HasPrefix(path, p) || strings.HasPrefix(p, listing+"/") && clean(p)
		}) {
			slices.Sort(served)
			return levelrail.Errorf(levelrail.ErrInvalid, "%q is no path that the engine %s serves", clip(p), e.Name()).
				WithNext("use some of %s, or one that ends in / for everything below it", strings.Join(served, ", "))
		}
	}
	for _, m := range k.AllowModels {
		if m == "" || len(m) > maxAllowName || !clean(m) {
			return levelrail.Errorf(levelrail.ErrInvalid, "%q is no name that a body's model can have", clip(m)).WithNext("write it as clients do, such as llama3.1:8b or org/name")
		}
	}
	return nil
}

// clean tells whether text is printable and has no blanks, query or dot segments.
func clean(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool {
		return !unicode.IsGraphic(r) || unicode.IsSpace(r) || r == '?' || r == '#' || r == '\\'
	}) &&
		!slices.ContainsFunc(strings.Split(text, "/"), func(part string) bool { return part == "." || part == ".." })
}
