package gateway

import (
	"math"
	"net/http"
	"slices"
	"strconv"

	"github.com/levelrail/levelrail/caddymodule/openai"
	"github.com/levelrail/levelrail/engine"
)

// checkCost holds what the body asks for against the model's limits: how much text, how many choices and prompts, of how
// many tokens. What it says in other words than the engine reads is put into the engine's words.
func (x *exchange) checkCost() *openai.Error {
	if x.body == nil || x.match.Multipart {
		return nil
	}
	if most := x.model.Limits.MaxTextBytes; most > 0 && openai.TextBytes(x.body.Bytes(), most) > most {
		return tooLarge("text of the request's body", most, "APP_MODEL_GATEWAY_MAX_TEXT_BYTES")
	}
	if refusal := x.checkCount(); refusal != nil {
		return refusal
	}
	return x.checkLength()
}

// checkCount bounds the choices and the prompts. A count in another spelling than digits is refused, because engines read
// those differently.
func (x *exchange) checkCount() *openai.Error {
	l := &x.model.Limits
	mostN, choices := min(l.MaxN, mostWhole), int64(1)
	for _, field := range x.model.Body.Count {
		raw, there := x.members.Get(field)
		if !there || string(raw) == "null" { // one, for every engine
			continue
		}
		n, ok := openai.Whole(raw)
		if mostN > 0 && (!ok || n < 1 || n > mostN) {
			return outOfRange(field, 1, mostN, "APP_MODEL_GATEWAY_MAX_N")
		}
		choices = max(choices, min(n, math.MaxInt32))
	}
	x.parts = choices
	field := engine.PromptField[x.match.Kind]
	raw, there := x.members.Get(field)
	if !there {
		return nil
	}
	// Each prompt of a list is answered by itself.
	prompts := openai.Prompts(raw)
	if x.parts = prompts * choices; prompts > 1 && l.MaxPrompts > 0 && x.parts > l.MaxPrompts {
		return openai.Refuse(http.StatusBadRequest, openai.CodeInvalidBody, field,
			"The elements of "+field+", times the choices for each, have to be "+strconv.FormatInt(l.MaxPrompts, 10)+" at most (APP_MODEL_GATEWAY_MAX_PROMPTS).")
	}
	return nil
}

// checkLength bounds what is generated. Every length that the body gives is held against the limit, under whatever name, and
// the engine is made to keep to the smallest of them: what it would not read is written where it does.
func (x *exchange) checkLength() *openai.Error {
	l, table := &x.model.Limits, &x.model.Body
	most := min(l.MaxGenLen, mostWhole)
	least, given := int64(0), int64(-1)
	if table.ZeroUnlimited {
		least = 1
	}
	for _, field := range table.Length {
		raw, there := x.members.Get(field)
		if !there {
			continue
		}
		n, ok := openai.Whole(raw)
		switch null := string(raw) == "null"; {
		case null && !slices.Contains(table.NullUnlimited, x.match.Kind):
			continue
		case most <= 0 && (null || !ok):
			continue // the engine's to judge
		case most > 0 && l.OverGenLen == "clamp" && (null || ok && (n > most || n == -1 || n == 0 && least > 0)):
			n = most
		case most > 0 && (!ok || n < least || n > most):
			return outOfRange(field, least, most, "APP_MODEL_GATEWAY_MAX_GEN_LEN; APP_MODEL_GATEWAY_OVER_GEN_LEN=clamp lowers what is above")
		}
		if n >= 0 && (given < 0 || n < given) {
			given = n
		}
	}
	if raw, _ := x.members.Get("ignore_eos"); most > 0 && given < 0 && string(raw) != "" && string(raw) != "false" && string(raw) != "null" {
		return openai.Refuse(http.StatusBadRequest, openai.CodeInvalidBody, "ignore_eos", "With ignore_eos a length is needed: send max_tokens of "+
			strconv.FormatInt(most, 10)+" at most (APP_MODEL_GATEWAY_MAX_GEN_LEN).")
	}
	if raw, there := x.members.Get("min_tokens"); there && most > 0 {
		if n, _ := openai.Whole(raw); n > most {
			return outOfRange("min_tokens", 0, most, "APP_MODEL_GATEWAY_MAX_GEN_LEN")
		}
	}
	if given >= 0 {
		x.bind(table.Reads[x.match.Kind], given)
	}
	return nil
}

// bind makes the engine read a length of most, if it would not: reads are the names that it looks at, the winning one first.
func (x *exchange) bind(reads []string, most int64) {
	if len(reads) == 0 {
		return
	}
	name := reads[0]
	for _, r := range reads {
		raw, there := x.members.Get(r)
		if !there || string(raw) == "null" {
			continue
		}
		if n, _ := openai.Whole(raw); n >= 0 && n <= most {
			return
		}
		name = r
		break
	}
	x.changes = append(x.changes, openai.Set(x.body.Bytes(), x.members, name, strconv.FormatInt(most, 10)))
}

// mostWhole is the largest count or length that every engine reads as the same number: llama.cpp's wrap at 31 bits.
const mostWhole = 999_999_999

func outOfRange(field string, least, most int64, setting string) *openai.Error {
	return openai.Refuse(http.StatusBadRequest, openai.CodeInvalidBody, field,
		"The field "+field+" has to be a whole number from "+strconv.FormatInt(least, 10)+" to "+strconv.FormatInt(most, 10)+", written in digits ("+setting+").")
}
