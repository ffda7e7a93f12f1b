package stub

import "encoding/json"

// responses answers /v1/responses.
func (x *exchange) responses() string {
	q, err := x.query()
	if err != nil {
		return x.refuse(400, err.Error())
	}
	r := x.reply(q)
	if q.Stream {
		return x.streamResponse(q, r)
	}
	return x.json(x.response(q, r, "completed"))
}

// response is the object, as it stands at its beginning (in_progress) or end (completed).
func (x *exchange) response(q *query, r reply, status string) map[string]any {
	answer := map[string]any{"id": "resp_stub", "object": "response", "created_at": x.e.started, "status": status, "model": q.Model,
		"output": []any{}, "error": nil, "incomplete_details": nil, "instructions": nil, "metadata": map[string]any{},
		"parallel_tool_calls": true, "tool_choice": "auto", "tools": []any{}, "temperature": 1, "top_p": 1, "usage": nil}
	if status != "completed" {
		return answer
	}
	answer["output"] = []any{outputItem(r, r.text(), "completed")}
	if r.finish == "length" {
		answer["status"], answer["incomplete_details"] = "incomplete", map[string]any{"reason": "max_output_tokens"}
	}
	if x.b.Usage != "none" {
		answer["usage"] = responsesUsage(r.prompt, r.output)
	}
	return answer
}

func outputItem(r reply, text, status string) map[string]any {
	if r.call != "" {
		return map[string]any{"type": "function_call", "id": "fc_stub", "call_id": "call_stub", "name": r.call, "arguments": text, "status": status}
	}
	content := []any{}
	if text != "" {
		content = []any{outputText(text)}
	}
	return map[string]any{"type": "message", "id": "msg_stub", "role": "assistant", "status": status, "content": content}
}

func outputText(text string) map[string]any {
	return map[string]any{"type": "output_text", "text": text, "annotations": []any{}, "logprobs": []any{}}
}

// streamResponse writes the events of the Responses API, which end with response.completed and no [DONE].
func (x *exchange) streamResponse(q *query, r reply) string {
	s := x.events()
	if s == nil {
		return endLeft
	}
	if x.b.End == HeadersOnly || x.b.End == CutHeaders {
		return x.ending(nil)
	}
	here := func(members map[string]any) map[string]any {
		members["output_index"] = 0
		if r.call == "" {
			members["item_id"], members["content_index"] = "msg_stub", 0
		} else {
			members["item_id"] = "fc_stub"
		}
		return members
	}
	data := func(name string, members map[string]any) []byte {
		members["type"], members["sequence_number"] = name, s.all
		b, err := json.Marshal(members)
		if err != nil {
			panic(err)
		}
		return b
	}
	say := func(name string, members map[string]any) bool { return s.event(name, data(name, members), false) }

	begun := say("response.created", map[string]any{"response": x.response(q, r, "in_progress")}) &&
		say("response.in_progress", map[string]any{"response": x.response(q, r, "in_progress")}) &&
		say("response.output_item.added", map[string]any{"output_index": 0, "item": outputItem(r, "", "in_progress")}) &&
		(r.call != "" || say("response.content_part.added", here(map[string]any{"part": outputText("")})))
	if !begun {
		return endLeft
	}
	delta := "response.output_text.delta"
	if r.call != "" {
		delta = "response.function_call_arguments.delta"
	}
	piece := func(_ int, text string) bool {
		return s.content(delta, text, func(quoted []byte) []byte {
			return data(delta, here(map[string]any{"delta": json.RawMessage(quoted)}))
		})
	}
	failed := func() string {
		if !say("error", map[string]any{"code": "server_error", "message": "The engine failed.", "param": nil}) {
			return endLeft
		}
		return s.finish()
	}
	if end := s.pieces(r.pieces, piece, failed); end != "" {
		return end
	}
	var ended bool
	if r.call != "" {
		ended = say("response.function_call_arguments.done", here(map[string]any{"name": r.call, "arguments": r.text()}))
	} else {
		ended = say("response.output_text.done", here(map[string]any{"text": r.text(), "logprobs": []any{}})) &&
			say("response.content_part.done", here(map[string]any{"part": outputText(r.text())}))
	}
	if !ended || !say("response.output_item.done", map[string]any{"output_index": 0, "item": outputItem(r, r.text(), "completed")}) {
		return endLeft
	}
	name := "response.completed"
	if r.finish == "length" {
		name = "response.incomplete"
	}
	if !s.event(name, data(name, map[string]any{"response": x.response(q, r, "completed")}), true) {
		return endLeft
	}
	return s.finish()
}
