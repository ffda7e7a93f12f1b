package engine

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/levelrail/levelrail"
)

// Bounds of --context: below, no chat template fits; above, no model exists and a product with the slots would overflow
// an engine's 32-bit count.
const (
	leastContext = 256
	mostContext  = 16 << 20
)

// defaultContext is what each request may use where a spec says nothing and an engine would choose by the memory of the
// node's GPUs or take all that the model was trained for: the same model would need other memory on another node.
const defaultContext = 8192

var (
	hubSource = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95})(?::([A-Za-z0-9][A-Za-z0-9._/+-]{0,254}))?$`)
	hexSHA256 = regexp.MustCompile(`^[0-9a-f]{64}$`)
	revision  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/-]{0,127}$`)
)

// splitHub takes org/name[:tag] apart. A tag is a quantization, or a file of the repository with its folder.
func splitHub(source string) (repo, tag string, ok bool) {
	m := hubSource.FindStringSubmatch(source)
	if m == nil || strings.Contains(source, "..") {
		return "", "", false
	}
	return m[1], m[2], true
}

// checkCommon refuses what no engine takes: a context out of all bounds, a malformed checksum or revision, a path that
// depends on somebody's working directory.
func checkCommon(spec levelrail.ModelSpec) error {
	switch {
	case spec.Source == "":
		return &levelrail.Error{Kind: levelrail.ErrInvalid, Message: "no model was named", Next: "add --model, for example --model org/name"}
	case spec.Context != 0 && (spec.Context < leastContext || spec.Context > mostContext):
		return &levelrail.Error{Kind: levelrail.ErrInvalid, Message: fmt.Sprintf("a context of %d tokens is not usable", spec.Context),
			Next: fmt.Sprintf("give --context a number from %d to %d, or leave it out for the default", leastContext, mostContext)}
	case spec.SHA256 != "" && !hexSHA256.MatchString(spec.SHA256):
		return &levelrail.Error{Kind: levelrail.ErrInvalid, Message: "the checksum " + quote(spec.SHA256) + " is not a SHA-256", Next: "give 64 lower-case hex digits, as sha256sum prints them"}
	case spec.SourceCommit != "" && (!revision.MatchString(spec.SourceCommit) || strings.Contains(spec.SourceCommit, "..")):
		return &levelrail.Error{Kind: levelrail.ErrInvalid, Message: "the revision " + quote(spec.SourceCommit) + " is not usable", Next: "give a commit, a tag or a branch of the repository"}
	}
	if levelrail.IsPath(spec.Source) {
		if !filepath.IsAbs(spec.Source) || filepath.Clean(spec.Source) != spec.Source {
			return &levelrail.Error{Kind: levelrail.ErrInvalid, Message: "the path " + quote(spec.Source) + " does not name one place on the node",
				Next: "write the absolute path of the file on the node, without . or .. in it"}
		}
		if spec.SourceCommit != "" {
			return &levelrail.Error{Kind: levelrail.ErrInvalid, Message: "a file of the node has no revision", Next: "leave the revision out"}
		}
	}
	return CheckServedNames(spec.ServedNames)
}

// CheckServedNames refuses names that could not stand in an engine's command line or in a listing.
func CheckServedNames(names []string) error {
	for _, n := range names {
		if n == "" || len(n) > 200 || n[0] == '-' || strings.ContainsAny(n, ",\"'\\%$ ") || strings.ContainsFunc(n, unicode.IsControl) || !utf8.ValidString(n) {
			return &levelrail.Error{Kind: levelrail.ErrInvalid, Message: "the served name " + quote(n) + " is not usable",
				Next: "use up to 200 characters without blanks, commas, quotes, %, $ or backslashes, not beginning with -"}
		}
	}
	return nil
}

// noQuantization refuses --quantization for an engine whose weights carry it.
func noQuantization(spec levelrail.ModelSpec, engine, instead string) error {
	if spec.Quantization == "" {
		return nil
	}
	return &levelrail.Error{Kind: levelrail.ErrInvalid, Message: "--quantization is for vllm; " + engine + " takes it from the model's name", Next: instead}
}

func badSource(engine, source, next string) error {
	return &levelrail.Error{Kind: levelrail.ErrInvalid, Message: fmt.Sprintf("%s cannot take the model %s", engine, quote(source)), Next: next}
}

// gpuEnv selects exactly the devices given. UUIDs do not depend on how a program numbers cards; without any, CUDA and
// ROCm are told of none: an empty value is taken for "not set" by some programs, -1 by none.
func gpuEnv(devices []string) []string {
	if len(devices) == 0 {
		return []string{"CUDA_VISIBLE_DEVICES=-1", "HIP_VISIBLE_DEVICES=-1", "ROCR_VISIBLE_DEVICES=-1"}
	}
	return []string{"CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_VISIBLE_DEVICES=" + strings.Join(devices, ",")}
}
