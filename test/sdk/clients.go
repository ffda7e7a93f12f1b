package sdk

import (
	"context"
	"os"
	"path/filepath"
)

// Client is a library or program of others that people use with an OpenAI-compatible service, as docs/clients.md has it.
// Its suite, in clients/, runs over engine stubs; with LEVELRAIL_MODEL in its environment, over a real engine.
type Client struct {
	Name   string
	Node   []string // packages of npm, pinned; or
	Python []string // packages of PyPI, pinned
	Suite  string   // file in clients/
	// Heavy ones take minutes to install and seconds to load: they run where AllClients says so.
	Heavy bool
	// StubOnly ones ask for more than a small model on one processor gives in minutes: nothing bounds the length of an answer.
	StubOnly bool
}

// Clients are the clients that are tested.
var Clients = []Client{
	{Name: "aisdk", Node: []string{"ai@6.0.325", "@ai-sdk/openai-compatible@2.0.92", "zod@4.6.7"}, Suite: "aisdk.mjs"}, // 7 wants Node 22
	{Name: "langchain", Python: []string{"langchain-openai==1.7.4"}, Suite: "langchain.py"},
	{Name: "instructor", Python: []string{"instructor==1.17.0"}, Suite: "instructor_.py", Heavy: true},
	{Name: "llamaindex", Python: []string{"llama-index-llms-openai-like==0.8.1", "llama-index-embeddings-openai-like==0.4.0"}, Suite: "llamaindex.py", Heavy: true},
	{Name: "aider", Python: []string{"aider-chat==0.86.2"}, Suite: "aider_.py", Heavy: true, StubOnly: true},
	{Name: "lm-eval", Python: []string{"lm-eval[api]==0.4.13"}, Suite: "lmeval.py", Heavy: true},
	{Name: "litellm", Python: []string{"litellm==1.110.2"}, Suite: "litellm_.py", Heavy: true},
}

// AllClients tells that heavy clients are to be tested as well: LEVELRAIL_TEST_CLIENTS=all, as "make test-long
// SUITE=clients" sets it.
func AllClients() bool { return os.Getenv("LEVELRAIL_TEST_CLIENTS") == "all" }

// Install installs a client, once a machine, and returns how to run its suite: the program, the script, and what is to be
// added to the environment.
func (c Client) Install(ctx context.Context, root string) (program, script string, env []string, err error) {
	script = filepath.Join(root, "test", "sdk", "clients", c.Suite)
	if c.Node != nil {
		dir, err := Node(ctx, root, c.Node...)
		return "node", script, []string{"SDK_DIR=" + dir}, err
	}
	program, err = Python(ctx, root, c.Python...)
	return program, script, nil, err
}
