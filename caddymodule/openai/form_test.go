package openai

import (
	"bytes"
	"mime/multipart"
	"net/textproto"
	"strings"
	"testing"
)

type formPart struct{ header, text string }

func formBody(t testing.TB, parts ...formPart) (string, []byte) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for _, p := range parts {
		h := textproto.MIMEHeader{"Content-Disposition": {p.header}}
		part, err := w.CreatePart(h)
		if err != nil {
			t.Fatal(err)
		}
		part.Write([]byte(p.text))
	}
	w.Close()
	return w.FormDataContentType(), b.Bytes()
}

// TestFormModel: a form's model is found wherever it stands, and one that engines could read in two ways is refused.
func TestFormModel(t *testing.T) {
	file := formPart{`form-data; name="file"; filename="a.wav"`, strings.Repeat("sound\r\n--", 10000)}
	model := formPart{`form-data; name="model"`, "whisper"}
	for name, c := range map[string]struct {
		parts []formPart
		want  string
		ok    bool
	}{
		"first":          {[]formPart{model, file}, "whisper", true},
		"last":           {[]formPart{file, model}, "whisper", true},
		"absent":         {[]formPart{file}, "", true},
		"twice":          {[]formPart{model, file, model}, "", false},
		"as a file":      {[]formPart{{`form-data; name="model"; filename="x"`, "whisper"}}, "", false},
		"too long":       {[]formPart{{`form-data; name="model"`, strings.Repeat("x", 600)}}, "", false},
		"too many parts": {append(slicesRepeat(formPart{`form-data; name="x"`, "y"}, maxParts), model), "", false},
	} {
		contentType, body := formBody(t, c.parts...)
		if got, err := FormModel(contentType, body); got != c.want || (err == nil) != c.ok {
			t.Errorf("%s: %q %v", name, got, err)
		}
	}
	contentType, body := formBody(t, model)
	for name, c := range map[string]struct {
		contentType string
		body        []byte
	}{"cut": {contentType, body[:len(body)/2]}, "no boundary": {"multipart/form-data", body}, "another boundary": {"multipart/form-data; boundary=zzz", body}, "JSON": {"application/json", []byte(`{}`)}} {
		if got, err := FormModel(c.contentType, c.body); err == nil {
			t.Errorf("%s: %q was taken", name, got)
		}
	}
}

func slicesRepeat(p formPart, n int) (out []formPart) {
	for range n {
		out = append(out, p)
	}
	return out
}

// FuzzForm: whatever the bytes, the reader returns a bounded name or refuses.
func FuzzForm(f *testing.F) {
	contentType, body := formBody(f, formPart{`form-data; name="model"`, "whisper"})
	f.Add(contentType, body)
	f.Add("multipart/form-data; boundary=x", []byte("--x\r\nContent-Disposition: form-data; name=model\r\n\r\na\r\n--x--"))
	f.Fuzz(func(t *testing.T, contentType string, body []byte) {
		if name, err := FormModel(contentType, body); len(name) > maxModelName || err != nil && name != "" {
			t.Fatalf("%d bytes, %v", len(name), err)
		}
	})
}
