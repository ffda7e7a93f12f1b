package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"
)

// probeTime bounds one request of a probe. An engine that needs longer to say how it is will be asked again.
const probeTime = 2 * time.Second

// answer is what a probe got.
type answer struct {
	status int
	body   []byte
	err    error
}

// probe asks the engine behind c, whatever address c dials. The host is localhost: Ollama answers nobody else.
func probe(ctx context.Context, c *http.Client, method, path, key string, body any) answer {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	return ask(ctx, c, method, path, key, body)
}

func ask(ctx context.Context, c *http.Client, method, path, key string, body any) answer {
	var r io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return answer{err: err}
		}
		r = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://localhost"+path, r)
	if err != nil {
		return answer{err: err}
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := c.Do(req)
	if err != nil {
		return answer{err: fmt.Errorf("%s %s: %w", method, path, err)}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return answer{err: fmt.Errorf("%s %s: %w", method, path, err)}
	}
	return answer{status: resp.StatusCode, body: b}
}

// message is the text in an error body, of any engine's shape, or the body's beginning.
func (a answer) message() string {
	var shaped struct {
		Error   json.RawMessage `json:"error"`
		Message string          `json:"message"`
	}
	if json.Unmarshal(a.body, &shaped) == nil {
		var inner struct {
			Message string `json:"message"`
		}
		var text string
		switch {
		case json.Unmarshal(shaped.Error, &text) == nil && text != "":
			return clip(text)
		case json.Unmarshal(shaped.Error, &inner) == nil && inner.Message != "":
			return clip(inner.Message)
		case shaped.Message != "":
			return clip(shaped.Message)
		}
	}
	return clip(string(a.body))
}

// clip is one line of at most 300 bytes.
func clip(s string) string {
	s = strings.Join(strings.Fields(strings.ToValidUTF8(s, "?")), " ")
	if len(s) > 300 {
		s = strings.ToValidUTF8(s[:300], "") + "…"
	}
	return s
}

// listsModel asks the OpenAI listing, with the engine's key, whether this model is served.
func listsModel(ctx context.Context, c *http.Client, p Params) Readiness {
	list := probe(ctx, c, http.MethodGet, "/v1/models", p.Key, nil)
	switch {
	case list.err != nil:
		return Readiness{State: Down, Message: list.err.Error()}
	case list.status == http.StatusServiceUnavailable:
		return Readiness{State: Load, Message: list.message()}
	case list.status == http.StatusUnauthorized || list.status == http.StatusForbidden:
		return Readiness{State: Broken, Message: "the server on the socket does not accept this replica's key: it is not this model's engine, or it was started with another key"}
	case list.status != http.StatusOK:
		return Readiness{State: Broken, Message: fmt.Sprintf("GET /v1/models answered %d: %s", list.status, list.message())}
	}
	var models struct {
		Data []struct {
			ID      string   `json:"id"`
			Aliases []string `json:"aliases"`
		} `json:"data"`
	}
	if err := json.Unmarshal(list.body, &models); err != nil {
		return Readiness{State: Broken, Message: "GET /v1/models did not answer with a listing: " + clip(string(list.body))}
	}
	var ids []string
	for _, m := range models.Data {
		if m.ID == p.Model || slices.Contains(m.Aliases, p.Model) {
			return Readiness{State: Serving}
		}
		ids = append(ids, m.ID)
	}
	return Readiness{State: Broken, Message: fmt.Sprintf("the server on the socket serves %s and not %s", quote(join(ids)), p.Model)}
}
