package cli

import (
	"fmt"
	"slices"
	"strings"
	"time"

	ucli "github.com/urfave/cli/v2"

	"github.com/levelrail/levelrail/client/wire"
)

func modelsGet() verb {
	return verb{
		name: "get", args: "NAME", usage: "show one model: how it stands, where it runs, how to call it", complete: []string{"@model"},
		examples: []example{
			{"Everything about one model", "levelrail models get chat"},
			{"Why it is not ready", "levelrail models get chat --json | jq .condition"},
		},
		run: func(s *session, c *ucli.Context) error {
			api, err := s.api()
			if err != nil {
				return err
			}
			m, err := api.Model(s.ctx, arg(c, 0))
			if err != nil {
				return err
			}
			if s.json {
				return s.document(m)
			}
			s.showModel(m)
			return nil
		},
	}
}

func (s *session) showModel(m wire.Model) {
	var f facts
	f.add("Name", m.Name)
	f.add("Status", standing(m.Condition))
	if m.Condition.Ready {
		f.add("Ready since", s.ago(m.Condition.Since))
	} else {
		f.add("  for", s.age(m.Condition.Since))
		if hasBytes(m.Condition.Progress) {
			f.add("  progress", figures(m.Condition.Progress, &pace{}))
		}
		f.add("  because", m.Condition.Message)
		f.add("  try", m.Condition.Next)
	}
	f.add("Engine", m.Engine)
	f.add("Model", m.Model)
	f.add("Revision", itoa(m.Revision))
	f.add("Node", m.NodeName)
	gpus := m.Spec.GPUs.String()
	if len(m.Devices) > 0 {
		gpus += ": " + strings.Join(m.Devices, ", ")
	}
	f.add("GPUs", gpus)
	f.add("Computes on", m.Compute)
	if m.Spec.Context > 0 {
		f.add("Context", itoa(m.Spec.Context)+" tokens")
	}
	f.add("Quantization", m.Spec.Quantization)
	f.add("Commit", m.Spec.SourceCommit)
	f.add("SHA-256", m.Spec.SHA256)
	f.add("Options", optionText(m.Spec.Options))
	f.add("Residency", string(m.Residency))
	if m.HubTokenSet {
		f.add("Hub token", "set")
	}
	f.add("Domain", m.Domain)
	f.add("URL", m.URL)
	f.add("Served names", strings.Join(m.ServedNames, ", "))
	if m.LastActiveAt != nil {
		f.add("Last used", s.ago(*m.LastActiveAt))
	}
	if m.Limits != nil {
		f.add("Limits", gatewayLimits(*m.Limits))
		f.add("Timeouts", gatewayTimeouts(*m.Limits))
	}
	f.add("Created", s.ago(m.CreatedAt)+by(m.CreatedBy))
	if m.UpdatedAt.After(m.CreatedAt) {
		f.add("Updated", s.ago(m.UpdatedAt))
	}
	f.print(s.stdout)
	if len(m.Replicas) > 0 {
		s.say("")
		t := table{head: []string{"REPLICA", "REVISION", "STATUS", "UNIT", "STATE", "PID", "RESTARTS"}}
		for _, r := range m.Replicas {
			pid := ""
			if r.MainPID > 0 {
				pid = itoa(r.MainPID)
			}
			t.row(r.Replica, itoa(r.Revision), standing(r.Condition), r.Unit, r.UnitState, pid, itoa(r.NRestarts))
		}
		t.print(s.stdout)
		for _, r := range m.Replicas {
			for _, n := range r.Notes {
				s.say("note: %s: %s", r.Replica, plain(n))
			}
			if len(r.NotIsolated) > 0 {
				s.say("%s %s: %s\n  the engine may reach what it must not. Undo it: systemctl revert %s, then levelrail models restart %s", s.stdout.paint(styled{"NOT ISOLATED:", styleRed}), r.Replica, plain(strings.Join(r.NotIsolated, ", ")), r.Unit, m.Name)
			}
			if len(r.DropIns) > 0 {
				s.say("note: %s: changed by %s", r.Replica, plain(strings.Join(r.DropIns, ", ")))
			}
		}
	}
	if m.URL != "" {
		s.say("\nTry it, with a key of it in LEVELRAIL_API_KEY:\n\n%s\n", curlLine(m, "$LEVELRAIL_API_KEY"))
	}
	s.say("Logs: levelrail models logs %s, or on its node: journalctl -u 'levelrail-model-%s.*' -u levelrail-fetch-%s", m.Name, m.Name, m.Name)
}

// gatewayLimits are the limits of every request, which APP_MODEL_GATEWAY_… set.
func gatewayLimits(l wire.Limits) string {
	var out []string
	add := func(n int64, text string) {
		if n > 0 {
			out = append(out, text)
		}
	}
	add(l.MaxInflight, fmt.Sprintf("%d requests at a time", l.MaxInflight))
	add(l.MaxBodyBytes, "bodies of "+size(l.MaxBodyBytes))
	add(l.MaxGenLen, fmt.Sprintf("%d tokens generated", l.MaxGenLen))
	add(l.MaxN, fmt.Sprintf("n of %d", l.MaxN))
	add(l.MaxPrompts, fmt.Sprintf("%d prompts in a body", l.MaxPrompts))
	add(l.MaxTextBytes, size(l.MaxTextBytes)+" of text")
	if len(out) == 0 {
		return "none"
	}
	return strings.Join(out, ", ")
}

func gatewayTimeouts(l wire.Limits) string {
	var out []string
	add := func(seconds int64, what string) {
		if seconds > 0 {
			out = append(out, span(time.Duration(seconds)*time.Second)+" "+what)
		}
	}
	add(l.DialTimeoutSeconds, "to connect")
	add(l.HeaderTimeout, "until an answer begins")
	add(l.IdleTimeout, "between its parts")
	if len(out) == 0 {
		return "none"
	}
	return strings.Join(out, ", ")
}

func by(who string) string {
	if who == "" {
		return ""
	}
	return ", by " + who
}

func optionText(options map[string]string) string {
	var words []string
	for name, value := range options {
		words = append(words, name+"="+value)
	}
	slices.Sort(words)
	return strings.Join(words, ", ")
}
