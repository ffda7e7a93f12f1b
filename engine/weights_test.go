package engine

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/levelrail/levelrail"
)

func listing(paths ...string) []HubFile {
	var out []HubFile
	for i, p := range paths {
		out = append(out, HubFile{Path: p, Bytes: int64(i + 1)})
	}
	return out
}

func chosen(files []HubFile) string {
	var out []string
	for _, f := range files {
		out = append(out, f.Path+"="+f.Role)
	}
	return strings.Join(out, " ")
}

// TestChooseGGUF: the quantization asked for in any case, else Q4_K_M, Q8_0, the first; all parts of a split one or none;
// projectors on request only; nothing else (C037, C038).
func TestChooseGGUF(t *testing.T) {
	repo := listing("README.md", "preset.ini", "m-Q2_K.gguf", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "m-UD-Q5_K_XL.gguf", "mmproj-BF16.gguf", "mmproj-F16.gguf", "imatrix.gguf",
		"BF16/m-BF16-00001-of-00002.gguf", "BF16/m-BF16-00002-of-00002.gguf", "m-Q6_K-00001-of-00003.gguf", "m-Q6_K-00003-of-00003.gguf")
	for _, c := range []struct {
		name, source, mmproj string
		files                []HubFile
		want, says           string
	}{
		{"default", "org/n", "", repo, "m-Q4_K_M.gguf=model", ""},
		{"case", "org/n:q4_k_m", "", repo, "m-Q4_K_M.gguf=model", ""},
		{"split in a folder", "org/n:BF16", "", repo, "BF16/m-BF16-00001-of-00002.gguf=model BF16/m-BF16-00002-of-00002.gguf=model", ""},
		{"without UD-", "org/n:Q5_K_XL", "", repo, "m-UD-Q5_K_XL.gguf=model", ""},
		{"incomplete", "org/n:Q6_K", "", repo, "", "only 2 of the 3 parts"},
		{"missing", "org/n:Q3_K_S", "", repo, "", "Q2_K, Q4_K_M, Q8_0, UD-Q5_K_XL"},
		{"projector", "org/n", "auto", repo, "m-Q4_K_M.gguf=model mmproj-F16.gguf=projector", ""},
		{"projector named", "org/n", "mmproj-BF16.gguf", repo, "m-Q4_K_M.gguf=model mmproj-BF16.gguf=projector", ""},
		{"projector missing", "org/n", "mmproj-x.gguf", repo, "", "mmproj-BF16.gguf, mmproj-F16.gguf"},
		{"no projectors", "org/n", "auto", listing("m-Q8_0.gguf"), "", "no projector"},
		{"no Q4_K_M", "org/n", "", listing("m-Q2_K.gguf", "m-Q8_0.gguf"), "m-Q8_0.gguf=model", ""},
		{"neither", "org/n", "", listing("m-Q5_0.gguf", "m-Q2_K.gguf"), "m-Q2_K.gguf=model", ""},
		{"no name for it", "org/n:weird", "", listing("model.weird.gguf", "x-Q8_0.gguf"), "model.weird.gguf=model", ""},
		{"part of a word", "org/n:Q4", "", listing("m-Q4_K_M.gguf"), "", "no quantization"},
		{"one of one", "org/n:Q8_0", "", listing("m-Q8_0-00001-of-00001.gguf"), "m-Q8_0-00001-of-00001.gguf=model", ""},
		{"safetensors", "org/n", "", listing("model.safetensors"), "", "no GGUF files"},
	} {
		spec := levelrail.ModelSpec{Source: c.source}
		if c.mmproj != "" {
			spec.Options = levelrail.Options{"mmproj": c.mmproj}
		}
		plan, err := get(t, "llamacpp").Weights(spec)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if plan.From != FromHub || plan.Repo != "org/n" {
			t.Errorf("%s: plan %+v", c.name, plan)
		}
		got, err := plan.Choose(c.files)
		if c.says != "" {
			if levelrail.KindOf(err) != levelrail.ErrNotFound || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: got %v, want an error that says %q", c.name, err, c.says)
			}
			continue
		}
		if err != nil || chosen(got) != c.want {
			t.Errorf("%s: got %s, %v, want %s", c.name, chosen(got), err, c.want)
		}
	}
}

