package engine

import (
	"cmp"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/levelrail/levelrail"
)

// GGUFSet is one quantization of a repository: a single file, or all parts of a split one.
type GGUFSet struct {
	Quant    string    // as the file name spells it: Q4_K_M, UD-Q4_K_XL; empty when the name has none
	Files    []HubFile // in the order of the parts, the first is what an engine is started with
	Bytes    int64     // sum over the parts
	Parts    int       // how many parts the names speak of, 1 for a single file
	Complete bool      // every part is there
	Beside   bool      // it belongs to a model and is none: a draft, an adapter, a vocabulary
	model    string    // what its name and folders say without the quantization: one for all sets of one model
}

var (
	splitName = regexp.MustCompile(`^(.*)-(\d{5})-of-(\d{5})\.gguf$`)
	// besideName are the words by which files that go with a model are known: drafts, which guess ahead for it, and what
	// changes it. An engine would start them, and they would talk nonsense.
	besideName = regexp.MustCompile(`(?i)(^|[/._-])(mtp|nextn|drafts?|drafter|eagle\d?|medusa|dflash|speculators?|lora|adapter|cvector|control[_-]vector|vocab|vae)([/._-]|$)`)
	quantName  = regexp.MustCompile(`(?i)(?:^|[._-])((?:UD-)?(?:IQ[1-4]_(?:XXS|XS|S|M|NL)|Q[1-8]_K_(?:XXL|XL|L|M|S)|Q[1-8]_K|Q[1-8]_[01](?:_\d+_\d+)?|TQ[12]_0|MXFP4(?:_MOE)?|NVFP4|BF16|F16|F32|FP16|FP32))$`)
)

// GGUFSets groups a repository's listing by quantization, in the order of their first files' paths. Projectors and
// importance matrices are not among them: they are no models.
func GGUFSets(files []HubFile) []GGUFSet {
	type part struct {
		file HubFile
		n    int
	}
	parts := map[string][]part{}
	total := map[string]int{}
	for _, f := range files {
		if !isGGUF(f.Path) || isProjector(f.Path) || strings.Contains(strings.ToLower(path.Base(f.Path)), "imatrix") {
			continue
		}
		stem, n, of := splitPath(f.Path)
		key := stem + "\x00" + strconv.Itoa(of)
		parts[key] = append(parts[key], part{f, n})
		total[key] = of
	}
	var sets []GGUFSet
	for key, ps := range parts {
		slices.SortFunc(ps, func(a, b part) int { return cmp.Compare(a.n, b.n) })
		stem, _, _ := strings.Cut(key, "\x00")
		set := GGUFSet{Quant: quantOf(stem), Parts: total[key], Complete: len(ps) == total[key], Beside: besideName.MatchString(stem), model: modelOf(stem)}
		for i, p := range ps {
			set.Files = append(set.Files, p.file)
			set.Bytes += p.file.Bytes
			set.Complete = set.Complete && p.n == i+1
		}
		sets = append(sets, set)
	}
	slices.SortFunc(sets, func(a, b GGUFSet) int { return cmp.Compare(a.Files[0].Path, b.Files[0].Path) })
	return sets
}

// splitPath takes the part number off a split file's path. A file that is not split is part 1 of 1.
func splitPath(p string) (stem string, n, of int) {
	if m := splitName.FindStringSubmatch(p); m != nil {
		n, _ = strconv.Atoi(m[2])
		of, _ = strconv.Atoi(m[3])
		if n >= 1 && n <= of {
			return m[1], n, of
		}
	}
	return strings.TrimSuffix(p, path.Ext(p)), 1, 1
}

// splitSiblings names all parts of the split file that p is part of, in order; p alone when it is not split.
func splitSiblings(p string) []string {
	stem, _, of := splitPath(p)
	if !splitName.MatchString(p) {
		return []string{p}
	}
	all := make([]string, of)
	for i := range all {
		all[i] = fmt.Sprintf("%s-%05d-of-%05d.gguf", stem, i+1, of)
	}
	return all
}

// quantOf reads the quantization off a stem's end, or off the folder that it lies in.
func quantOf(stem string) string {
	if m := quantName.FindStringSubmatch(path.Base(stem)); m != nil {
		return m[1]
	}
	if m := quantName.FindStringSubmatch(path.Base(path.Dir(stem))); m != nil {
		return m[1]
	}
	return ""
}

// modelOf is a stem without its quantization, in its name and in a folder of that name.
func modelOf(stem string) string {
	bare := func(name string) string {
		if m := quantName.FindStringSubmatchIndex(name); m != nil {
			name = strings.TrimRight(name[:m[2]], "._-")
		}
		return strings.ToLower(name)
	}
	var words []string
	for _, w := range strings.Split(stem, "/") {
		if w = bare(w); w != "" {
			words = append(words, w)
		}
	}
	return strings.Join(words, "/")
}

func isGGUF(p string) bool { return strings.EqualFold(path.Ext(p), ".gguf") }

func isProjector(p string) bool {
	return isGGUF(p) && strings.Contains(strings.ToLower(path.Base(p)), "mmproj")
}

