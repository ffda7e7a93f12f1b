package gateway

import (
	"net/http"
	"slices"
	"strconv"

	"github.com/levelrail/levelrail/caddymodule/openai"
)

// checkCost holds what the body asks for against the model's limits: how many choices, of how many tokens. A field in
// another spelling than plain digits is refused, because engines read those differently and some as no bound at all.
func (x *exchange) checkCost() *openai.Error {
	l, table := &x.model.Limits, &x.model.Body
	if l.MaxN > 0 {
		choices := int64(1)
		for _, field := range table.Count {
			raw, there := x.members.Get(field)
			if !there || string(raw) == "null" { // one, for every engine
				continue
			}
			n, ok := openai.Integer(raw)
			if !ok || n < 1 || n > l.MaxN {
				return outOfRange(field, 1, l.MaxN)
			}
			choices = max(choices, n)
		}
		// Each prompt of a list is answered by itself.
		if raw, there := x.members.Get("prompt"); there && x.match.Kind == "completions" {
			if prompts := openai.Prompts(raw); prompts*choices > l.MaxN {
				return openai.Refuse(http.StatusBadRequest, openai.CodeInvalidBody, "prompt", "The prompts, times the choices for each, have to be "+strconv.FormatInt(l.MaxN, 10)+" at most.")
			}
		}
	}
	if l.MaxGenLen > 0 {
		least := int64(0)
		if table.ZeroUnlimited {
			least = 1
		}
		for _, field := range table.Length {
			raw, there := x.members.Get(field)
			if !there {
				continue
			}
			if string(raw) == "null" {
				if slices.Contains(table.NullUnlimited, x.match.Kind) {
					return outOfRange(field, least, l.MaxGenLen)
				}
				continue
			}
			if n, ok := openai.Integer(raw); !ok || n < least || n > l.MaxGenLen {
				return outOfRange(field, least, l.MaxGenLen)
			}
		}
	}
	return nil
}

func outOfRange(field string, least, most int64) *openai.Error {
	return openai.Refuse(http.StatusBadRequest, openai.CodeInvalidBody, field,
		"The field "+field+" has to be a whole number from "+strconv.FormatInt(least, 10)+" to "+strconv.FormatInt(most, 10)+", written in digits.")
}
