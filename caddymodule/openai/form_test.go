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

// TestFormModelOfLibraries: forms are taken as common HTTP libraries write them.
func TestFormModelOfLibraries(t *testing.T) {
	for name, c := range map[string]struct{ contentType, model, file string }{
		"curl, httpx, Go": {"multipart/form-data; boundary=------------------------8d1f2a", `Content-Disposition: form-data; name="model"`, "Content-Disposition: form-data; name=\"file\"; filename=\"a b.wav\"\r\nContent-Type: audio/wav"},
		"odd file names":  {"multipart/form-data; boundary=x", `Content-Disposition: form-data; name="model"`, `Content-Disposition: form-data; name="file"; filename="a=b; name=model; ü.wav"`},
		"undici":          {"multipart/form-data; boundary=----formdata-undici-042", `Content-Disposition: form-data; name="model"`, "Content-Disposition: form-data; name=\"file\"; filename=\"a%22.wav\"\r\nContent-Type: application/octet-stream"},
		".NET":            {`multipart/form-data; boundary="2f1c-77"`, "Content-Type: text/plain; charset=utf-8\r\nContent-Disposition: form-data; name=model", "Content-Type: audio/wav\r\nContent-Disposition: form-data; name=file; filename=a.wav; filename*=utf-8''a.wav"},
		"OkHttp":          {"multipart/form-data; boundary=e1f7a2d4-0c1b-4d55-8f1e-5b2b", "Content-Disposition: form-data; name=\"model\"\r\nContent-Length: 7", "Content-Disposition: form-data; name=\"file\"; filename=\"ü.wav\"\r\nContent-Type: audio/wav\r\nContent-Length: 9"},
		"Apache":          {"multipart/form-data; boundary=x_Y-9", "Content-Disposition: form-data; name=\"model\"\r\nContent-Type: text/plain; charset=ISO-8859-1\r\nContent-Transfer-Encoding: 8bit", "Content-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\nContent-Transfer-Encoding: binary"},
	} {
		boundary, ok := formBoundary(c.contentType)
		if !ok {
			t.Errorf("%s: the boundary of %q is not found", name, c.contentType)
			continue
		}
		for _, end := range []string{"--\r\n", "--"} {
			body := "--" + boundary + "\r\n" + c.file + "\r\n\r\nsound\r\n--\n\r\n--" + boundary + "\r\nContent-Disposition: form-data; name=\"timestamp_granularities[]\"\r\n\r\nword\r\n--" + boundary + "\r\n" + c.model + "\r\n\r\nwhisper\r\n--" + boundary + end
			if got, err := FormModel(c.contentType, []byte(body)); err != nil || got != "whisper" {
				t.Errorf("%s: %q %v", name, got, err)
			}
		}
	}
}

// TestFormModelRefuses: what parsers take apart in different ways is refused, and no message quotes the form.
func TestFormModelRefuses(t *testing.T) {
	const plain = "multipart/form-data; boundary=x"
	part := func(head string) string { return "--x\r\n" + head + "\r\n\r\nwhisper\r\n--x--\r\n" }
	named := part(`Content-Disposition: form-data; name="model"`)
	for _, body := range []string{
		"", "--x", "--x\r\n", named[:len(named)-6], "\r\n" + named, "before\r\n" + named, named + "after", named + "\r\n", "--x \r\n" + named[5:], strings.ReplaceAll(named, "\r\n", "\n"), strings.Replace(named, "whisper\r\n", "whisper\n", 1), strings.Replace(named, "whisper", "a--xb", 1), strings.Replace(named, "whisper", "a\r\n--xb", 1), strings.Replace(named, "whisper", "a\nb", 1), strings.Replace(named, "whisper", "\xff", 1),
		part(`X: y`), part(``), part(`Content-Disposition: form-data`), part(`Content-Disposition: attachment; name="model"`), part(`Content-Disposition: form-data; name="mod\el"`), part(`Content-Disposition: form-data; name="Model"`), part(`Content-Disposition: form-data; name*=UTF-8''model`), part(`Content-Disposition: form-data; Name="model"`), part(`Content-Disposition: form-data; name = "model"`), part(`Content-Disposition: form-data; name="other"; name="model"`),
		part(`Content-Disposition: form-data; filename="a; name=model"; name="other"`), part(`Content-Disposition: form-data; name="model" ; x`), part(`Content-Disposition: form-data; name="model"x`), part(`Content-Disposition: form-data; name="model`), part(`Content-Disposition: form-data; name="other"; filename="a\"; name="model"`), part(`Content-Disposition: form-data name="model"`), part(`Content-Disposition: form-data; name="model";`), part(`Content-Disposition: form-data; name="model"; filename=""`), part(`Content-Disposition: form-data; name="model"; filename*=UTF-8''x`), part("Content-Disposition: form-data; name=\"other\"\r\nContent-Disposition: form-data; name=\"model\""), part("Content-Disposition: form-data; name=\"model\"\r\nContent-Transfer-Encoding: base64"), part("Content-Disposition: form-data;\r\n name=\"model\""), part("Content-Disposition : form-data; name=\"model\""), part(strings.Repeat("X: y\r\n", 8) + `Content-Disposition: form-data; name="model"`),
	} {
		if got, err := FormModel(plain, []byte(body)); err == nil || strings.Contains(err.Error(), "whisper") {
			t.Errorf("%q was read as %q: %v", body, got, err)
		}
	}
	for _, contentType := range []string{"", "application/json", "multipart/form-data", "multipart/form-data; boundary=", "multipart/form-data; boundary=x; charset=utf-16", "multipart/form-data; boundary=y; boundary=x", "multipart/form-data; boundary=y=x", `multipart/form-data; boundary="x`, `multipart/form-data; boundary="\x"`, "multipart/form-data; boundary*=UTF-8''x", "multipart/mixed; boundary=x", "multipart/form-data; boundary=" + strings.Repeat("x", 71)} {
		if got, err := FormModel(contentType, []byte(named)); err == nil {
			t.Errorf("with the type %q was read %q", contentType, got)
		}
	}
}
