package e2e

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	hosttest "github.com/levelrail/levelrail/test/host"
)

// TestOpenAIGo: OpenAI's own Go client talks to both engines through the gateway: chat, streaming chat, completions,
// embeddings, listing and fetching models (ids with a slash included, C006), and gets errors it can act on.
func TestOpenAIGo(t *testing.T) {
	h := Install(t, hosttest.Bookworm, hosttest.WithEngine(hosttest.LlamaCpp), hosttest.WithEngine(hosttest.Ollama), hosttest.WithWeights())
	llama := h.Deploy(deployChat + " --served-name org/Smol-GGUF:Q4_1 --served-name hf.co/org/Smol-GGUF:Q4_1")
	ollama := h.Deploy("--name smol --engine ollama --gpus none --context 2048 --model " + hosttest.WeightsPath)

	client := func(key string) openai.Client {
		return openai.NewClient(option.WithBaseURL(Gateway+"/v1"), option.WithAPIKey(key), option.WithHTTPClient(h.HTTPClient()), option.WithMaxRetries(0))
	}
	say := []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Say hello.")}
	for _, c := range []struct{ engine, model, key string }{
		{"llamacpp", "chat", llama}, {"llamacpp", "org/Smol-GGUF:Q4_1", llama}, {"ollama", "smol", ollama},
	} {
		t.Run(c.engine+" "+strings.ReplaceAll(c.model, "/", "_"), func(t *testing.T) {
			ctx, api := t.Context(), client(c.key)
			answer, err := api.Chat.Completions.New(ctx, openai.ChatCompletionNewParams{Model: c.model, Messages: say, MaxTokens: openai.Int(8), Temperature: openai.Float(0), Seed: openai.Int(1)})
			if err != nil {
				t.Fatal(err)
			}
			if len(answer.Choices) != 1 || answer.Choices[0].Message.Content == "" || answer.Usage.CompletionTokens < 1 || answer.Usage.CompletionTokens > 8 || answer.Usage.PromptTokens < 1 {
				t.Errorf("chat: %s", answer.RawJSON())
			}

			stream := api.Chat.Completions.NewStreaming(ctx, openai.ChatCompletionNewParams{Model: c.model, Messages: say, MaxTokens: openai.Int(8), Temperature: openai.Float(0), Seed: openai.Int(1),
				StreamOptions: openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)}})
			var all openai.ChatCompletionAccumulator
			chunks := 0
			for stream.Next() {
				all.AddChunk(stream.Current())
				chunks++
			}
			if err := stream.Err(); err != nil || chunks < 3 || len(all.Choices) != 1 || all.Usage.CompletionTokens < 1 {
				t.Fatalf("stream: %v, %d chunks, %+v", err, chunks, all.Usage)
			}
			if got := all.Choices[0].Message.Content; got != answer.Choices[0].Message.Content {
				t.Errorf("with one seed the stream says %q and the whole answer %q", got, answer.Choices[0].Message.Content)
			}

			text, err := api.Completions.New(ctx, openai.CompletionNewParams{Model: openai.CompletionNewParamsModel(c.model), Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("One, two,")}, MaxTokens: openai.Int(4)})
			if err != nil || len(text.Choices) != 1 || text.Choices[0].Text == "" {
				t.Errorf("completions: %v %+v", err, text)
			}

			models, err := api.Models.List(ctx)
			if err != nil {
				t.Fatal(err)
			}
			var ids []string
			for _, m := range models.Data {
				ids = append(ids, m.ID)
				one, err := api.Models.Get(ctx, m.ID)
				if err != nil || one.ID != m.ID || one.RawJSON() != m.RawJSON() {
					t.Errorf("models.retrieve(%q): %v", m.ID, err)
				}
			}
			if !slices.Contains(ids, c.model) || slices.Contains(ids, map[string]string{"chat": "smol"}[c.model]) {
				t.Errorf("the key lists %q", ids)
			}
		})
	}

	t.Run("embeddings", func(t *testing.T) {
		api := client(ollama)
		got, err := api.Embeddings.New(t.Context(), openai.EmbeddingNewParams{Model: "smol", Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{"one", "two"}}})
		if err != nil || len(got.Data) != 2 || len(got.Data[0].Embedding) != 576 || got.Usage.PromptTokens < 2 {
			t.Errorf("%v %+v", err, got)
		}
	})

	t.Run("errors", func(t *testing.T) {
		for _, c := range []struct {
			what, key, model string
			status           int
			code             string
		}{
			{"a wrong key", "lr-wrong", "chat", 401, "invalid_api_key"},
			{"another key's model", llama, "smol", 404, "model_not_found"},
			{"no such model", llama, "gpt-4o", 404, "model_not_found"},
		} {
			api := client(c.key)
			_, err := api.Chat.Completions.New(context.Background(), openai.ChatCompletionNewParams{Model: c.model, Messages: say})
			var e *openai.Error
			if !errors.As(err, &e) || e.StatusCode != c.status || e.Code != c.code || e.Message == "" {
				t.Errorf("%s: %v", c.what, err)
			}
		}
	})
}
