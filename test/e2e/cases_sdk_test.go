package e2e

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"

	hosttest "github.com/levelrail/levelrail/test/host"
	"github.com/levelrail/levelrail/test/rig"
	"github.com/levelrail/levelrail/test/sdk"
)

// TestRealEnginesThroughSDKs: OpenAI's libraries for Python, Node and Go work with engines that have real weights, through an installed gateway:
// models (ids with a slash included), chat, streams, tools, JSON by a schema, completions, embeddings, responses, errors, retries after
// Retry-After and leaving in mid-stream. What an engine does not do is refused in its own words, or by the gateway where no engine would serve it.
func TestRealEnginesThroughSDKs(t *testing.T) {
	root, err := rig.Root()
	if err != nil {
		t.Fatal(err)
	}
	nodeDir, err := sdk.Node(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	python, err := sdk.Python(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	h := Install(t, hosttest.Trixie, hosttest.WithEngine(hosttest.LlamaCpp), hosttest.WithEngine(hosttest.Ollama), hosttest.WithWeights())
	h.Run("echo APP_MODEL_GATEWAY_RETRY_AFTER=1s >>/etc/default/levelrail-server && systemctl restart levelrail-server")
	url := outside(t, h)
	keys := map[string]string{
		"chat": h.Deploy(deployChat + " --served-name org/Smol-GGUF:Q4_1"),
		"smol": h.Deploy("--name smol --engine ollama --gpus none --context 2048 --model " + hosttest.WeightsPath),
	}
	one := map[string]string{}
	for model := range keys {
		var k struct{ Secret string }
		h.JSON(&k, "models keys create "+model+" --name one --max-parallel 1")
		one[model] = k.Secret
	}
	for _, c := range []struct{ engine, model, name string }{{"llamacpp", "chat", "org/Smol-GGUF:Q4_1"}, {"ollama", "smol", "smol"}} {
		env := []string{"LEVELRAIL_URL=" + url, "LEVELRAIL_ENGINE=" + c.engine, "LEVELRAIL_MODEL=" + c.name, "LEVELRAIL_KEY=" + keys[c.model], "LEVELRAIL_KEY_ONE=" + one[c.model], "SDK_DIR=" + nodeDir}
		for language, suite := range map[string][]string{"python": {python, "real.py"}, "node": {"node", "real.mjs"}} {
			if c.engine == "ollama" && language == "node" {
				continue // what Ollama says is the same in each language, and it is slow on a busy machine
			}
			t.Run(c.engine+" "+language, func(t *testing.T) {
				checks, err := sdk.Suite(t.Context(), suite[0], filepath.Join(root, "test", "sdk", suite[1]), env...)
				if err != nil {
					t.Error(err)
				}
				for _, k := range checks {
					t.Run(k.Name, func(t *testing.T) {
						if k.Error != "" {
							t.Error(k.Error)
						}
					})
				}
				if len(checks) != 12 {
					t.Errorf("it made %d checks", len(checks))
				}
			})
		}
		t.Run(c.engine+" go", func(t *testing.T) { goAgainstReal(t, url, c.engine, c.name, keys[c.model], one[c.model]) })
	}
}

// outside gives the gateway of a host an address on this machine, for clients that cannot enter the host's network.
func outside(t *testing.T, h *Host) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer client.Close()
				gateway, err := h.Dial("tcp", strings.TrimPrefix(Gateway, "http://"))
				if err != nil {
					return
				}
				go func() {
					io.Copy(gateway, client)
					gateway.Close()
				}()
				io.Copy(client, gateway)
			}()
		}
	}()
	return "http://" + l.Addr().String()
}

