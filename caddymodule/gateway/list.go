package gateway

import (
	"net/http"
	"slices"
	"strconv"

	"github.com/levelrail/levelrail/caddymodule/openai"
	"github.com/levelrail/levelrail/caddymodule/route"
)

// list answers /v1/models and /v1/models/{id} from the table: the served names of the key's models, as far as its
// allow_models goes. What an engine would list is never asked: it knows other people's models and other names.
func (x *exchange) list() *openai.Error {
	if x.match.Kind != route.KindModels && x.match.Kind != route.KindModel {
		return nil
	}
	models := x.visible()
	body := openai.ModelList(models)
	if x.match.Kind == route.KindModel {
		i := slices.IndexFunc(models, func(m openai.Model) bool { return m.ID == x.match.ModelID })
		if i < 0 {
			return modelNotFound()
		}
		body = models[i].JSON()
	}
	x.unread()
	h := x.w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Cache-Control", "no-store")
	x.answered, x.record.Status = true, http.StatusOK
	x.w.WriteHeader(http.StatusOK)
	n, _ := x.w.Write(body) // a client that left misses nothing
	x.record.Bytes = int64(n)
	x.linger()
	return nil
}

func (x *exchange) visible() []openai.Model {
	models := x.models()
	if x.site != nil {
		models = []*route.Model{x.site}
	}
	var out []openai.Model
	for _, m := range models {
		for _, name := range m.Names {
			if len(x.key.AllowNames) > 0 && !slices.Contains(x.key.AllowNames, name) {
				continue
			}
			if !slices.ContainsFunc(out, func(o openai.Model) bool { return o.ID == name }) {
				out = append(out, openai.NewModel(name, m.Created, m.Context))
			}
		}
	}
	return out
}

func modelNotFound() *openai.Error {
	return openai.Refuse(http.StatusNotFound, openai.CodeModelNotFound, "model", "The model does not exist, or the API key does not open it. GET /v1/models lists what it opens.")
}
