package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	ucli "github.com/urfave/cli/v2"
)

// completeWord is the hidden command that the completion scripts ask: `levelrail __complete plain|described WORDS…`, the
// last word being the one under the cursor. It prints candidates, one a line, described ones with a tab and a text.
const completeWord = "__complete"

// completeWithin is how long a server may take to list names; nobody waits longer for a key press.
const completeWithin = time.Second

// candidate is one way to go on, and what it is.
type candidate struct{ word, text string }

// complete prints the candidates. It fails never: where nothing is known, nothing is said.
func (s *session) complete(args []string) error {
	if len(args) == 0 {
		return nil
	}
	described, words := args[0] == "described", args[1:]
	if len(words) == 0 {
		words = []string{""}
	}
	cur := words[len(words)-1]
	for _, c := range s.candidates(words[:len(words)-1], cur) {
		switch {
		case !strings.HasPrefix(c.word, cur):
		case described && c.text != "":
			s.say("%s\t%s", c.word, c.text)
		default:
			s.say("%s", c.word)
		}
	}
	return nil
}

// candidates lists what may stand after the words; complete keeps those that begin with the current one.
func (s *session) candidates(before []string, cur string) []candidate {
	n := tree()
	for i, w := range before {
		if strings.HasPrefix(w, "-") || w == "help" && i == 0 {
			continue
		}
		v, sub := n.child(w)
		switch {
		case v != nil:
			return s.verbCandidates(*v, before[i+1:], cur)
		case sub == nil && n.bare != "":
			v, _ := n.child(n.bare)
			return s.verbCandidates(*v, before[i:], cur)
		case sub == nil:
			return nil
		}
		n = *sub
	}
	if strings.HasPrefix(cur, "-") {
		return []candidate{{"--help", "show how to use it"}}
	}
	var out []candidate
	for _, v := range n.verbs {
		out = append(out, candidate{v.name, v.usage})
	}
	for _, sub := range n.nouns {
		out = append(out, candidate{sub.name, sub.usage})
	}
	if v, _ := n.child(n.bare); v != nil {
		out = append(out, s.verbCandidates(*v, nil, cur)...)
	}
	return out
}

func (s *session) verbCandidates(v verb, before []string, cur string) []candidate {
	var args []string
	var open ucli.Flag // the flag whose value comes next
	for _, w := range before {
		switch {
		case open != nil:
			open = nil
		case strings.HasPrefix(w, "-"):
			name, _, hasValue := strings.Cut(strings.TrimLeft(w, "-"), "=")
			if f := v.flag(name); f != nil && takesValue(f) && !hasValue {
				open = f
			}
		default:
			args = append(args, w)
		}
	}
	switch {
	case open != nil:
		return s.values(open.Names()[0], args)
	case strings.HasPrefix(cur, "--") && strings.Contains(cur, "="):
		name, _, _ := strings.Cut(cur, "=")
		values := s.values(strings.TrimLeft(name, "-"), args)
		for i := range values {
			values[i].word = name + "=" + values[i].word
		}
		return values
	case strings.HasPrefix(cur, "-"):
		var out []candidate
		for _, f := range v.allFlags() {
			out = append(out, candidate{"--" + f.Names()[0], flagUsage(f)})
		}
		return append(out, candidate{"--help", "show how to use it"})
	case len(args) < len(v.complete):
		return s.values(v.complete[len(args)], args)
	}
	return nil
}

// values lists what a flag or an argument may be.
func (s *session) values(of string, args []string) []candidate {
	switch of {
	case "engine":
		return plainCandidates(engineNames)
	case "ability":
		return plainCandidates([]string{"read", "write", "write:sensitive", "root"})
	case "gpus":
		return []candidate{{"all", "every GPU of the node"}, {"none", "run on the CPU"}, {"1", ""}, {"2", ""}}
	case "node", "@node":
		return s.names("@node", args)
	case "@model", "@key", "@token", "@request":
		return s.names(of, args)
	case "key":
		return s.names("@key", args)
	case "by":
		return plainCandidates([]string{"hour", "key"})
	}
	if strings.Contains(of, "|") {
		return plainCandidates(strings.Split(of, "|"))
	}
	return nil
}

func plainCandidates(words []string) []candidate {
	var out []candidate
	for _, w := range words {
		out = append(out, candidate{w, ""})
	}
	return out
}

// names asks the server, for a second at most; whatever fails, there are no names.
func (s *session) names(of string, args []string) []candidate {
	api, err := s.api()
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(s.ctx, completeWithin)
	defer cancel()
	var out []candidate
	switch of {
	case "@model":
		models, _ := api.Models(ctx)
		for _, m := range models {
			out = append(out, candidate{m.Name, fmt.Sprintf("%s, %s", m.Engine, standing(m.Condition).text)})
		}
	case "@node":
		nodes, _ := api.Nodes(ctx)
		for _, n := range nodes {
			out = append(out, candidate{n.Name, s.online(n).text})
		}
	case "@key":
		if len(args) == 0 {
			return nil
		}
		keys, _ := api.Keys(ctx, args[0])
		for _, k := range keys {
			if k.RevokedAt == nil {
				out = append(out, candidate{k.ID, k.Name})
			}
		}
	case "@request":
		if len(args) == 0 {
			return nil
		}
		requests, _ := api.Requests(ctx, args[0])
		for _, r := range requests.Items {
			out = append(out, candidate{r.ID, r.KeyPrefix + "…, " + span(time.Duration(r.AgeSeconds)*time.Second)})
		}
	case "@token":
		tokens, _ := api.Tokens(ctx)
		for _, t := range tokens {
			if t.RevokedAt == nil {
				out = append(out, candidate{t.ID, t.Name})
			}
		}
	}
	slices.SortFunc(out, func(a, b candidate) int { return strings.Compare(a.word, b.word) })
	return out
}
