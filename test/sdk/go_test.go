package sdk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/param"
	"github.com/openai/openai-go/v3/packages/ssestream"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"

	"github.com/levelrail/levelrail/test/engines/stub"
)

const said = "You said: one two three"

// goSuite is the suite in Go. It returns the names of the checks, in order.
func (s *site) goSuite(t *testing.T) []string {
	g := &goClient{site: s, api: s.client(s.key, 0)}
	checks := map[string]func(*testing.T){
		"models_list": g.modelsList, "models_retrieve": g.modelsRetrieve, "chat": g.chat, "chat_stream": g.chatStream, "chat_stream_forms": g.forms, "tools": g.tools,
		"tools_stream": g.toolsStream, "json_mode": g.jsonMode, "max_tokens": g.maxTokens, "completions": g.completions, "embeddings": g.embeddings, "responses": g.responses,
		"responses_stream": g.responsesStream, "long_answer": g.longAnswer, "compressed": g.compressed, "error_401": g.error401, "error_404": g.error404, "error_400": g.error400,
		"error_of_engine": g.errorOfEngine, "error_503": g.error503, "error_429_and_retry": g.retry, "error_429_of_key": g.spent, "usage_not_asked": g.usageNotAsked, "cancel": g.cancel, "engine_cut": g.engineCut, "engine_dying_words": g.dyingWords,
	}
	if s.engine == stub.VLLM {
		checks["audio"] = g.audio
	}
	var names []string
	for name, check := range checks {
		names = append(names, name)
		t.Run(name, check)
	}
	return slices.Sorted(slices.Values(names))
}

type goClient struct {
	*site
	api openai.Client
}

func (s *site) client(key string, retries int) openai.Client {
	return openai.NewClient(option.WithBaseURL(s.url+"/v1"), option.WithAPIKey(key), option.WithMaxRetries(retries), option.WithRequestTimeout(20*time.Second))
}

// say is a chat of one user message.
func say(model, text string) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{Model: model, Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(text)}}
}

func hello(model string) openai.ChatCompletionNewParams { return say(model, "one two three") }

func behave(b stub.Behaviour) option.RequestOption { return option.WithJSONSet("stub", b) }

