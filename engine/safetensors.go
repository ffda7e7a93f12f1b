package engine

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"github.com/levelrail/levelrail"
)

// chooseSafetensors picks what vLLM would fetch of a repository: consolidated*.safetensors when there are any (then in
// Mistral's own format), else *.safetensors, else *.bin, else *.pt, never what lies in original/; and the configuration,
// tokenizer and template files beside them. Python files stay away: remote code is never run.
func chooseSafetensors(repo string) func([]HubFile) ([]HubFile, error) {
	return func(files []HubFile) ([]HubFile, error) {
		weights := firstKind(files,
			func(f string) bool { return ends(f, ".safetensors") && strings.HasPrefix(path.Base(f), "consolidated") },
			func(f string) bool { return ends(f, ".safetensors") },
			func(f string) bool { return ends(f, ".bin") && !strings.HasPrefix(path.Base(f), "training_args") },
			func(f string) bool { return ends(f, ".pt") },
		)
		if len(weights) == 0 {
			next := "choose a repository with safetensors files"
			if len(GGUFSets(files)) > 0 {
				next = "use --engine llamacpp for its GGUF files"
			}
			return nil, &levelrail.Error{Kind: levelrail.ErrNotFound, Message: repo + " has no weights that vLLM can load", Next: next}
		}
		var chosen []HubFile
		configured := false
		for _, f := range files {
			dir, base := path.Split(f.Path)
			if skipFolder(dir) || !isConfig(base) {
				continue
			}
			configured = configured || f.Path == "config.json" || f.Path == "params.json"
			f.Role = levelrail.RoleConfig
			chosen = append(chosen, f)
		}
		if !configured {
			return nil, &levelrail.Error{Kind: levelrail.ErrNotFound, Message: repo + " has no config.json, so vLLM cannot tell what model it is", Next: "choose the repository of a whole model"}
		}
		for _, f := range weights {
			f.Role = levelrail.RoleModel
			chosen = append(chosen, f)
		}
		slices.SortFunc(chosen, func(a, b HubFile) int { return cmp.Compare(a.Path, b.Path) })
		return chosen, nil
	}
}

// firstKind returns the files of the first pattern that any file meets. Weights lie at the top: a folder has another
// format's, or those of a part that the top already contains.
func firstKind(files []HubFile, patterns ...func(string) bool) []HubFile {
	for _, is := range patterns {
		var out []HubFile
		for _, f := range files {
			if !strings.Contains(f.Path, "/") && is(f.Path) {
				out = append(out, f)
			}
		}
		if len(out) > 0 {
			return out
		}
	}
	return nil
}

func ends(p, ext string) bool { return strings.EqualFold(path.Ext(p), ext) }

// skipFolder tells the folders of other formats. What remains are those of a pooling model's modules (1_Pooling/) and of
// adapters and processors.
func skipFolder(dir string) bool {
	top, _, _ := strings.Cut(dir, "/")
	switch strings.ToLower(top) {
	case "original", "onnx", "openvino", "coreml", "gguf", "runs", "assets", "images", "figures", "examples", "metal":
		return true
	}
	return strings.HasPrefix(top, ".")
}

func isConfig(base string) bool {
	switch strings.ToLower(path.Ext(base)) {
	case ".json", ".jinja", ".model", ".tiktoken":
		return true
	case ".txt":
		low := strings.ToLower(base)
		return strings.HasPrefix(low, "merges") || strings.HasPrefix(low, "vocab") || strings.HasPrefix(low, "added_tokens")
	}
	return false
}
