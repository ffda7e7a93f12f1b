package engine

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// BodyTable says what a request body may hold for an engine: each field that the engine reads, and each that clients send
// though it reads nothing of the kind, with the form and the size that its value may have. The gateway refuses what the
// table does not admit; null is as good as absent everywhere but in NullUnlimited.
type BodyTable struct {
	Length []string // fields that bound generated tokens
	// Reads are the fields of Length that the engine reads on a kind of route, the winning one first. A length that came
	// under another name alone is written into the first of them.
	Reads  map[string][]string
	Count  []string  // fields that multiply the work: n, best_of
	Fields []Field   // the fields that pass, in order of their names
	Refuse []Refusal // fields that no client may send, but with a value that changes nothing
	// Unknown says what becomes of a field that is neither in Fields nor in Refuse where no setting says so: Pass or Deny.
	Unknown string
	// ZeroUnlimited: a Length of 0 is no bound.
	ZeroUnlimited bool
	// NullUnlimited are the kinds of route on which a Length of null is no bound, though one that is missing is.
	NullUnlimited []string
}

// What becomes of fields that a table does not know.
const (
	Pass = "pass"
	Deny = "refuse"
)

// PromptField is the field whose elements are answered each by itself, by kind of route.
var PromptField = map[string]string{"completions": "prompt", "embeddings": "input", "rerank": "documents"}

// Forms is a set of forms that a value may have.
type Forms uint8

// The forms of values.
const (
	Switch Forms = 1 << iota // true or false
	Whole                    // a whole number in digits, with or without zeros behind a point
	Real                     // any number
	Text                     // a string
	List                     // an array
	Object                   // an object
)

// Anything is every form.
const Anything = Switch | Real | Text | List | Object

// Inside says how the gateway looks into a value, beyond its size.
type Inside uint8

// What values hold that engines compile before they generate.
const (
	Plain   Inside = iota // nothing of the kind
	Schema                // a JSON schema, or an object that holds some at any place (response_format, text, tools, functions)
	Grammar               // a grammar in llama.cpp's or xgrammar's notation
	Regex                 // a regular expression
)

// Field is one field of a body's top level.
type Field struct {
	Name     string
	Forms    Forms
	Min, Max float64 // of a number
	Bytes    int     // of the whole value as it stands in the body; 0: as many as the body
	Items    int     // elements of a list, members of an object; 0: no bound
	Nodes    int     // values within a list or an object, at all levels; 0: no bound
	Each     int     // bytes of one string within a list or an object; 0: no bound
	Inside   Inside
}

// Refusal is a field that no client may send.
type Refusal struct {
	Name string
	Same []string // values that change nothing, as they stand in a body without white space: those pass
	Next string   // what to send instead, or who sets it
}

// Say is what a field's value may be, in words.
func (f Field) Say() string {
	if f.Forms == Anything {
		return "anything" + bound("; up to %d bytes", f.Bytes) + bound("; up to %d values in it", f.Nodes)
	}
	var forms []string
	if f.Forms&Switch != 0 {
		forms = append(forms, "true or false")
	}
	number := func(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }
	switch {
	case f.Forms&Whole != 0:
		forms = append(forms, "a whole number from "+number(f.Min)+" to "+number(f.Max))
	case f.Forms&Real != 0 && f.Max > 0:
		forms = append(forms, "a number from "+number(f.Min)+" to "+number(f.Max))
	case f.Forms&Real != 0:
		forms = append(forms, "a number")
	}
	if f.Forms&Text != 0 {
		forms = append(forms, "a string")
	}
	if f.Forms&List != 0 {
		forms = append(forms, "a list"+bound(" of up to %d elements", f.Items))
	}
	if f.Forms&Object != 0 {
		forms = append(forms, "an object"+bound(" of up to %d members", f.Items))
	}
	out := forms[0]
	if n := len(forms); n > 1 {
		out = strings.Join(forms[:n-1], ", ") + " or " + forms[n-1]
	}
	return out + bound("; up to %d bytes", f.Bytes) + bound("; up to %d values in it", f.Nodes) + bound("; up to %d bytes in each string", f.Each)
}

func bound(format string, n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(format, n)
}

// The makers of fields.

func switches(names ...string) (out []Field) {
	for _, n := range names {
		out = append(out, Field{Name: n, Forms: Switch})
	}
	return out
}

func wholes(least, most float64, names ...string) (out []Field) {
	for _, n := range names {
		out = append(out, Field{Name: n, Forms: Whole, Min: least, Max: most})
	}
	return out
}

func reals(least, most float64, names ...string) (out []Field) {
	for _, n := range names {
		out = append(out, Field{Name: n, Forms: Real, Min: least, Max: most})
	}
	return out
}

func texts(bytes int, names ...string) (out []Field) {
	for _, n := range names {
		out = append(out, Field{Name: n, Forms: Text, Bytes: bytes})
	}
	return out
}

// small is any value of a size that costs nothing.
func small(names ...string) (out []Field) {
	for _, n := range names {
		out = append(out, Field{Name: n, Forms: Anything, Bytes: 16 << 10, Nodes: 512})
	}
	return out
}

// mostWhole bounds whole numbers that cost nothing, such as seeds: every engine reads that many digits as the same number.
const mostWhole = 1 << 53