// chooseGGUF picks the files of a repository that llama.cpp is started with: the file named, or the quantization asked for,
// or Q4_K_M, Q8_0, else the first, as llama-server itself chooses. What belongs to a model and is none comes only by its name.
// Where the choice is between several models it is refused, with the spelling of each. A projector comes along only when the
// option asks for it. No other file does, so a repository's preset.ini, which would change how the server starts, never
// reaches the node.
func chooseGGUF(repo, quant, mmproj string) func([]HubFile) ([]HubFile, error) {
	return func(files []HubFile) ([]HubFile, error) {
		sets := GGUFSets(files)
		if len(sets) == 0 {
			return nil, &levelrail.Error{Kind: levelrail.ErrNotFound, Message: repo + " has no GGUF files",
				Next: "choose a repository with GGUF files (their names mostly end in -GGUF), or --engine vllm for safetensors"}
		}
		set, err := pickSet(repo, quant, sets)
		if err != nil {
			return nil, err
		}
		if !set.Complete {
			return nil, &levelrail.Error{Kind: levelrail.ErrNotFound,
				Message: fmt.Sprintf("%s has only %d of the %d parts of %s", repo, len(set.Files), set.Parts, path.Base(set.Files[0].Path)),
				Next:    "choose another quantization: " + quants(sets)}
		}
		chosen := slices.Clone(set.Files)
		for i := range chosen {
			chosen[i].Role = levelrail.RoleModel
		}
		if mmproj == "" || mmproj == "none" {
			return chosen, nil
		}
		p, err := pickProjector(repo, mmproj, set.model, files)
		if err != nil {
			return nil, err
		}
		return append(chosen, p), nil
	}
}

func pickSet(repo, asked string, sets []GGUFSet) (GGUFSet, error) {
	if set, err := namedSet(repo, asked, sets); asked != "" && (err != nil || set != nil) {
		if err != nil {
			return GGUFSet{}, err
		}
		return *set, nil
	}
	mains := slices.DeleteFunc(slices.Clone(sets), func(s GGUFSet) bool { return s.Beside })
	if len(mains) == 0 { // a repository of drafts alone
		mains = sets
	}
	label := func(want string) []GGUFSet {
		return slices.DeleteFunc(slices.Clone(mains), func(s GGUFSet) bool { return !strings.EqualFold(s.Quant, want) })
	}
	if asked == "" {
		one, err := oneModel(repo, "", mains)
		if err != nil {
			return GGUFSet{}, err
		}
		mains = one
		for _, want := range []string{"Q4_K_M", "Q8_0"} {
			if of := label(want); len(of) > 0 {
				return of[0], nil
			}
		}
		return mains[0], nil
	}
	for _, want := range []string{asked, "UD-" + asked} {
		if of := label(want); len(of) > 0 {
			one, err := oneModel(repo, asked, of)
			if err != nil {
				return GGUFSet{}, err
			}
			return one[0], nil
		}
	}
	// A label that we do not know as a quantization, but that stands in the file name as a word.
	as := regexp.MustCompile(`(?i)(^|[./_-])` + regexp.QuoteMeta(asked) + `([./-]|$)`)
	among := [][]GGUFSet{mains, sets}
	if quantName.FindString(asked) == asked {
		among = among[:1] // a draft's quantization is not meant
	}
	for _, from := range among {
		of := slices.DeleteFunc(slices.Clone(from), func(s GGUFSet) bool { return !as.MatchString(s.Files[0].Path) })
		switch {
		case len(of) == 1:
			return of[0], nil
		case len(of) > 1:
			return GGUFSet{}, ambiguous(repo, asked, of)
		}
	}
	return GGUFSet{}, &levelrail.Error{Kind: levelrail.ErrNotFound, Message: fmt.Sprintf("%s has no quantization %s", repo, quote(asked)),
		Next: "choose one that it has: " + quants(mains)}
}

// namedSet finds the set that is named by a file of it, with its folder or without, with .gguf or without; nil when there is
// none. Case counts only where names differ in nothing else.
func namedSet(repo, asked string, sets []GGUFSet) (*GGUFSet, error) {
	names := func(f HubFile) []string {
		stem, _, _ := splitPath(f.Path)
		var all []string
		for _, p := range []string{f.Path, strings.TrimSuffix(f.Path, path.Ext(f.Path)), stem} {
			all = append(all, p, path.Base(p))
		}
		return all
	}
	for _, same := range []func(a, b string) bool{func(a, b string) bool { return a == b }, strings.EqualFold} {
		for _, whole := range []bool{true, false} { // a path before a name that lies in several folders
			var found []GGUFSet
			for _, s := range sets {
				if slices.ContainsFunc(s.Files, func(f HubFile) bool {
					all := names(f)
					for i := range all {
						if (i%2 == 0) == whole && same(all[i], asked) {
							return true
						}
					}
					return false
				}) {
					found = append(found, s)
				}
			}
			switch {
			case len(found) == 1:
				return &found[0], nil
			case len(found) > 1 && quantName.FindString(asked) != asked: // Q8_0.gguf in several folders is a quantization first
				return nil, ambiguous(repo, asked, found)
			}
		}
	}
	return nil, nil
}

