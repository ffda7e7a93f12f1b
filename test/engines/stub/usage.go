package stub

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
)

// Engines say what an answer cost in manners of their own:
//
//   - chat and completions, whole: all of them, llama.cpp that of the first choice alone;
//   - chat, streamed: an extra event without choices, and only if the client asked; llama.cpp one for each choice, and the
//     same figures as timings in the finishing event whether asked or not;
//   - completions, streamed: llama.cpp in the finishing event whether asked or not, vLLM as in chat, Ollama all zeros in
//     every event and the truth in an extra one;
//   - responses: in response.completed;
//   - embeddings: the prompt; audio: vLLM seconds, llama.cpp tokens, Ollama nothing.
//
// Behaviour.Usage overrides that: none says nothing, always says it unasked, zeros is Ollama's way with completions on
// every stream, cumulative has a growing count in each event (vLLM's continuous_usage_stats).

// usageOf is the member "usage" of chat and completions.
func usageOf(manner string, prompt, output int) map[string]any {
	u := map[string]any{"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
	switch manner {
	case LlamaCpp:
		u["prompt_tokens_details"] = map[string]any{"cached_tokens": 0}
	case VLLM:
		u["prompt_tokens_details"] = nil
	}
	return u
}

// responsesUsage is that of the Responses API.
func responsesUsage(prompt, output int) map[string]any {
	return map[string]any{"input_tokens": prompt, "output_tokens": output, "total_tokens": prompt + output,
		"input_tokens_details": map[string]any{"cached_tokens": 0}, "output_tokens_details": map[string]any{"reasoning_tokens": 0}}
}

// audioUsage is that of a transcription of some seconds.
func audioUsage(manner string, seconds, output int) any {
	switch manner {
	case LlamaCpp:
		return map[string]any{"type": "tokens", "input_tokens": seconds * 50, "output_tokens": output, "total_tokens": seconds*50 + output}
	case VLLM:
		return map[string]any{"type": "duration", "seconds": seconds}
	}
	return nil
}

// streamUsage is where a stream says its usage.
type streamUsage struct {
	each   string // "", zeros, cumulative: in every event
	finish bool   // in the event that has the finish reason
	extra  bool   // in an event of its own
}

func (x *exchange) streamUsage(kind string, q *query) streamUsage {
	asked := q.StreamOptions != nil && q.StreamOptions.IncludeUsage
	switch x.b.Usage {
	case "none":
		return streamUsage{}
	case "always":
		return streamUsage{extra: true}
	case "zeros", "cumulative":
		return streamUsage{each: x.b.Usage, extra: true}
	}
	switch {
	case kind == kindCompletions && x.b.Manner == LlamaCpp:
		return streamUsage{finish: true}
	case kind == kindCompletions && x.b.Manner == Ollama && asked:
		return streamUsage{each: "zeros", extra: true}
	case asked && x.b.Manner == VLLM && q.StreamOptions.Continuous:
		return streamUsage{each: "cumulative", extra: true}
	}
	return streamUsage{extra: asked}
}

// errorBody is an error in the engine's words.
func errorBody(manner string, status int, message string) any {
	return map[string]any{"error": errorObject(manner, status, message)}
}

func errorObject(manner string, status int, message string) map[string]any {
	switch manner {
	case VLLM:
		kind := map[int]string{400: "BadRequestError", 401: "Unauthorized", 404: "NotFoundError", 500: "InternalServerError"}[status]
		if kind == "" {
			kind = http.StatusText(status)
		}
		return map[string]any{"message": message, "type": kind, "param": nil, "code": status}
	case Ollama:
		kind := map[int]string{400: "invalid_request_error", 404: "not_found_error"}[status]
		if kind == "" {
			kind = "api_error"
		}
		return map[string]any{"message": message, "type": kind, "param": nil, "code": nil}
	}
	kind := map[int]string{400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
		501: "not_supported_error", 503: "unavailable_error"}[status]
	if kind == "" {
		kind = "server_error"
	}
	return map[string]any{"code": status, "message": message, "type": kind}
}

// leastBytes is the smallest whole answer of an exact size.
const leastBytes = 512

// wholeOf makes a chat completion of exactly so many bytes. Its usage comes last, as engines write it.
func wholeOf(size int, model string, b *Behaviour) []byte {
	name, _ := json.Marshal(model)
	prompt, output := b.PromptTokens, b.OutputTokens
	if prompt == 0 {
		prompt = 12
	}
	if output == 0 {
		output = 34
	}
	head := fmt.Appendf(nil, `{"id":"chatcmpl-stub","object":"chat.completion","created":1700000000,"model":%s,"choices":[{"index":0,"message":{"role":"assistant","content":"`, name)
	tail := []byte(`"},"finish_reason":"stop"}]}`)
	if b.Usage != "none" {
		tail = fmt.Appendf(nil, `"},"finish_reason":"stop"}],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}}`, prompt, output, prompt+output)
	}
	words := bytes.Repeat([]byte("words of an answer "), (size-len(head)-len(tail))/19+1)
	return append(append(head, words[:size-len(head)-len(tail)]...), tail...)
}
