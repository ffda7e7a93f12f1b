package engine

import (
	"regexp"
	"strings"

	"github.com/levelrail/levelrail"
)

// symptom is a text in an engine's journal and what it means.
type symptom struct {
	find   *regexp.Regexp
	reason levelrail.Reason
	// say is the sentence; $1 and further are what find caught, and "" is the line itself.
	say string
}

// firstCause goes through the lines oldest first and returns the first that any symptom of the first class explains;
// when there is none, of the next class. An engine's last lines mostly say only that it ends, and a crash prints what
// went wrong above what it led to.
func firstCause(lines []string, classes ...[]symptom) (levelrail.Reason, string) {
	for _, class := range classes {
		for _, l := range lines {
			if ofRequest.MatchString(l) {
				continue
			}
			for _, s := range class {
				at := s.find.FindStringSubmatchIndex(l)
				if at == nil {
					continue
				}
				if s.say == "" {
					return s.reason, clip(bare(l))
				}
				return s.reason, clip(string(s.find.ExpandString(nil, s.say, l, at)))
			}
		}
	}
	return "", ""
}

// ofRequest finds llama.cpp's lines about one request: what a client asked ends no engine, and is not the operator's news.
var ofRequest = regexp.MustCompile(`\btask(?: id)?\s*=?\s*-?\d+\b.*[|,]|\bid_task\s*=`)

var linePrefix = regexp.MustCompile(`^(?:\d+\.\d\d\.\d{3}\.\d{3} )?[A-Z] (?:\S+ +\S+: )?`)

// bare takes llama.cpp's clock, level and component off a line.
func bare(l string) string { return strings.TrimSpace(linePrefix.ReplaceAllString(l, "")) }

func on(pattern string, reason levelrail.Reason, say string) symptom {
	return symptom{find: regexp.MustCompile(pattern), reason: reason, say: say}
}