// oneModel returns the sets if they are of one model. What lies in folders of its own gives way to what lies above, such as
// folders of older versions.
func oneModel(repo, asked string, sets []GGUFSet) ([]GGUFSet, error) {
	least := slices.MinFunc(sets, func(a, b GGUFSet) int { return cmp.Compare(strings.Count(a.model, "/"), strings.Count(b.model, "/")) })
	depth := strings.Count(least.model, "/")
	sets = slices.DeleteFunc(slices.Clone(sets), func(s GGUFSet) bool { return strings.Count(s.model, "/") > depth })
	for _, s := range sets {
		if s.model != sets[0].model {
			return nil, ambiguous(repo, asked, sets)
		}
	}
	// The same model whole and in parts: what is complete, and what is whole.
	slices.SortStableFunc(sets, func(a, b GGUFSet) int {
		if a.Complete != b.Complete {
			if a.Complete {
				return -1
			}
			return 1
		}
		return 0
	})
	return sets, nil
}

// ambiguous names the candidates by what chooses each.
func ambiguous(repo, asked string, sets []GGUFSet) error {
	what := "several models"
	if asked != "" {
		what += " that " + quote(asked) + " could mean"
	}
	var names []string
	seen := map[string]bool{}
	for _, s := range sets { // of each model one, the usual quantization where there is one
		if seen[s.model] && asked == "" {
			continue
		}
		seen[s.model] = true
		for _, t := range sets {
			if asked == "" && t.model == s.model && (strings.EqualFold(t.Quant, "Q4_K_M") || strings.EqualFold(t.Quant, "Q8_0") && !strings.EqualFold(s.Quant, "Q4_K_M")) {
				s = t
			}
		}
		names = append(names, "--model "+repo+":"+s.Files[0].Path)
	}
	if len(names) > 12 {
		names = append(names[:12], "…")
	}
	return &levelrail.Error{Kind: levelrail.ErrNotFound, Message: fmt.Sprintf("%s has %s", repo, what), Next: "name the file: " + strings.Join(names, " or ")}
}

func quants(sets []GGUFSet) string {
	var names []string
	for _, s := range sets {
		switch {
		case !s.Complete:
		case s.Quant != "":
			names = append(names, s.Quant)
		default:
			names = append(names, path.Base(s.Files[0].Path))
		}
	}
	names = slices.Compact(names)
	if len(names) == 0 {
		return "none is complete"
	}
	if len(names) > 30 {
		names = append(names[:30], "…")
	}
	return join(names)
}

// pickProjector takes the one named, or for "auto" one of the model's: the F16 one, then BF16, Q8_0, else the first.
func pickProjector(repo, want, model string, files []HubFile) (HubFile, error) {
	var all []HubFile
	for _, f := range files {
		if isProjector(f.Path) {
			f.Role = levelrail.RoleProjector
			all = append(all, f)
		}
	}
	slices.SortFunc(all, func(a, b HubFile) int { return cmp.Compare(a.Path, b.Path) })
	if len(all) == 0 {
		return HubFile{}, &levelrail.Error{Kind: levelrail.ErrNotFound, Message: repo + " has no projector (mmproj) file", Next: "leave the option mmproj out, or choose a repository with one"}
	}
	var names []string
	for _, f := range all {
		if f.Path == want || path.Base(f.Path) == want {
			return f, nil
		}
		names = append(names, f.Path)
	}
	if want != "auto" {
		return HubFile{}, &levelrail.Error{Kind: levelrail.ErrNotFound, Message: fmt.Sprintf("%s has no projector %s", repo, quote(want)), Next: "set mmproj=auto, or to one of " + join(names)}
	}
	// The model that a projector is for stands in its name, or it names none and is for all.
	of := map[string][]HubFile{}
	for _, f := range all {
		m := strings.Trim(projectorWord.ReplaceAllString(path.Base(modelOf(strings.TrimSuffix(f.Path, path.Ext(f.Path)))), "$1$2"), "._-")
		of[m] = append(of[m], f)
	}
	mine := of[path.Base(model)]
	if mine == nil {
		mine = of[""]
	}
	if mine == nil && len(of) == 1 {
		mine = all
	}
	if mine == nil {
		return HubFile{}, &levelrail.Error{Kind: levelrail.ErrNotFound, Message: repo + " has projectors of several models, and none is named like " + path.Base(model), Next: "name one: --option mmproj=" + strings.Join(names, " or --option mmproj=")}
	}
	for _, q := range []string{"F16", "BF16", "Q8_0"} {
		word := regexp.MustCompile(`(?i)(^|[._-])` + q + `([._-]|$)`)
		for _, f := range mine {
			if word.MatchString(path.Base(f.Path)) {
				return f, nil
			}
		}
	}
	return mine[0], nil
}

var projectorWord = regexp.MustCompile(`(^|[._-])mmproj([._-]|$)`)