func same(t *testing.T, what string, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func must[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// refused holds an error against a status and a code in OpenAI's shape.
func refused(t *testing.T, err error, status int, code string) *openai.Error {
	t.Helper()
	var e *openai.Error
	if !errors.As(err, &e) || e.StatusCode != status || e.Code != code || e.Message == "" || e.Type == "" {
		t.Fatalf("%v, want %d %s", err, status, code)
	}
	return e
}

func (g *goClient) modelsList(t *testing.T) {
	var ids []string
	for _, m := range must(g.api.Models.List(t.Context()))(t).Data {
		ids = append(ids, m.ID)
	}
	same(t, "models", ids, names)
}

func (g *goClient) modelsRetrieve(t *testing.T) {
	for _, m := range must(g.api.Models.List(t.Context()))(t).Data {
		same(t, m.ID, must(g.api.Models.Get(t.Context(), m.ID))(t).RawJSON(), m.RawJSON())
	}
}

func (g *goClient) chat(t *testing.T) {
	for _, name := range []string{"chat", "org/chat-7b:Q4_K_M"} {
		a := must(g.api.Chat.Completions.New(t.Context(), hello(name)))(t)
		same(t, name, []any{a.Choices[0].Message.Content, a.Choices[0].FinishReason, a.Usage.PromptTokens}, []any{said, "stop", int64(3)})
		if a.Usage.CompletionTokens <= 0 {
			t.Error(a.RawJSON())
		}
	}
}

// read reads a stream of chat to its end.
func read(s *ssestream.Stream[openai.ChatCompletionChunk]) (text string, usage int64, chunks int, err error) {
	defer s.Close()
	for s.Next() {
		c := s.Current()
		chunks++
		usage = max(usage, c.Usage.PromptTokens)
		for _, choice := range c.Choices {
			text += choice.Delta.Content
		}
	}
	return text, usage, chunks, s.Err()
}

func (g *goClient) chatStream(t *testing.T) {
	p := hello("chat")
	text, usage, _, err := read(g.api.Chat.Completions.NewStreaming(t.Context(), p, behave(stub.Behaviour{Gap: stub.Duration(2 * time.Millisecond)})))
	same(t, "a stream that did not ask for usage", []any{text, usage, err}, []any{said, int64(0), nil})
	p.StreamOptions.IncludeUsage = openai.Bool(true)
	text, usage, _, err = read(g.api.Chat.Completions.NewStreaming(t.Context(), p))
	same(t, "a stream", []any{text, usage, err}, []any{said, int64(3), nil})
}

func (g *goClient) forms(t *testing.T) {
	// Go's library joins several data lines, but reads lines up to 32 MB, so a long one is no matter either.
	for _, form := range [][]string{{stub.CRLF}, {stub.Comments}, {stub.Tight, stub.Fields}, {stub.CRLF, stub.Comments, stub.Lines}, {stub.Long}} {
		b := stub.Behaviour{Form: form}
		if form[0] != stub.Long {
			b.Split, b.SplitGap = 11, stub.Duration(10*time.Microsecond)
		}
		text, _, _, err := read(g.api.Chat.Completions.NewStreaming(t.Context(), hello("chat"), behave(b)))
		if err != nil || text != said && (form[0] != stub.Long || len(text) < 200_000) {
			t.Errorf("%v: %v %.100q", form, err, text)
		}
	}
}

var weather = shared.FunctionDefinitionParam{Name: "weather", Parameters: shared.FunctionParameters{"type": "object",
	"properties": map[string]any{"city": map[string]any{"type": "string"}, "days": map[string]any{"type": "integer"}}, "required": []string{"city", "days"}}}

const wantArguments = `{"city":"Paris","days":7}`

func withTools() openai.ChatCompletionNewParams {
	p := say("chat", "Paris")
	p.Tools = []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(weather)}
	return p
}

func (g *goClient) tools(t *testing.T) {
	p := withTools()
	a := must(g.api.Chat.Completions.New(t.Context(), p))(t).Choices[0]
	if len(a.Message.ToolCalls) != 1 {
		t.Fatal(a.RawJSON())
	}
	call := a.Message.ToolCalls[0]
	same(t, "call", []string{a.FinishReason, call.Function.Name, call.Function.Arguments}, []string{"tool_calls", "weather", wantArguments})
	p.Messages = append(p.Messages, a.Message.ToParam(), openai.ToolMessage("sunny", call.ID))
	same(t, "after the call", must(g.api.Chat.Completions.New(t.Context(), p))(t).Choices[0].Message.Content, "The tool said: sunny")
}

func (g *goClient) toolsStream(t *testing.T) {
	s := g.api.Chat.Completions.NewStreaming(t.Context(), withTools())
	defer s.Close()
	var all openai.ChatCompletionAccumulator
	for s.Next() {
		all.AddChunk(s.Current())
	}
	if s.Err() != nil || len(all.Choices) != 1 || len(all.Choices[0].Message.ToolCalls) != 1 {
		t.Fatal(s.Err(), all.Choices)
	}
	f := all.Choices[0].Message.ToolCalls[0].Function
	same(t, "call", []string{f.Name, f.Arguments}, []string{"weather", wantArguments})
}

func (g *goClient) jsonMode(t *testing.T) {
	p := hello("chat")
	p.ResponseFormat.OfJSONObject = &shared.ResponseFormatJSONObjectParam{}
	same(t, "an object", must(g.api.Chat.Completions.New(t.Context(), p))(t).Choices[0].Message.Content, `{"said":"one two three"}`)
	p.ResponseFormat = openai.ChatCompletionNewParamsResponseFormatUnion{OfJSONSchema: &shared.ResponseFormatJSONSchemaParam{JSONSchema: shared.ResponseFormatJSONSchemaJSONSchemaParam{
		Name: "s", Schema: map[string]any{"type": "object", "properties": map[string]any{"ok": map[string]any{"type": "boolean"}, "list": map[string]any{"type": "array", "items": map[string]any{"enum": []string{"a", "b"}}}}}}}}
	same(t, "a schema", must(g.api.Chat.Completions.New(t.Context(), p))(t).Choices[0].Message.Content, `{"list":["a"],"ok":true}`)
}

func (g *goClient) maxTokens(t *testing.T) {
	p := hello("chat")
	p.MaxCompletionTokens = openai.Int(2)
	a := must(g.api.Chat.Completions.New(t.Context(), p))(t)
	same(t, "end", []any{a.Choices[0].FinishReason, a.Usage.CompletionTokens}, []any{"length", int64(2)})
}

func (g *goClient) completions(t *testing.T) {
	p := openai.CompletionNewParams{Model: "chat", Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("x")}}
	same(t, "whole", must(g.api.Completions.New(t.Context(), p))(t).Choices[0].Text, "You said: x")
	s := g.api.Completions.NewStreaming(t.Context(), p)
	defer s.Close()
	text := ""
	for s.Next() {
		for _, c := range s.Current().Choices {
			text += c.Text
		}
	}
	same(t, "streamed", []any{text, s.Err()}, []any{"You said: x", nil})
}