// TestChooseMainModel: what lies beside a model is not taken for it, whatever comes first by alphabet; where several models could
// be meant the choice is refused, and each candidate's spelling, as the refusal says it, chooses it.
func TestChooseMainModel(t *testing.T) {
	drafts := listing("MTP/x-Q8_0.gguf", "x-Q8_0.gguf", "x-MTP-Q4_K_M.gguf", "x-Q4_K_M.gguf")
	sizes := listing("gemma-2b-Q4_K_M.gguf", "gemma-2b-Q8_0.gguf", "gemma-9b-Q4_K_M.gguf", "gemma-9b-BF16-00001-of-00002.gguf", "gemma-9b-BF16-00002-of-00002.gguf")
	for _, c := range []struct {
		name, source, mmproj string
		files                []HubFile
		want                 string // the file
		candidates           string // or what the refusal names, in order
	}{
		{"default", "org/n", "", drafts, "x-Q4_K_M.gguf", ""},
		{"Q8_0", "org/n:Q8_0", "", drafts, "x-Q8_0.gguf", ""},
		{"case", "org/n:q8_0", "", drafts, "x-Q8_0.gguf", ""},
		{"a draft by its file", "org/n:MTP/x-Q8_0.gguf", "", drafts, "MTP/x-Q8_0.gguf", ""},
		{"without the ending", "org/n:MTP/x-Q8_0", "", drafts, "MTP/x-Q8_0.gguf", ""},
		{"in another case", "org/n:mtp/X-q8_0", "", drafts, "MTP/x-Q8_0.gguf", ""},
		{"a draft by a word", "org/n:MTP-Q4_K_M", "", drafts, "x-MTP-Q4_K_M.gguf", ""},
		{"drafts alone", "org/n", "", listing("x-MTP-Q8_0.gguf", "x-MTP-Q2_K.gguf"), "x-MTP-Q8_0.gguf", ""},
		{"only a draft has it", "org/n:Q4_K_M", "", listing("x-draft-Q4_K_M.gguf", "x-Q8_0.gguf"), "", "Q8_0"},
		{"eagle, adapter, vocabulary", "org/n", "", listing("eagle3/a-Q4_K_M.gguf", "a-lora-Q4_K_M.gguf", "ggml-vocab-a.gguf", "imatrix.gguf", "mmproj-a-Q4_K_M.gguf", "z-Q4_K_M.gguf"), "z-Q4_K_M.gguf", ""},
		{"a word of the name", "org/n", "", listing("draftsman-Q4_K_M.gguf"), "draftsman-Q4_K_M.gguf", ""},
		{"older version in a folder", "org/n", "", listing("old/m-Q4_K_M.gguf", "m-Q4_K_M.gguf"), "m-Q4_K_M.gguf", ""},
		{"by folder", "org/n:old/m-Q4_K_M.gguf", "", listing("old/m-Q4_K_M.gguf", "m-Q4_K_M.gguf"), "old/m-Q4_K_M.gguf", ""},
		{"folders of quantizations", "org/n", "", listing("Q8_0/m-Q8_0.gguf", "Q4_K_M/m-Q4_K_M-00001-of-00001.gguf"), "Q4_K_M/m-Q4_K_M-00001-of-00001.gguf", ""},
		{"all in one folder", "org/n", "", listing("gguf/m-Q8_0.gguf", "gguf/m-Q4_K_M.gguf"), "gguf/m-Q4_K_M.gguf", ""},
		{"mixed case", "org/n", "", listing("Model-Q8_0.gguf", "model-q4_k_m.gguf"), "model-q4_k_m.gguf", ""},
		{"whole before broken parts", "org/n", "", listing("m-Q4_K_M-00001-of-00002.gguf", "m-Q4_K_M.gguf"), "m-Q4_K_M.gguf", ""},
		{"several sizes", "org/n", "", sizes, "", "--model org/n:gemma-2b-Q4_K_M.gguf or --model org/n:gemma-9b-Q4_K_M.gguf"},
		{"several sizes of one quantization", "org/n:Q4_K_M", "", sizes, "", "--model org/n:gemma-2b-Q4_K_M.gguf or --model org/n:gemma-9b-Q4_K_M.gguf"},
		{"one size has it", "org/n:BF16", "", sizes, "gemma-9b-BF16-00001-of-00002.gguf", ""},
		{"by any part", "org/n:gemma-9b-BF16-00002-of-00002.gguf", "", sizes, "gemma-9b-BF16-00001-of-00002.gguf", ""},
		{"a size alone", "org/n:9b", "", sizes, "", "--model org/n:gemma-9b-BF16-00001-of-00002.gguf or --model org/n:gemma-9b-Q4_K_M.gguf"},
		{"folders of models", "org/n", "", listing("2b/m-Q4_K_M.gguf", "9b/m-Q4_K_M.gguf"), "", "--model org/n:2b/m-Q4_K_M.gguf or --model org/n:9b/m-Q4_K_M.gguf"},
		{"one name in two folders", "org/n:m-Q4_K_M.gguf", "", listing("2b/m-Q4_K_M.gguf", "9b/m-Q4_K_M.gguf"), "", "--model org/n:2b/m-Q4_K_M.gguf or --model org/n:9b/m-Q4_K_M.gguf"},
		{"names that differ by case", "org/n:m-q8_0.gguf", "", listing("M-Q8_0.gguf", "m-q8_0.gguf"), "m-q8_0.gguf", ""},
	} {
		choose := func(source string) ([]HubFile, error) {
			t.Helper()
			plan, err := get(t, "llamacpp").Weights(levelrail.ModelSpec{Source: source})
			if err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			return plan.Choose(c.files)
		}
		got, err := choose(c.source)
		if c.want != "" {
			if err != nil || got[0].Path != c.want {
				t.Errorf("%s: %v, %v", c.name, got, err)
			}
			continue
		}
		var e *levelrail.Error
		if !errors.As(err, &e) || !strings.HasSuffix(e.Next, c.candidates) {
			t.Errorf("%s: %v, %+v", c.name, got, err)
			continue
		}
		for _, spelling := range strings.Split(strings.TrimPrefix(c.candidates, "--model "), " or --model ") {
			if _, file, ok := strings.Cut(spelling, ":"); ok {
				if got, err := choose(spelling); err != nil || got[0].Path != file {
					t.Errorf("%s: %s chooses %v, %v", c.name, spelling, got, err)
				}
			}
		}
	}
}

