package httpapi

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/levelrail/levelrail"
	"github.com/levelrail/levelrail/controlplane/ledger"
)

type gatewayOf = ledger.Gateway

// difference is one field in which two specs differ, and the flag of `levelrail models update` that makes it so.
type difference struct{ field, have, want, flag string }

// differences compares what is deployed with what is asked for.
func differences(have, want levelrail.ModelSpec) []difference {
	var out []difference
	text := func(field, flag, a, b string) {
		if a != b {
			out = append(out, difference{field, orNone(a), orNone(b), flag + " " + shell(b)})
		}
	}
	text("engine", "--engine", have.Engine, want.Engine)
	text("model", "--model", have.Source, want.Source)
	text("source_commit", "--commit", have.SourceCommit, want.SourceCommit)
	text("sha256", "--sha256", have.SHA256, want.SHA256)
	text("context", "--context", number(have.Context), number(want.Context))
	text("quantization", "--quantization", have.Quantization, want.Quantization)
	if a, b := gpuText(have.GPUs), gpuText(want.GPUs); a != b {
		out = append(out, difference{"gpus", a, b, gpuFlag(want.GPUs)})
	}
	if !maps.Equal(have.Options, want.Options) {
		var flags []string
		for _, k := range slices.Sorted(maps.Keys(want.Options)) {
			flags = append(flags, "--option "+shell(k+"="+want.Options[k]))
		}
		if len(flags) == 0 {
			flags = []string{`--option ""`}
		}
		out = append(out, difference{"options", optionsText(have.Options), optionsText(want.Options), strings.Join(flags, " ")})
	}
	if !slices.Equal(have.ServedNames, want.ServedNames) {
		var flags []string
		for _, n := range want.ServedNames {
			flags = append(flags, "--served-name "+shell(n))
		}
		if len(flags) == 0 {
			flags = []string{`--served-name ""`}
		}
		out = append(out, difference{"served_names", orNone(strings.Join(have.ServedNames, ",")), orNone(strings.Join(want.ServedNames, ",")), strings.Join(flags, " ")})
	}
	return out
}

func number(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

func gpuText(g levelrail.GPURequest) string {
	if g.Mode == levelrail.GPUDevices {
		return "devices " + g.String()
	}
	return g.String()
}

func gpuFlag(g levelrail.GPURequest) string {
	switch g.Mode {
	case levelrail.GPUDevices:
		return "--gpu-devices " + shell(g.String())
	case levelrail.GPUUnset:
		return `--gpus ""`
	}
	return "--gpus " + g.String()
}

func optionsText(o levelrail.Options) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(o)) {
		out = append(out, k+"="+o[k])
	}
	return orNone(strings.Join(out, ","))
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// shell is a word as a shell takes it.
func shell(s string) string {
	if s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:=,@+%") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// requestText is a request's body in one form, for its idempotency key.
func requestText(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprintf("%+v", v)
	}
	return string(text)
}