// goAgainstReal is what TestOpenAIGo leaves out, in Go.
func goAgainstReal(t *testing.T, url, engine, model, key, one string) {
	client := func(key string, retries int) *openai.Client {
		c := openai.NewClient(option.WithBaseURL(url+"/v1"), option.WithAPIKey(key), option.WithMaxRetries(retries), option.WithRequestTimeout(5*time.Minute))
		return &c
	}
	api := client(key, 0)
	say := func(text string) openai.ChatCompletionNewParams {
		return openai.ChatCompletionNewParams{Model: model, Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(text)}, MaxTokens: openai.Int(60), Temperature: openai.Float(0), Seed: openai.Int(1)}
	}
	refused := func(err error, status int, code string) *openai.Error {
		t.Helper()
		var e *openai.Error
		if !errors.As(err, &e) || e.StatusCode != status || code != "" && e.Code != code {
			t.Fatalf("%v, want %d %s", err, status, code)
		}
		return e
	}

	p := say("How is the weather in Paris?")
	p.Tools = []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{Name: "weather", Parameters: shared.FunctionParameters{"type": "object",
		"properties": map[string]any{"city": map[string]any{"type": "string"}}, "required": []string{"city"}}})}
	answer, err := api.Chat.Completions.New(t.Context(), p)
	if engine == "ollama" { // of a model whose template has no tools
		refused(err, 400, "")
	} else if err != nil || len(answer.Choices[0].Message.ToolCalls) == 0 && answer.Choices[0].Message.Content == "" { // the model is too small to rely on a call
		t.Errorf("tools: %v %+v", err, answer)
	} else {
		for _, call := range answer.Choices[0].Message.ToolCalls {
			if call.Function.Name != "weather" || !json.Valid([]byte(call.Function.Arguments)) {
				t.Errorf("tools: %+v", call)
			}
		}
	}

	p = say("Say hello.")
	p.ResponseFormat.OfJSONSchema = &shared.ResponseFormatJSONSchemaParam{JSONSchema: shared.ResponseFormatJSONSchemaJSONSchemaParam{Name: "s",
		Schema: map[string]any{"type": "object", "properties": map[string]any{"ok": map[string]any{"type": "boolean"}}, "required": []string{"ok"}, "additionalProperties": false}}}
	var said struct{ OK *bool }
	if answer, err = api.Chat.Completions.New(t.Context(), p); err != nil || json.Unmarshal([]byte(answer.Choices[0].Message.Content), &said) != nil || said.OK == nil {
		t.Errorf("JSON by a schema: %v %+v", err, answer)
	}

	r, err := api.Responses.New(t.Context(), responses.ResponseNewParams{Model: model, Input: responses.ResponseNewParamsInputUnion{OfString: openai.String("Say hello.")}, MaxOutputTokens: openai.Int(16)})
	if err != nil || r.OutputText() == "" || r.Usage.OutputTokens == 0 {
		t.Errorf("responses: %v %+v", err, r)
	}

	for range 20 { // llama.cpp closes the connection of a stream that has ended
		short := say("Say hello.")
		short.MaxTokens = openai.Int(2)
		s := api.Chat.Completions.NewStreaming(t.Context(), short)
		for s.Next() {
		}
		if err := s.Err(); err != nil {
			t.Fatalf("a stream: %v", err)
		}
		if _, err := api.Chat.Completions.New(t.Context(), short); err != nil {
			t.Fatalf("on the heels of a stream: %v", err)
		}
	}

	_, err = api.Audio.Transcriptions.New(t.Context(), openai.AudioTranscriptionNewParams{Model: model, File: openai.File(strings.NewReader("RIFF"), "a.wav", "audio/wav")})
	refused(err, 404, "unknown_url")

	long := say("Count from one to a thousand, in words.")
	long.MaxTokens = openai.Int(4000)
	s := client(one, 0).Chat.Completions.NewStreaming(t.Context(), long)
	if !s.Next() {
		t.Fatal(s.Err())
	}
	short := say("Say hello.")
	short.MaxTokens = openai.Int(2) // the wait is what counts, and an engine on a busy machine may take seconds for a token
	_, err = client(one, 0).Chat.Completions.New(t.Context(), short)
	wait, _ := strconv.Atoi(refused(err, 429, "rate_limit_exceeded").Response.Header.Get("Retry-After"))
	leave := time.AfterFunc(200*time.Millisecond, func() { s.Close() }) // leaving ends the engine's work and frees the slot, or the retry below would never pass
	defer leave.Stop()
	began := time.Now()
	if _, err := client(one, 4).Chat.Completions.New(t.Context(), short); err != nil || wait < 1 || time.Since(began) < time.Duration(wait)*900*time.Millisecond {
		t.Errorf("retried after %s, Retry-After %d: %v", time.Since(began), wait, err)
	}
}
