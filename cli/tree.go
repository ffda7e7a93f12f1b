package cli

import (
	"slices"
	"strings"

	ucli "github.com/urfave/cli/v2"
)

// noun groups verbs: `levelrail models …`. The root of the tree is a noun without a name.
type noun struct {
	name  string
	usage string // one line, lower case, no full stop
	long  string // paragraphs for the help text and the manual
	verbs []verb
	nouns []noun
	bare  string // the verb that a word which is none belongs to: `models requests chat`
}

// verb is one command. Its texts feed the help, the reference, the manual and completion.
type verb struct {
	name     string
	args     string // as in the usage line: "NAME", "NAME KEY", "[NAME]"
	usage    string // one line, lower case, no full stop
	long     string // paragraphs
	examples []example
	flags    []ucli.Flag
	noJSON   bool     // the command has no --json
	complete []string // what completes each argument: @model, @node, @key, @token, @request, or the words of a|b|c
	run      func(s *session, c *ucli.Context) error
}

// example is a command line that works as written, and what it is good for.
type example struct{ what, line string }

// tree is every command there is.
func tree() noun {
	return noun{
		usage: "run large language models on your own machines",
		verbs: []verb{statusVerb(), versionVerb(), completionVerb()},
		nouns: []noun{
			{
				name: "models", usage: "deploy models and look after them",
				long: "A model is an inference engine with its weights on a node, served to OpenAI clients by the gateway under the model's name.",
				verbs: []verb{
					modelsDeploy(), modelsList(), modelsGet(), modelsWait(), modelsUpdate(), modelsRestart(), modelsLogs(),
					modelsUsage(), modelsExplain(), modelsRotateKey(), modelsRotateEngineKey(), modelsSetHubToken(), modelsDelete(),
				},
				nouns: []noun{{
					name: "keys", usage: "the API keys that open a model",
					long:  "Clients show a key as `Authorization: Bearer lr-…`. A key opens one model, within its limits; its text is shown once, when it is made, and only its hash is kept.",
					verbs: []verb{keysCreate(), keysList(), keysRotate(), keysRevoke()},
				}, {
					name: "requests", usage: "what gateways are doing for a model now", bare: "list",
					long:  "Without a verb it lists: `levelrail models requests NAME`.",
					verbs: []verb{requestsList(), requestsCancel()},
				}},
			},
			{
				name: "nodes", usage: "the machines with GPUs and engines",
				verbs: []verb{nodesList(), nodesGet()},
			},
			{
				name: "weights", usage: "the weights of models on the nodes' disks",
				long:  "Weights stay on a node when their model is deleted, so that deploying it again fetches nothing.",
				verbs: []verb{weightsList(), weightsDelete()},
			},
			{
				name: "engines", usage: "the inference engines that nodes have",
				verbs: []verb{enginesList()},
			},
			{
				name: "tokens", usage: "API tokens for using the server from elsewhere",
				long: "The socket of the server's own machine needs no token. From elsewhere, set LEVELRAIL_URL, LEVELRAIL_TOKEN and, unless the server's certificate is " +
					"known to your system, LEVELRAIL_CA_FILE.",
				verbs: []verb{tokensCreate(), tokensList(), tokensRevoke()},
			},
			{
				name: "backups", usage: "copies of all that the cluster must not forget",
				verbs: []verb{backupsCreate()},
			},
		},
	}
}

// engineNames are the engines that --engine completes; the server knows which there are.
var engineNames = []string{"llamacpp", "ollama", "vllm"}

// allFlags are the verb's own flags and those that every verb has.
func (v verb) allFlags() []ucli.Flag {
	flags := slices.Clone(v.flags)
	if !v.noJSON {
		flags = append(flags, &ucli.BoolFlag{Name: "json", Usage: "print what the API sent, as one JSON document"})
	}
	return flags
}

// flag finds a flag by one of its names.
func (v verb) flag(name string) ucli.Flag {
	for _, f := range v.allFlags() {
		if slices.Contains(f.Names(), name) {
			return f
		}
	}
	return nil
}

// takesValue tells whether a flag is followed by a value.
func takesValue(f ucli.Flag) bool {
	d, ok := f.(ucli.DocGenerationFlag)
	return ok && d.TakesValue()
}

// argCount is how few and how many arguments the usage line allows.
func (v verb) argCount() (least, most int) {
	for _, w := range strings.Fields(v.args) {
		most++
		if !strings.HasPrefix(w, "[") {
			least++
		}
	}
	return least, most
}

// child finds a verb or noun by name.
func (n noun) child(name string) (*verb, *noun) {
	for i := range n.verbs {
		if n.verbs[i].name == name {
			return &n.verbs[i], nil
		}
	}
	for i := range n.nouns {
		if n.nouns[i].name == name {
			return nil, &n.nouns[i]
		}
	}
	return nil, nil
}

// children lists the names of the verbs and nouns below, verbs first.
func (n noun) children() []string {
	var names []string
	for _, v := range n.verbs {
		names = append(names, v.name)
	}
	for _, s := range n.nouns {
		names = append(names, s.name)
	}
	return names
}
