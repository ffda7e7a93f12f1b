package openai

import (
	"bytes"
	"io"
	"mime"
	"mime/multipart"
)

// Bounds of what is read of a form to find its model: uploads are large in one part, and few otherwise.
const (
	maxParts     = 64
	maxModelName = 512
)

// FormModel finds the model that a multipart form asks for. A form may say it once, as a plain text part; "" means that it
// does not. Engines disagree on repeated parts and on parts with a file name, so both are refused.
func FormModel(contentType string, body []byte) (string, error) {
	kind, params, err := mime.ParseMediaType(contentType)
	if err != nil || kind != "multipart/form-data" || params["boundary"] == "" {
		return "", &BodyError{Reason: "the Content-Type is not multipart/form-data with a boundary"}
	}
	r := multipart.NewReader(bytes.NewReader(body), params["boundary"])
	model, found := "", false
	for range maxParts {
		// Raw: the part as it stands, since engines do not decode a Content-Transfer-Encoding either.
		p, err := r.NextRawPart()
		if err == io.EOF && bytes.Contains(body, []byte("--"+params["boundary"]+"--")) { // not cut short
			return model, nil
		}
		if err != nil {
			return "", &BodyError{Reason: "the form cannot be read"}
		}
		if p.FormName() != "model" {
			continue
		}
		if found || p.FileName() != "" || len(p.Header["Content-Disposition"]) != 1 {
			return "", &BodyError{Field: "model", Reason: "the form's model has to stand once, as text"}
		}
		text, err := io.ReadAll(io.LimitReader(p, maxModelName+1))
		if err != nil || len(text) > maxModelName {
			return "", &BodyError{Field: "model", Reason: "the form's model cannot be read"}
		}
		model, found = string(text), true
	}
	return "", &BodyError{Reason: "the form has too many parts"}
}
