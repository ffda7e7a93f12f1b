package openai

import "encoding/json"

// Model is one entry of a model listing.
type Model struct {
	ID      string `json:"id"`
	Object  string `json:"object"` // always "model"
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
	// How many tokens prompt and answer may have together, by the three names that clients look for: vLLM's, OpenRouter's
	// and Groq's. OpenAI's own listing has none. Absent when it is not known.
	MaxModelLen   int64 `json:"max_model_len,omitempty"`
	ContextLength int64 `json:"context_length,omitempty"`
	ContextWindow int64 `json:"context_window,omitempty"`
}

// NewModel is the entry of a served name. context is in tokens; 0: not known.
func NewModel(id string, created, context int64) Model {
	return Model{ID: id, Object: "model", Created: max(created, 0), OwnedBy: "levelrail", MaxModelLen: context, ContextLength: context, ContextWindow: context}
}

// ModelList is the JSON of a listing.
func ModelList(models []Model) []byte {
	if models == nil {
		models = []Model{}
	}
	b, err := json.Marshal(struct {
		Object string  `json:"object"`
		Data   []Model `json:"data"`
	}{"list", models})
	if err != nil { // strings and numbers only: it cannot
		return []byte(`{"object":"list","data":[]}`)
	}
	return b
}

// JSON is the entry by itself.
func (m Model) JSON() []byte {
	b, err := json.Marshal(m)
	if err != nil {
		return []byte(`{}`)
	}
	return b
}
