package openai

import (
	"bytes"
	"io"
	"mime"
	"mime/multipart"
	"testing"

	"github.com/levelrail/levelrail/test/parsers"
)

// goForm reads a form as Ollama does, with mime/multipart, which decodes parts and takes one without a file name for text.
func goForm(contentType string, body []byte) ([]parsers.Part, error) {
	kind, params, err := mime.ParseMediaType(contentType)
	if err != nil || kind != "multipart/form-data" || params["boundary"] == "" {
		return nil, parsers.ErrRefused
	}
	r := multipart.NewReader(bytes.NewReader(body), params["boundary"])
	var parts []parsers.Part
	for {
		p, err := r.NextPart()
		if err == io.EOF {
			return parts, nil
		}
		if err != nil {
			return nil, err
		}
		text, err := io.ReadAll(p)
		if err != nil {
			return nil, err
		}
		parts = append(parts, parsers.Part{Name: p.FormName(), Value: string(text), File: p.FileName() != ""})
	}
}

// modelOf is the model that an engine runs by the parts that its parser found: of several the last with Starlette, the first
// with the others; a file is none, and an empty one is as good as none.
func modelOf(parts []parsers.Part, last bool) (model string, ok bool) {
	found := false
	for _, p := range parts {
		if p.Name != "model" || found && !last {
			continue
		}
		if p.File {
			if last {
				return "", false // FastAPI wants text and refuses
			}
			continue
		}
		model, found = p.Value, true
	}
	return model, true
}

// FuzzForm: there is no form of which the gateway reads one model and an engine runs another. What the gateway takes, each
// of the three parsers takes apart into the same parts, or refuses.
func FuzzForm(f *testing.F) {
	contentType, body := formBody(f, formPart{`form-data; name="model"`, "whisper"}, formPart{`form-data; name="file"; filename="a.wav"`, "sound"})
	f.Add(contentType, body)
	for _, form := range parsers.Forms() {
		f.Add(form.ContentType, form.Body)
	}
	f.Add("multipart/form-data; boundary=x", []byte("--x\r\nContent-Disposition: form-data; name=\"other\"; filename=\"a\\\"; filename*=utf-8''x\r\n\r\ny\r\n--x--\r\n"))
	f.Fuzz(func(t *testing.T, contentType string, body []byte) {
		model, err := FormModel(contentType, body)
		if err != nil {
			if model != "" {
				t.Fatalf("refused with the model %q", model)
			}
			return
		}
		if len(model) > maxModelName {
			t.Fatalf("a model of %d bytes", len(model))
		}
		var first []parsers.Part
		for i, engine := range []struct {
			name string
			read func(string, []byte) ([]parsers.Part, error)
			last bool
		}{{"Starlette", parsers.PythonForm, true}, {"cpp-httplib", parsers.HttplibForm, false}, {"mime/multipart", goForm, false}} {
			parts, err := engine.read(contentType, body)
			if err != nil {
				continue
			}
			if got, ok := modelOf(parts, engine.last); ok && got != model {
				t.Fatalf("%q %q: the gateway reads %q, %s %q", contentType, body, model, engine.name, got)
			}
			if i == 0 {
				first = parts
				continue
			}
			if first == nil {
				continue
			}
			same := len(parts) == len(first)
			for i := 0; same && i < len(parts); i++ {
				same = parts[i].Name == first[i].Name && (parts[i].File || first[i].File || parts[i].Value == first[i].Value)
			}
			if !same {
				t.Fatalf("%q %q: Starlette reads %+v, %s %+v", contentType, body, first, engine.name, parts)
			}
		}
	})
}