// commonFields are those of the OpenAI API, and those that its clients send to every server and no engine acts on. What a
// body as a whole may hold bounds the texts that a model is asked with.
func commonFields() []Field {
	return slices.Concat(
		switches("stream", "store", "background", "parallel_tool_calls", "echo", "include_reasoning", "enable_thinking"),
		[]Field{
			{Name: "model", Forms: Text, Bytes: 1024},
			{Name: "messages", Forms: List, Items: 16384, Nodes: 1 << 18},
			{Name: "prompt", Forms: Text | List | Object, Nodes: 1 << 20},
			{Name: "input", Forms: Text | List, Nodes: 1 << 20},
			{Name: "instructions", Forms: Text | List, Nodes: 1 << 16},
			{Name: "stream_options", Forms: Anything, Bytes: 1024, Nodes: 32},
			{Name: "stop", Forms: Text | List, Bytes: 16 << 10, Items: 64, Each: 1024},
			{Name: "logit_bias", Forms: Object | List, Bytes: 64 << 10, Items: 1024, Nodes: 4096, Each: 256},
			{Name: "logprobs", Forms: Switch | Whole, Min: 0, Max: 100},
			{Name: "response_format", Forms: Object, Inside: Schema},
			{Name: "text", Forms: Object | Text, Inside: Schema},
			{Name: "tools", Forms: List, Items: 512, Inside: Schema},
			{Name: "functions", Forms: List, Items: 512, Inside: Schema},
			{Name: "documents", Forms: List, Nodes: 1 << 16},
			{Name: "suffix", Forms: Text},
			{Name: "query", Forms: Text},
		},
		wholes(0, 100, "top_logprobs"),
		wholes(-mostWhole, mostWhole, "seed"),
		wholes(1, 1<<20, "dimensions"),
		wholes(0, 1<<20, "max_tool_calls", "top_n"),
		reals(-100, 100, "temperature", "frequency_penalty", "presence_penalty"),
		reals(0, 1, "top_p"),
		texts(1024, "user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "service_tier", "reasoning_effort", "verbosity", "encoding_format", "truncation", "instruction"),
		small("metadata", "tool_choice", "function_call", "modalities", "audio", "prediction", "web_search_options", "include", "reasoning", "conversation", "previous_response_id",
			"context_management", "moderation", "stream_obfuscation",
			// Of other servers and of text UIs: no engine here reads them.
			"provider", "models", "route", "transforms", "plugins", "usage", "extra_body", "extra_headers", "cache_control", "thinking", "think", "tags", "litellm_metadata", "chat_id", "id",
			"max_context_length", "truncation_length", "max_new_tokens", "max_length", "min_length", "preset", "legacy_api", "api_type", "api_server", "do_sample", "typical", "tfs", "tfs_z", "top_a", "skew",
			"sampler_seed", "sampler_order", "sampler_priority", "stopping_strings", "banned_strings", "banned_tokens", "custom_token_bans", "ban_eos_token", "add_bos_token", "dynamic_temperature", "dynatemp_low", "dynatemp_high",
			"smoothing_factor", "smoothing_curve", "max_tokens_second", "mirostat_mode", "nsigma", "guidance_scale", "negative_prompt", "repetition_decay", "rep_pen", "rep_pen_range", "rep_pen_slope",
			"repetition_penalty_range", "repetition_penalty_slope", "penalty_alpha", "encoder_repetition_penalty", "no_repeat_ngram_size", "penalize_nl", "early_stopping", "num_beams", "trim_stop", "quiet",
			"use_default_badwordsids", "grammar_string", "character", "mode", "instruction_template", "custom_stopping_strings", "auto_max_new_tokens", "image_data", "slot_id", "post_sampling_probs"))
}

// nativeRefusals are names from engines' own APIs. Some engine reads each of them in place of a field that the gateway
// checks, or for everybody's requests at once, so they are refused on all.
func nativeRefusals() []Refusal {
	const length = "send max_tokens, which every engine here is held to"
	return []Refusal{
		{Name: "n_predict", Next: length},
		{Name: "num_predict", Next: length},
		{Name: "n_cmpl", Next: "send n"},
		{Name: "options", Same: []string{"{}"}, Next: "send its members as fields of their own, by the names of the OpenAI API"},
		{Name: "num_ctx", Same: []string{"0"}, Next: "the context is the operator's to set, with levelrail models update --context"},
		{Name: "keep_alive", Next: "how long an idle model stays loaded is the operator's to set"},
		{Name: "num_gpu", Next: "GPUs are the operator's to give"},
	}
}

// table puts the fields of an engine's own in the place of common ones of that name, and sorts.
func (b BodyTable) table(own ...[]Field) BodyTable {
	byName := map[string]Field{}
	for _, f := range slices.Concat(append([][]Field{commonFields()}, own...)...) {
		byName[f.Name] = f
	}
	for _, n := range slices.Concat(b.Length, b.Count) {
		delete(byName, n) // they have rules of their own
	}
	for _, r := range b.Refuse {
		delete(byName, r.Name)
	}
	b.Fields = b.Fields[:0]
	for _, f := range byName {
		b.Fields = append(b.Fields, f)
	}
	slices.SortFunc(b.Fields, func(x, y Field) int { return strings.Compare(x.Name, y.Name) })
	return b
}
