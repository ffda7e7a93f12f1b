package engine

import (
	"encoding/json"
	"strconv"
)

func (llamacpp) Repairs() Repairs {
	return Repairs{Fault: llamacppFault, Events: llamacppEvents, Whole: llamacppWhole}
}

// llamacppFault: build 11669 answers bad input with 500 or 501, and names its own flags. To go when llama-server answers
// these with 400; the words about our options stay.
func llamacppFault(ask Ask, f Fault) Fault {
	switch m := f.Message; {
	case f.Type == "not_supported_error" && ask.Kind == "embeddings":
		return f.notServed(ask, "embeddings", ", with --option embeddings=true")
	case f.Type == "not_supported_error" && ask.Kind == "rerank":
		return f.notServed(ask, "reranking", ": a reranking model, with --option reranking=true")
	case f.Status == 501:
		return f.notServed(ask, "this", "")
	case says(m, "image input is not supported", "audio input is not supported", "video input is not supported"):
		return f.notServed(ask, "pictures or sound", ", with a projector (--option mmproj=auto)")
	case says(m, "is too large to process"): // input (3001 tokens) is too large to process. increase the physical batch size …
		return f.invalid(codeContextLength, "The input is longer than "+ask.Model+" takes at a time. Send a shorter one, or in parts.")
	case f.Type == "exceed_context_size_error":
		return f.invalid(codeContextLength, m)
	case f.Status == 500 && says(m, "Failed to parse messages", "Failed to parse tools", "is required", "must be ", "json.exception", "Invalid ", "not supported", "Jinja", "jinja", "template"):
		return f.invalid(codeInvalid, m)
	}
	return f
}

// llamacppEvents: build 11669's stream of the responses API lacks what OpenAI's libraries build an answer from: places and
// numbers of events, the first events' output, model and time, and the usage's details. openai-python and openai-node fail at the
// first delta, the AI SDK at the first event. To go when test/repairs finds nothing to mend in a newer build.
func llamacppEvents(ask Ask) func([]byte) []byte {
	if ask.Kind != "responses" {
		return nil
	}
	number, items := 0, map[string]int{}
	return func(data []byte) []byte {
		var e struct {
			Type string          `json:"type"`
			ID   string          `json:"item_id"`
			Item json.RawMessage `json:"item"`
		}
		if json.Unmarshal(data, &e) != nil || e.Type == "" {
			return data
		}
		add := []member{{"sequence_number", strconv.Itoa(number)}}
		number++
		if len(e.Item) > 0 {
			var item struct {
				ID string `json:"id"`
			}
			if json.Unmarshal(e.Item, &item) == nil {
				e.ID = item.ID
			}
		}
		if len(e.Item) > 0 || e.ID != "" {
			at, known := items[e.ID]
			if !known {
				at = len(items)
				items[e.ID] = at
			}
			add = append(add, member{"output_index", strconv.Itoa(at)})
		}
		switch e.Type {
		case "response.output_text.delta", "response.output_text.done":
			add = append(add, member{"content_index", "0"}, member{"logprobs", "[]"})
		case "response.content_part.added", "response.content_part.done":
			add = append(add, member{"content_index", "0"})
			data = within(data, "part", func(part []byte) []byte { return completed(part, member{"annotations", "[]"}) })
		case "response.reasoning_text.delta", "response.reasoning_text.done", "response.refusal.delta", "response.refusal.done":
			add = append(add, member{"content_index", "0"})
		case "response.created", "response.in_progress", "response.completed", "response.incomplete", "response.failed":
			data = within(data, "response", func(response []byte) []byte { return llamacppResponse(ask, response) })
		}
		return completed(data, add...)
	}
}

// llamacppWhole is llamacppEvents for an answer that is no stream.
func llamacppWhole(ask Ask) func([]byte) []byte {
	if ask.Kind != "responses" {
		return nil
	}
	return func(body []byte) []byte { return llamacppResponse(ask, body) }
}

// llamacppResponse completes a response object with what OpenAI's always has.
func llamacppResponse(ask Ask, response []byte) []byte {
	model, _ := json.Marshal(ask.Model) // a string: it cannot fail
	response = within(response, "usage", func(usage []byte) []byte {
		return completed(usage, member{"input_tokens_details", `{"cached_tokens":0}`}, member{"output_tokens_details", `{"reasoning_tokens":0}`})
	})
	return completed(response, member{"object", `"response"`}, member{"created_at", strconv.FormatInt(ask.At, 10)}, member{"model", string(model)}, member{"output", "[]"},
		member{"error", "null"}, member{"incomplete_details", "null"}, member{"instructions", "null"}, member{"metadata", "{}"},
		member{"parallel_tool_calls", "true"}, member{"temperature", "null"}, member{"tool_choice", `"auto"`}, member{"tools", "[]"}, member{"top_p", "null"})
}