// TestProjectorOfTheModel: of several models' projectors the one of the chosen model comes along.
func TestProjectorOfTheModel(t *testing.T) {
	repo := listing("mmproj-gemma-2b-F16.gguf", "mmproj-gemma-9b-F16.gguf", "gemma-9b-Q4_K_M.gguf", "gemma-2b-Q4_K_M.gguf", "other-Q4_K_M.gguf")
	for source, want := range map[string]string{"org/n:gemma-9b-Q4_K_M.gguf": "mmproj-gemma-9b-F16.gguf", "org/n:gemma-2b-Q4_K_M": "mmproj-gemma-2b-F16.gguf", "org/n:other-Q4_K_M.gguf": ""} {
		plan, err := get(t, "llamacpp").Weights(levelrail.ModelSpec{Source: source, Options: levelrail.Options{"mmproj": "auto"}})
		if err != nil {
			t.Fatal(err)
		}
		got, err := plan.Choose(repo)
		if want == "" {
			var e *levelrail.Error
			if !errors.As(err, &e) || !strings.Contains(e.Next, "mmproj=mmproj-gemma-2b-F16.gguf or --option") {
				t.Errorf("%s: %v, %+v", source, got, err)
			}
		} else if err != nil || len(got) != 2 || got[1].Path != want {
			t.Errorf("%s: %v, %v", source, got, err)
		}
	}
}