func (g *goClient) embeddings(t *testing.T) {
	a := must(g.api.Embeddings.New(t.Context(), openai.EmbeddingNewParams{Model: "chat", Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{"one", "two"}}}))(t)
	if len(a.Data) != 2 || a.Usage.PromptTokens != 2 {
		t.Fatal(a.RawJSON())
	}
	for _, e := range a.Data {
		sum := 0.0
		for _, x := range e.Embedding {
			sum += x * x
		}
		if len(e.Embedding) != 16 || math.Abs(sum-1) > 1e-3 {
			t.Errorf("%d dimensions, length² %f", len(e.Embedding), sum)
		}
	}
}

func ask(text string) responses.ResponseNewParams {
	return responses.ResponseNewParams{Model: "chat", Input: responses.ResponseNewParamsInputUnion{OfString: openai.String(text)}}
}

func (g *goClient) responses(t *testing.T) {
	a := must(g.api.Responses.New(t.Context(), ask("hello")))(t)
	same(t, "text", []any{a.OutputText(), a.Status, a.Usage.InputTokens}, []any{"You said: hello", responses.ResponseStatusCompleted, int64(1)})
	p := ask("Paris")
	p.Tools = []responses.ToolUnionParam{{OfFunction: &responses.FunctionToolParam{Name: weather.Name, Parameters: weather.Parameters, Strict: param.NewOpt(false)}}}
	a = must(g.api.Responses.New(t.Context(), p))(t)
	if len(a.Output) != 1 || a.Output[0].AsFunctionCall().Arguments != wantArguments {
		t.Error(a.RawJSON())
	}
}

func (g *goClient) responsesStream(t *testing.T) {
	s := g.api.Responses.NewStreaming(t.Context(), ask("hello"), behave(stub.Behaviour{Gap: stub.Duration(2 * time.Millisecond)}))
	defer s.Close()
	text := ""
	var last responses.ResponseStreamEventUnion
	for s.Next() {
		if last = s.Current(); last.Type == "response.output_text.delta" {
			text += last.Delta
		}
	}
	same(t, "stream", []any{text, last.Type, last.Response.OutputText(), s.Err()}, []any{"You said: hello", "response.completed", "You said: hello", nil})
	if last.Response.Usage.OutputTokens <= 0 {
		t.Error(last.RawJSON())
	}
}

func (g *goClient) audio(t *testing.T) {
	sound := func() io.Reader { return openai.File(strings.NewReader("12345"), "a.wav", "audio/wav") }
	const want = "You sent a.wav with 5 bytes."
	same(t, "transcription", must(g.api.Audio.Transcriptions.New(t.Context(), openai.AudioTranscriptionNewParams{Model: "chat", File: sound()}))(t).Text, want)
	//lint:ignore SA1019 the library advises against it, yet clients call it and the gateway serves it
	same(t, "translation", must(g.api.Audio.Translations.New(t.Context(), openai.AudioTranslationNewParams{Model: "chat", File: sound()}))(t).Text, want)
	s := g.api.Audio.Transcriptions.NewStreaming(t.Context(), openai.AudioTranscriptionNewParams{Model: "chat", File: sound()})
	defer s.Close()
	text := ""
	for s.Next() {
		if e := s.Current(); e.Type == "transcript.text.delta" {
			text += e.Delta
		}
	}
	same(t, "stream", []any{text, s.Err()}, []any{want, nil})
}

