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
}

var (
	splitName = regexp.MustCompile(`^(.*)-(\d{5})-of-(\d{5})\.gguf$`)
	quantName = regexp.MustCompile(`(?i)(?:^|[._-])((?:UD-)?(?:IQ[1-4]_(?:XXS|XS|S|M|NL)|Q[1-8]_K_(?:XXL|XL|L|M|S)|Q[1-8]_K|Q[1-8]_[01](?:_\d+_\d+)?|TQ[12]_0|MXFP4(?:_MOE)?|NVFP4|BF16|F16|F32|FP16|FP32))$`)
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
		set := GGUFSet{Quant: quantOf(stem), Parts: total[key], Complete: len(ps) == total[key]}
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

func isGGUF(p string) bool { return strings.EqualFold(path.Ext(p), ".gguf") }

func isProjector(p string) bool {
	return isGGUF(p) && strings.Contains(strings.ToLower(path.Base(p)), "mmproj")
}

// chooseGGUF picks the files of a repository that llama.cpp is started with: the quantization asked for, or Q4_K_M, Q8_0,
// else the first, as llama-server itself chooses. A projector comes along only when the option asks for it. No other
// file does, so a repository's preset.ini, which would change how the server starts, never reaches the node.
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
		p, err := pickProjector(repo, mmproj, files)
		if err != nil {
			return nil, err
		}
		return append(chosen, p), nil
	}
}

func pickSet(repo, quant string, sets []GGUFSet) (GGUFSet, error) {
	find := func(same func(GGUFSet) bool) int { return slices.IndexFunc(sets, same) }
	label := func(want string) func(GGUFSet) bool {
		return func(s GGUFSet) bool { return strings.EqualFold(s.Quant, want) }
	}
	if quant == "" {
		for _, want := range []string{"Q4_K_M", "Q8_0"} {
			if i := find(label(want)); i >= 0 {
				return sets[i], nil
			}
		}
		return sets[0], nil
	}
	if i := find(label(quant)); i >= 0 {
		return sets[i], nil
	}
	if i := find(label("UD-" + quant)); i >= 0 {
		return sets[i], nil
	}
	// A label that we do not know as a quantization, but that stands in the file name as a word.
	as := regexp.MustCompile(`(?i)(^|[./_-])` + regexp.QuoteMeta(quant) + `([./-]|$)`)
	if i := find(func(s GGUFSet) bool { return as.MatchString(s.Files[0].Path) }); i >= 0 {
		return sets[i], nil
	}
	return GGUFSet{}, &levelrail.Error{Kind: levelrail.ErrNotFound, Message: fmt.Sprintf("%s has no quantization %s", repo, quote(quant)),
		Next: "choose one that it has: " + quants(sets)}
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

// pickProjector takes the one named, or for "auto" the F16 one, then BF16, Q8_0, else the first.
func pickProjector(repo, want string, files []HubFile) (HubFile, error) {
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
	for _, q := range []string{"F16", "BF16", "Q8_0"} {
		word := regexp.MustCompile(`(?i)(^|[._-])` + q + `([._-]|$)`)
		for _, f := range all {
			if word.MatchString(path.Base(f.Path)) {
				return f, nil
			}
		}
	}
	return all[0], nil
}