// TestGGUFSets (C037): one row for a quantization, with the sum of its parts.
func TestGGUFSets(t *testing.T) {
	sets := GGUFSets([]HubFile{{Path: "b/m-Q6_K-00002-of-00003.gguf", Bytes: 46}, {Path: "b/m-Q6_K-00001-of-00003.gguf", Bytes: 46}, {Path: "b/m-Q6_K-00003-of-00003.gguf", Bytes: 39},
		{Path: "a-IQ4_XS.gguf", Bytes: 5}, {Path: "c-F16-00002-of-00002.gguf", Bytes: 7}, {Path: "mmproj-F16.gguf", Bytes: 9}})
	var got []string
	for _, s := range sets {
		got = append(got, fmt.Sprintf("%s %d %d/%d %v %s", s.Quant, s.Bytes, len(s.Files), s.Parts, s.Complete, s.Files[0].Path))
	}
	want := []string{"IQ4_XS 5 1/1 true a-IQ4_XS.gguf", "Q6_K 131 3/3 true b/m-Q6_K-00001-of-00003.gguf", "F16 7 1/2 false c-F16-00002-of-00002.gguf"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestWeightsOfAFile: a file of the node comes with the other parts of a split one and the projector that was named.
func TestWeightsOfAFile(t *testing.T) {
	plan, err := get(t, "llamacpp").Weights(levelrail.ModelSpec{Source: "/srv/m-00002-of-00003.gguf", Options: levelrail.Options{"mmproj": "/srv/mmproj.gguf"}})
	want := []LocalFile{{"/srv/m-00001-of-00003.gguf", "model"}, {"/srv/m-00002-of-00003.gguf", "model"}, {"/srv/m-00003-of-00003.gguf", "model"}, {"/srv/mmproj.gguf", "projector"}}
	if err != nil || plan.From != FromFile || plan.Path != want[0].Path || !slices.Equal(plan.Files, want) {
		t.Errorf("got %+v, %v", plan, err)
	}
	plan, err = get(t, "ollama").Weights(levelrail.ModelSpec{Source: "/srv/m.gguf"})
	if err != nil || plan.From != FromEngine || plan.Path != "/srv/m.gguf" || plan.Tag != "" || plan.Import == nil {
		t.Errorf("got %+v, %v", plan, err)
	}
}

// TestChooseSafetensors: the files that vLLM would fetch itself, and no code.
func TestChooseSafetensors(t *testing.T) {
	for _, c := range []struct {
		name       string
		files      []HubFile
		want, says string
	}{
		{"sharded", listing("config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json", "tokenizer.json", "merges.txt", "README.md", "modeling_x.py", "original/consolidated.00.pth", "original/params.json", "onnx/config.json", "pytorch_model.bin", "1_Pooling/config.json", "chat_template.jinja"),
			"1_Pooling/config.json=config chat_template.jinja=config config.json=config merges.txt=config model-00001-of-00002.safetensors=model model-00002-of-00002.safetensors=model model.safetensors.index.json=config tokenizer.json=config", ""},
		{"mistral", listing("params.json", "tekken.json", "consolidated.safetensors", "model-00001-of-00001.safetensors"), "consolidated.safetensors=model params.json=config tekken.json=config", ""},
		{"bin", listing("config.json", "pytorch_model.bin", "training_args.bin", "x.pt"), "config.json=config pytorch_model.bin=model", ""},
		{"gguf", listing("m-Q8_0.gguf", "config.json"), "", "--engine llamacpp"},
		{"no config", listing("model.safetensors"), "", "no config.json"},
	} {
		plan, err := get(t, "vllm").Weights(levelrail.ModelSpec{Source: "org/n"})
		if err != nil {
			t.Fatal(err)
		}
		got, err := plan.Choose(c.files)
		if c.says != "" {
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		if err != nil || chosen(got) != c.want {
			t.Errorf("%s: got %s, %v, want %s", c.name, chosen(got), err, c.want)
		}
	}
}