func (g *goClient) longAnswer(t *testing.T) {
	a := must(g.api.Chat.Completions.New(t.Context(), say("chat", strings.Repeat("x", 300_000)), behave(stub.Behaviour{Bytes: 400_000})))(t)
	if n := len(a.Choices[0].Message.Content); n < 390_000 {
		t.Errorf("%d bytes", n)
	}
}

func (g *goClient) compressed(t *testing.T) {
	a := must(g.api.Chat.Completions.New(t.Context(), hello("chat"), behave(stub.Behaviour{Compress: true})))(t)
	same(t, "whole", []any{a.Choices[0].Message.Content, a.Usage.PromptTokens}, []any{said, int64(3)})
	text, _, _, err := read(g.api.Chat.Completions.NewStreaming(t.Context(), hello("chat"), behave(stub.Behaviour{Compress: true})))
	same(t, "streamed", []any{text, err}, []any{said, nil})
}

func (g *goClient) error401(t *testing.T) {
	wrong := g.client("lr-wrong", 0)
	_, err := wrong.Models.List(t.Context())
	refused(t, err, 401, "invalid_api_key")
	_, err = wrong.Chat.Completions.New(t.Context(), hello("chat"))
	refused(t, err, 401, "invalid_api_key")
}

func (g *goClient) error404(t *testing.T) {
	_, err := g.api.Chat.Completions.New(t.Context(), hello("other"))
	refused(t, err, 404, "model_not_found")
	_, err = g.api.Models.Get(t.Context(), "org/other")
	refused(t, err, 404, "model_not_found")
	refused(t, g.api.Post(t.Context(), "score", struct{}{}, new(json.RawMessage)), 404, "unknown_url")
}

func (g *goClient) error400(t *testing.T) {
	_, err := g.api.Chat.Completions.New(t.Context(), hello("chat"), option.WithJSONSet("n_predict", 5))
	same(t, "the field to blame", refused(t, err, 400, "invalid_body").Param, "n_predict")
}

func (g *goClient) errorOfEngine(t *testing.T) {
	_, err := g.api.Chat.Completions.New(t.Context(), hello("chat"), behave(stub.Behaviour{Status: 422}))
	var e *openai.Error
	if !errors.As(err, &e) || e.StatusCode != 422 || !strings.Contains(e.Message, "the stub was told to answer 422") {
		t.Error(err)
	}
}

func (g *goClient) error503(t *testing.T) {
	api := g.client(g.keyLoading, 0)
	_, err := api.Chat.Completions.New(t.Context(), hello("loading"))
	same(t, "Retry-After", refused(t, err, 503, "model_loading").Response.Header.Get("Retry-After"), "1")
}

func (g *goClient) askBusy(ctx context.Context, retries int) error {
	api := g.client(g.keyBusy, retries)
	a, err := api.Chat.Completions.New(ctx, hello("busy"))
	if err == nil && a.Choices[0].Message.Content != said {
		err = fmt.Errorf("it says %q", a.Choices[0].Message.Content)
	}
	return err
}

func (g *goClient) holdBusy(ctx context.Context) *ssestream.Stream[openai.ChatCompletionChunk] {
	api := g.client(g.keyBusy, 0)
	return api.Chat.Completions.NewStreaming(ctx, hello("busy"), behave(stub.Behaviour{Endless: true, Gap: stub.Duration(10 * time.Millisecond)}))
}

// untilFree asks the model with one slot until it answers, which it has to within two seconds of a client's departure.
func (g *goClient) untilFree(t *testing.T) {
	t.Helper()
	eventually(t, 2*time.Second, "the slot is given back", func() bool {
		err := g.askBusy(t.Context(), 0)
		if e := new(openai.Error); err != nil && (!errors.As(err, &e) || e.StatusCode != 429) {
			t.Fatal(err)
		}
		return err == nil
	})
}

