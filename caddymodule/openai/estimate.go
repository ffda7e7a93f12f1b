package openai

import "bytes"

// What an estimate counts with.
const (
	bytesPerToken   = 4    // of text: English has somewhat more, most other languages less
	attachmentToken = 1000 // of a picture or a sound within the body
	leastAttachment = 1024 // bytes of base64 and nothing else: no text
)

// promptFields are the members of a body that an engine reads as prompt.
var promptFields = NewFields("messages", "prompt", "suffix", "input", "instructions", "system", "tools", "query", "documents")

// EstimatePrompt says about how many tokens a request's prompt has, for where the engine did not come to say it. The body is
// one that Walk takes.
func EstimatePrompt(body []byte) int64 {
	m, err := Walk(body, promptFields)
	if err != nil {
		return 0
	}
	text, tokens := int64(0), int64(0)
	for _, raw := range m.raw {
		t, n := promptSize(raw)
		text, tokens = text+t, tokens+n
	}
	return tokens + EstimateText(text)
}

// EstimateText is about how many tokens so many bytes of text are.
func EstimateText(n int64) int64 { return (n + bytesPerToken - 1) / bytesPerToken }

// promptSize counts the text of a value, names included, since chat templates write something for each, and what is a token
// or more by itself: numbers of a prompt given as tokens, and attachments.
func promptSize(raw []byte) (text, tokens int64) {
	for i := 0; i < len(raw); {
		switch b := raw[i]; {
		case b == '"':
			s := scanner{b: raw, i: i}
			inside, escaped, err := s.str()
			if err != nil {
				return text, tokens
			}
			i = s.i
			if bytes.HasPrefix(inside, []byte("data:")) || len(inside) >= leastAttachment && base64Text(inside[:leastAttachment]) {
				tokens += attachmentToken
				continue
			}
			text += int64(len(inside))
			if escaped { // \n is one byte of text, \u4e2d three
				text -= int64(bytes.Count(inside, []byte(`\`)) + 2*bytes.Count(inside, []byte(`\u`)))
			}
		case b == '-' || b >= '0' && b <= '9':
			tokens++
			for i < len(raw) && scalar[raw[i]] {
				i++
			}
		default:
			i++
		}
	}
	return text, tokens
}

// base64Text tells whether all bytes are those of base64.
func base64Text(b []byte) bool {
	for _, c := range b {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '+' || c == '/' || c == '-' || c == '_' || c == '=') {
			return false
		}
	}
	return true
}
