package cli

import (
	"errors"
	"strings"

	ucli "github.com/urfave/cli/v2"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/client/wire"
)

func modelsDeploy() verb {
	flags := append([]ucli.Flag{&ucli.StringFlag{Name: "name", Usage: "the model's name: a-z, 0-9 and -, at most 40 characters"}}, specFlags()...)
	flags = append(flags,
		&ucli.StringFlag{Name: "node", Usage: "the node to run on, by name or id (default: the server's own machine)"},
		&ucli.BoolFlag{Name: "hf-token-from-env", Usage: "send the Hugging Face token in HF_TOKEN along, for repositories that ask for one"},
	)
	return verb{
		name: "deploy", args: "[NAME]", usage: "run a model",
		long: "The server takes the wish, the node gets the weights and starts the engine, and the gateway serves it as soon as it is loaded. The answer has the model's " +
			"address, a curl line that works as pasted, and an API key. The key is shown this once: keep it.\n\n" +
			"Deploying the same again changes nothing; deploying something else under a name that is taken is refused with the difference and the command for it, " +
			"`levelrail models update`.\n\n" +
			"On a terminal the command follows the download and the start until the model is ready. Ctrl-C ends the following only; `levelrail models wait NAME` takes it up " +
			"again. With --json, and where no terminal is attached, it follows when asked with --wait. The exit code is 4 when the model waits for somebody to mend " +
			"something, and 6 when --timeout passed.",
		examples: []example{
			{"A small model on the CPU", "levelrail models deploy --name chat --engine llamacpp --model bartowski/SmolLM2-135M-Instruct-GGUF:Q4_K_M --gpus none"},
			{"An Ollama model on all GPUs of this machine", "levelrail models deploy --name chat --engine ollama --model llama3.1:8b"},
			{"A gated model on two GPUs of another node", "HF_TOKEN=hf_… levelrail models deploy --name llama --engine vllm --model meta-llama/Llama-3.1-8B-Instruct --gpus 2 " +
				"--context 8192 --hf-token-from-env --node gpu-01"},
			{"A file that lies on the node", "levelrail models deploy --name own --engine llamacpp --model /srv/models/own.gguf --option parallel=4"},
			{"In a script: the key, once the model serves", "levelrail models deploy --name chat --engine ollama --model llama3.1:8b --wait --json | jq -r .key.secret"},
		},
		flags: append(flags, waitFlags()...),
		run:   runDeploy,
	}
}

func runDeploy(s *session, c *ucli.Context) error {
	d, err := s.deployWish(c)
	if err != nil {
		return err
	}
	follow, limit, err := s.waiting(c)
	if err != nil {
		return err
	}
	api, err := s.api()
	if err != nil {
		return err
	}
	answer, err := api.Deploy(s.ctx, d)
	if err != nil {
		return suggestUpdate(c, d.Name, err)
	}
	s.notes(answer.Notes)
	if !s.json {
		s.showDeployed(answer)
	}
	g := goal{model: answer.Model.Name, doing: "the deployment of " + answer.Model.Name, revision: answer.Model.Revision, settled: answer.Unchanged}
	return s.finish(api, g, follow, limit, &answer.Model, func() any { return answer })
}

// deployWish reads the flags.
func (s *session) deployWish(c *ucli.Context) (d wire.Deploy, err error) {
	d = wire.Deploy{
		Name: c.String("name"), Engine: c.String("engine"), Node: c.String("node"), Context: c.Int("context"), Quantization: c.String("quantization"),
		Domain: c.String("domain"), ServedNames: c.StringSlice("served-name"), SourceCommit: c.String("commit"), SHA256: c.String("sha256"),
	}
	if name := arg(c, 0); name != "" {
		if d.Name != "" && d.Name != name {
			return d, usagef(helpOf(c), "two names are given: %s and --name %s", name, d.Name)
		}
		d.Name = name
	}
	var missing []string
	for _, f := range []struct{ flag, value string }{{"--name", d.Name}, {"--engine", d.Engine}, {"--model", c.String("model")}} {
		if f.value == "" {
			missing = append(missing, f.flag)
		}
	}
	if len(missing) > 0 {
		return d, usagef(helpOf(c), "models deploy needs %s, as in: %s", strings.Join(missing, " and "),
			"levelrail models deploy --name chat --engine ollama --model llama3.1:8b")
	}
	if d.Model, err = s.source(c); err != nil {
		return d, err
	}
	if d.GPUs, err = gpuRequest(c); err != nil {
		return d, err
	}
	if d.Options, err = options(c); err != nil {
		return d, err
	}
	if c.Bool("hf-token-from-env") {
		d.HubToken, err = s.hubToken(c)
	}
	return d, err
}

// hubToken is the Hugging Face token of the environment.
func (s *session) hubToken(c *ucli.Context) (string, error) {
	token := strings.TrimSpace(s.getenv("HF_TOKEN"))
	if token == "" {
		return "", usagef(helpOf(c), "HF_TOKEN is not set; write: export HF_TOKEN=hf_… (a token of https://huggingface.co/settings/tokens)")
	}
	return token, nil
}

// suggestUpdate completes the next step of a name that is taken: the update with the flags that were given.
func suggestUpdate(c *ucli.Context, name string, err error) error {
	var e *levelrail.Error
	if errors.As(err, &e) && (e.Kind == levelrail.ErrConflict || e.Kind == levelrail.ErrRefused) && strings.HasPrefix(e.Next, "levelrail models update") {
		return e.WithNext("levelrail models update %s%s", name, specWords(c))
	}
	return err
}

// notes shows what the server says once beside an answer.
func (s *session) notes(notes []string) {
	for _, n := range notes {
		s.note("note: %s", plain(n))
	}
}

// showDeployed is the answer for people.
func (s *session) showDeployed(a wire.Deployed) {
	m := a.Model
	where := ""
	if m.NodeName != "" {
		where = " on " + m.NodeName
	}
	if a.Unchanged {
		s.say("%s runs this already%s (revision %d); nothing was changed.", m.Name, where, m.Revision)
		return
	}
	s.say("%s is being deployed%s (revision %d).\n", m.Name, where, m.Revision)
	key := "$LEVELRAIL_API_KEY"
	if a.Key != nil {
		key = a.Key.Secret
		s.say("API key  %s", key)
		s.say("         shown this once: keep it; `levelrail models rotate-key %s` replaces it", m.Name)
	}
	s.say("URL      %s", plain(m.URL))
	s.say("\nTry it when it is ready:\n\n%s\n", curlLine(m, key))
}

// curlLine is a request to a model that works as pasted. Names are a-z, 0-9 and -, so the body needs no escapes.
func curlLine(m wire.Model, key string) string {
	auth := `'Authorization: Bearer ` + key + `'`
	if strings.HasPrefix(key, "$") {
		auth = `"Authorization: Bearer ` + key + `"`
	}
	return "curl " + shellQuote(plain(m.URL)+"/chat/completions") + " -H " + auth + " -H 'Content-Type: application/json'" +
		` -d '{"model": "` + m.Name + `", "messages": [{"role": "user", "content": "Say hello."}]}'`
}