func (g *goClient) retry(t *testing.T) {
	g.untilFree(t)
	s := g.holdBusy(t.Context())
	if !s.Next() {
		t.Fatal(s.Err())
	}
	same(t, "Retry-After", refused(t, g.askBusy(t.Context(), 0), 429, "rate_limit_exceeded").Response.Header.Get("Retry-After"), "1")
	timer := time.AfterFunc(300*time.Millisecond, func() { s.Close() })
	defer timer.Stop()
	began := time.Now()
	if err := g.askBusy(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 900*time.Millisecond || took > 5*time.Second {
		t.Errorf("retried after %s", took)
	}
}

// spent: a key that has used up a limit gets the error that libraries retry, and they do, after Retry-After.
func (g *goClient) spent(t *testing.T) {
	api := g.client(g.keySpent, 1)
	began := time.Now()
	_, err := api.Chat.Completions.New(t.Context(), hello("chat"))
	same(t, "Retry-After", refused(t, err, 429, "rate_limit_exceeded").Response.Header.Get("Retry-After"), "1")
	if took := time.Since(began); took < 900*time.Millisecond || took > 5*time.Second {
		t.Errorf("retried after %s", took)
	}
}

// chunks are the events of a stream, without what differs from one answer to the next.
func chunks[T interface{ RawJSON() string }](t *testing.T, s *ssestream.Stream[T]) (all []string) {
	t.Helper()
	defer s.Close()
	for s.Next() {
		var m map[string]any
		if err := json.Unmarshal([]byte(s.Current().RawJSON()), &m); err != nil {
			t.Fatal(err)
		}
		delete(m, "id")
		delete(m, "created")
		b, _ := json.Marshal(m)
		all = append(all, string(b))
	}
	if s.Err() != nil || len(all) < 3 {
		t.Fatal(s.Err(), all)
	}
	return all
}

// usageNotAsked: where the gateway asks for a stream's usage by itself, the client gets the events that it gets elsewhere.
func (g *goClient) usageNotAsked(t *testing.T) {
	metered := g.client(g.keyMetered, 0)
	for _, options := range []openai.ChatCompletionStreamOptionsParam{{}, {IncludeUsage: openai.Bool(false)}, {IncludeUsage: openai.Bool(true)}} {
		p := hello("chat")
		p.StreamOptions = options
		same(t, "chat", chunks(t, metered.Chat.Completions.NewStreaming(t.Context(), p)), chunks(t, g.api.Chat.Completions.NewStreaming(t.Context(), p)))
		q := openai.CompletionNewParams{Model: "chat", Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("one two three")}, StreamOptions: options}
		same(t, "completions", chunks(t, metered.Completions.NewStreaming(t.Context(), q)), chunks(t, g.api.Completions.NewStreaming(t.Context(), q)))
	}
}

func (g *goClient) cancel(t *testing.T) {
	g.untilFree(t)
	for range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		s := g.holdBusy(ctx)
		for range 4 {
			if !s.Next() {
				t.Fatal(s.Err())
			}
		}
		cancel()
		g.untilFree(t)
		s.Close()
	}
}

// broken reads a stream that the engine does not end well, and returns the error that the library has to give.
func (g *goClient) broken(t *testing.T, b stub.Behaviour) error {
	t.Helper()
	b.Events, b.Gap = 5, stub.Duration(time.Millisecond)
	_, _, chunks, err := read(g.api.Chat.Completions.NewStreaming(t.Context(), hello("chat"), behave(b)))
	if err == nil || chunks < 2 {
		t.Fatalf("half an answer looks whole, or has no beginning: %d chunks, %v", chunks, err)
	}
	return err
}

func (g *goClient) engineCut(t *testing.T) { g.broken(t, stub.Behaviour{End: stub.Cut, At: 2}) }

func (g *goClient) dyingWords(t *testing.T) {
	if g.engine != stub.Ollama { // which says nothing when it dies
		g.broken(t, stub.Behaviour{End: stub.ErrorEvent, At: 2})
	}
}
