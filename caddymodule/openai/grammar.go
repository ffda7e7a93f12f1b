package openai

import (
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"unicode/utf8"
)

// Bounds of what an engine compiles before it generates. An engine follows all readings of what was generated so far at
// the same time and holds each against its whole vocabulary, for every token and in the loop that serves all requests:
// mostWays bounds the readings, the others what the compilers recurse into or copy.
const (
	mostGrammar = 64 << 10 // bytes
	mostRules   = 1024
	mostNesting = 48
	mostRepeat  = 2000 // llama.cpp takes no larger count
	mostWays    = 512
	manyWays    = 1 << 20 // where sums stop
	mostWork    = 1 << 18 // steps of the check itself: it is done for one request, beside all others
)

// CheckGrammar reads a grammar in llama.cpp's notation and refuses one that may be read in too many ways at a time: by its
// size, or because it is ambiguous where it is recursive, so that each token multiplies the ways.
func CheckGrammar(text string) error {
	if len(text) > mostGrammar {
		return fmt.Errorf("the grammar has more than %d bytes", mostGrammar)
	}
	p := grammarParser{in: text, g: &grammar{rules: map[string]*rule{}}}
	if err := p.rules(); err != nil {
		return err
	}
	return p.g.check()
}

type kind uint8

const (
	literal   kind = iota // leads has its text
	class                 // leads has its characters, or any
	sequence              // of
	choice                // of
	repeat                // of[0], from least to most times (most < 0: no end)
	reference             // to name
)

// part is a part of a grammar.
type part struct {
	kind        kind
	leads       []string
	any         bool
	of          []*part
	least, most int
	name        string
}

type rule struct {
	body   *part
	number int // of its strongly connected component
	center bool
	// Results, and whether they are being worked out.
	null, nullDone bool
	first          leads
	firstState     int
	starts         int
	startsState    int
}

type grammar struct {
	rules map[string]*rule
	names []string
	ways  []int // by component
	work  int   // steps done
}

type grammarParser struct {
	in    string
	i     int
	depth int
	g     *grammar
	parts int
}

func (p *grammarParser) broken() error {
	return fmt.Errorf("the grammar cannot be read at byte %d", p.i)
}

// space skips blanks and comments, and newlines where they may stand.
func (p *grammarParser) space(newlines bool) {
	for p.i < len(p.in) {
		switch c := p.in[p.i]; {
		case c == '#':
			for p.i < len(p.in) && p.in[p.i] != '\n' && p.in[p.i] != '\r' {
				p.i++
			}
		case c == ' ' || c == '\t' || newlines && (c == '\n' || c == '\r'):
			p.i++
		default:
			return
		}
	}
}

func wordByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_'
}

func (p *grammarParser) word() string {
	from := p.i
	for p.i < len(p.in) && wordByte(p.in[p.i]) {
		p.i++
	}
	return p.in[from:p.i]
}

func (p *grammarParser) rules() error {
	for p.space(true); p.i < len(p.in); p.space(true) {
		name := p.word()
		p.space(false)
		if name == "" || !strings.HasPrefix(p.in[p.i:], "::=") {
			return p.broken()
		}
		p.i += 3
		p.space(true)
		body, err := p.choices(false)
		if err != nil {
			return err
		}
		if r := p.g.rules[name]; r != nil {
			r.body = &part{kind: choice, of: []*part{r.body, body}} // llama.cpp keeps the last; both bound it
		} else {
			p.g.rules[name] = &rule{body: body}
			p.g.names = append(p.g.names, name)
		}
		if len(p.g.names) > mostRules {
			return fmt.Errorf("the grammar has more than %d rules", mostRules)
		}
		if p.i < len(p.in) && p.in[p.i] != '\n' && p.in[p.i] != '\r' {
			return p.broken()
		}
	}
	return nil
}

func (p *grammarParser) choices(nested bool) (*part, error) {
	if p.depth++; p.depth > mostNesting {
		return nil, fmt.Errorf("the grammar is nested more than %d levels deep", mostNesting)
	}
	defer func() { p.depth-- }()
	out := &part{kind: choice}
	for {
		s, err := p.sequence(nested)
		if err != nil {
			return nil, err
		}
		out.of = append(out.of, s)
		p.space(nested)
		if p.i == len(p.in) || p.in[p.i] != '|' {
			break
		}
		p.i++
		p.space(true)
	}
	if len(out.of) == 1 {
		return out.of[0], nil
	}
	return out, nil
}

func (p *grammarParser) sequence(nested bool) (*part, error) {
	out := &part{kind: sequence}
	for p.space(nested); p.i < len(p.in); p.space(nested) {
		var one *part
		var err error
		switch c := p.in[p.i]; {
		case c == '"':
			one, err = p.quoted()
		case c == '[':
			one, err = p.class()
		case c == '.':
			p.i++
			one = &part{kind: class, any: true}
		case c == '<' || c == '!': // a token by its text or number
			one, err = p.token()
		case c == '(':
			p.i++
			p.space(true)
			if one, err = p.choices(true); err == nil {
				if p.i == len(p.in) || p.in[p.i] != ')' {
					return nil, p.broken()
				}
				p.i++
			}
		case wordByte(c):
			one = &part{kind: reference, name: p.word()}
		case c == '*' || c == '+' || c == '?' || c == '{':
			if len(out.of) == 0 {
				return nil, p.broken()
			}
			last := &out.of[len(out.of)-1]
			if *last, err = p.repeat(*last); err != nil {
				return nil, err
			}
			continue
		default:
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		out.of = append(out.of, one)
	}
	return out, nil
}

func (p *grammarParser) token() (*part, error) {
	end := strings.IndexByte(p.in[p.i:], '>')
	if end < 0 {
		return nil, p.broken()
	}
	p.i += end + 1
	return &part{kind: class, any: true}, nil
}

// char reads one character of a literal or class, with its escapes.
func (p *grammarParser) char() (rune, error) {
	r, n := utf8.DecodeRuneInString(p.in[p.i:])
	if n == 0 {
		return 0, p.broken()
	}
	p.i += n
	if r != '\\' {
		return r, nil
	}
	if p.i == len(p.in) {
		return 0, p.broken()
	}
	c := p.in[p.i]
	p.i++
	digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]
	if digits == 0 {
		switch c {
		case 't':
			return '\t', nil
		case 'n':
			return '\n', nil
		case 'r':
			return '\r', nil
		}
		return rune(c), nil
	}
	v := rune(0)
	for range digits {
		if p.i == len(p.in) || hexDigit(p.in[p.i]) < 0 {
			return 0, p.broken()
		}
		v = v<<4 | rune(hexDigit(p.in[p.i]))
		p.i++
	}
	return v, nil
}

func (p *grammarParser) quoted() (*part, error) {
	var b strings.Builder
	for p.i++; ; {
		if p.i == len(p.in) {
			return nil, p.broken()
		}
		if p.in[p.i] == '"' {
			p.i++
			return &part{kind: literal, leads: []string{b.String()}}, nil
		}
		r, err := p.char()
		if err != nil {
			return nil, err
		}
		b.WriteRune(r)
	}
}

// mostLeads is how many beginnings of a part are told apart; with more it may begin with anything.
const mostLeads = 160

func (p *grammarParser) class() (*part, error) {
	out := &part{kind: class}
	p.i++
	if p.i < len(p.in) && p.in[p.i] == '^' {
		out.any = true
		p.i++
	}
	for {
		if p.i == len(p.in) {
			return nil, p.broken()
		}
		if p.in[p.i] == ']' {
			p.i++
			if out.any {
				out.leads = nil
			}
			return out, nil
		}
		from, err := p.char()
		if err != nil {
			return nil, err
		}
		to := from
		if p.i+1 < len(p.in) && p.in[p.i] == '-' && p.in[p.i+1] != ']' {
			p.i++
			if to, err = p.char(); err != nil {
				return nil, err
			}
		}
		if to-from >= mostLeads || len(out.leads) > mostLeads {
			out.any = true
		}
		for r := from; r <= to && !out.any; r++ {
			out.leads = append(out.leads, string(r))
		}
	}
}

func (p *grammarParser) repeat(one *part) (*part, error) {
	out := &part{kind: repeat, of: []*part{one}, most: -1}
	c := p.in[p.i]
	p.i++
	switch c {
	case '+':
		out.least = 1
	case '?':
		out.most = 1
	case '{':
		end := strings.IndexByte(p.in[p.i:], '}')
		if end < 0 {
			return nil, p.broken()
		}
		least, most, two := strings.Cut(p.in[p.i:p.i+end], ",")
		var ok bool
		if out.least, ok = count(least); !ok {
			return nil, p.broken()
		}
		switch most = strings.Trim(most, " \t\r\n"); {
		case !two:
			out.most = out.least
		case most != "":
			if out.most, ok = count(most); !ok {
				return nil, p.broken()
			}
		}
		p.i += end + 1
		if out.least > mostRepeat || out.most > mostRepeat {
			return nil, fmt.Errorf("the grammar repeats something more than %d times", mostRepeat)
		}
	}
	if p.depth+nesting(one) > mostNesting {
		return nil, fmt.Errorf("the grammar is nested more than %d levels deep", mostNesting)
	}
	return out, nil
}

// nesting is how many repetitions stand directly within each other, as in a***.
func nesting(p *part) int {
	n := 0
	for p.kind == repeat {
		p = p.of[0]
		n++
	}
	return n
}

func count(s string) (int, bool) {
	n, ok := Integer([]byte(strings.Trim(s, " \t\r\n")))
	return int(n), ok
}

// check works out in how many ways the grammar can be read at a time.
func (g *grammar) check() error {
	byNumber := g.components()
	g.ways = make([]int, len(byNumber)+1)
	for i, rules := range byNumber { // what is referred to comes first
		for _, r := range rules {
			w, err := g.waysOf(r.body, r)
			if g.work > mostWork {
				return errIntricate
			}
			if err != nil {
				return err
			}
			g.ways[i+1] = min(g.ways[i+1]+w, manyWays)
		}
		if g.ways[i+1] > mostWays {
			return fmt.Errorf("the grammar can be read in more than %d ways at a time: make its alternatives fewer, or let them begin differently", mostWays)
		}
	}
	return nil
}

// components numbers the rules so that those that reach each other have the same number (Tarjan), and marks those of which
// one is within another and not at its end: such recursion remembers where it came from.
func (g *grammar) components() (byNumber [][]*rule) {
	index, low, on := map[string]int{}, map[string]int{}, map[string]bool{}
	var stack []string
	next, component := 0, 0
	var visit func(string)
	visit = func(n string) {
		next++
		index[n], low[n], on[n] = next, next, true
		stack = append(stack, n)
		for _, to := range references(g.rules[n].body, nil) {
			if g.rules[to] == nil {
				continue
			}
			if index[to] == 0 {
				visit(to)
				low[n] = min(low[n], low[to])
			} else if on[to] {
				low[n] = min(low[n], index[to])
			}
		}
		if low[n] == index[n] {
			component++
			byNumber = append(byNumber, nil)
			for {
				top := stack[len(stack)-1]
				stack = stack[:len(stack)-1]
				on[top] = false
				g.rules[top].number = component
				byNumber[component-1] = append(byNumber[component-1], g.rules[top])
				if top == n {
					break
				}
			}
		}
	}
	for _, n := range g.names {
		if index[n] == 0 {
			visit(n)
		}
	}
	center := map[int]bool{}
	for _, n := range g.names {
		if r := g.rules[n]; g.within(r.body, r.number, true) {
			center[r.number] = true
		}
	}
	for _, r := range g.rules {
		r.center = center[r.number]
	}
	return byNumber
}

func references(p *part, into []string) []string {
	if p.kind == reference {
		into = append(into, p.name)
	}
	for _, o := range p.of {
		into = references(o, into)
	}
	return into
}

// within tells whether a reference to a component stands anywhere but at the end.
func (g *grammar) within(p *part, number int, tail bool) bool {
	switch p.kind {
	case reference:
		r := g.rules[p.name]
		return !tail && r != nil && r.number == number
	case repeat:
		tail = tail && p.most == 1
	}
	for i, o := range p.of {
		if g.within(o, number, tail && (p.kind != sequence || i == len(p.of)-1)) {
			return true
		}
	}
	return false
}

// recurses tells whether a part leads back into the rule's own component, where that is recursive within.
func (g *grammar) recurses(p *part, r *rule) bool {
	if !r.center {
		return false
	}
	for _, n := range references(p, nil) {
		if to := g.rules[n]; to != nil && to.number == r.number {
			return true
		}
	}
	return false
}

const (
	fresh = iota
	working
	done
)

func (g *grammar) nullable(p *part) bool {
	if g.tired() {
		return false
	}
	switch p.kind {
	case literal:
		return p.leads[0] == ""
	case class:
		return false
	case reference:
		r := g.rules[p.name]
		if r == nil || r.nullDone {
			return r != nil && r.null
		}
		r.nullDone = true // meanwhile: no
		r.null = g.nullable(r.body)
		return r.null
	case repeat:
		return p.least == 0 || g.nullable(p.of[0])
	case choice:
		return slices.ContainsFunc(p.of, g.nullable)
	}
	for _, o := range p.of {
		if !g.nullable(o) {
			return false
		}
	}
	return true
}

// leads is what a part may begin with.
type leads struct {
	texts []string
	any   bool
}

func (l leads) with(o leads) leads {
	if l.any || o.any || len(l.texts)+len(o.texts) > mostLeads {
		return leads{any: true}
	}
	return leads{texts: append(slices.Clip(l.texts), o.texts...)}
}

func (g *grammar) first(p *part) leads {
	if g.tired() {
		return leads{any: true}
	}
	switch p.kind {
	case literal:
		if p.leads[0] == "" {
			return leads{}
		}
		return leads{texts: p.leads}
	case class:
		return leads{texts: p.leads, any: p.any}
	case reference:
		r := g.rules[p.name]
		if r == nil || r.firstState == working {
			return leads{any: true}
		}
		if r.firstState == fresh {
			r.firstState = working
			r.first = g.first(r.body)
			r.firstState = done
		}
		return r.first
	case repeat:
		return g.first(p.of[0])
	case choice:
		out := leads{}
		for _, o := range p.of {
			out = out.with(g.first(o))
		}
		return out
	}
	return g.firstOf(p.of)
}

func (g *grammar) firstOf(parts []*part) leads {
	out := leads{}
	for _, o := range parts {
		if out = out.with(g.first(o)); out.any || !g.nullable(o) {
			break
		}
	}
	return out
}

// apart tells whether what was generated decides between parts: none begins as another one does.
func apart(all []leads) bool {
	type begin struct {
		text string
		of   int
	}
	var sorted []begin
	for i, l := range all {
		if l.any {
			return len(all) == 1
		}
		for _, t := range l.texts {
			sorted = append(sorted, begin{t, i})
		}
	}
	sort.Slice(sorted, func(i, j int) bool { return sorted[i].text < sorted[j].text })
	for i := 1; i < len(sorted); i++ {
		// What begins with a text stands right behind it.
		for j := i - 1; j >= 0 && strings.HasPrefix(sorted[i].text, sorted[j].text); j-- {
			if sorted[i].of != sorted[j].of {
				return false
			}
		}
	}
	return true
}

// open tells whether a part of a sequence may go on where what follows it begins as well.
func (g *grammar) open(p *part, rest []*part) bool {
	if len(rest) == 0 {
		return false
	}
	after := g.firstOf(rest)
	if g.nullable(p) && !apart([]leads{g.first(p), after}) {
		return true
	}
	for _, t := range g.trailing(p, nil, map[string]bool{}) {
		first := g.first(t)
		if g.work += len(first.texts) + len(after.texts); !apart([]leads{first, after}) {
			return true
		}
	}
	return false
}

// trailing are the parts that may come once more at the end of a part.
func (g *grammar) trailing(p *part, into []*part, seen map[string]bool) []*part {
	if g.tired() {
		return into
	}
	switch p.kind {
	case reference:
		if r := g.rules[p.name]; r != nil && !seen[p.name] {
			seen[p.name] = true
			into = g.trailing(r.body, into, seen)
		}
	case repeat:
		if p.most != p.least {
			into = append(into, p.of[0])
		}
		into = g.trailing(p.of[0], into, seen)
	case choice:
		for _, o := range p.of {
			into = g.trailing(o, into, seen)
		}
	case sequence:
		for i := len(p.of) - 1; i >= 0; i-- {
			into = g.trailing(p.of[i], into, seen)
			if !g.nullable(p.of[i]) {
				break
			}
		}
	}
	return into
}

// waysOf is in how many ways a part of a rule can be read at a time, at most, but for what it does by way of its own
// component.
func (g *grammar) waysOf(p *part, in *rule) (int, error) {
	switch p.kind {
	case literal, class:
		return 1, nil
	case reference:
		if r := g.rules[p.name]; r != nil && r.number != in.number {
			return g.ways[r.number], nil
		}
		return 1, nil
	case repeat:
		w, err := g.waysOf(p.of[0], in)
		if err != nil || !g.nullable(p.of[0]) && !g.open(p.of[0], p.of) || p.most == 1 {
			return w + 1, err
		}
		if g.recurses(p, in) {
			return 0, errAmbiguous
		}
		return min(w*max(p.most, p.least, 1)+1, manyWays), nil
	case choice:
		if len(p.of) > mostWays {
			return manyWays, nil
		}
		all := make([]leads, 0, len(p.of))
		sum, most, starts, recursive := 0, 0, 0, false
		for _, o := range p.of {
			w, err := g.waysOf(o, in)
			if err != nil {
				return 0, err
			}
			sum, most, starts = min(sum+w, manyWays), max(most, w), min(starts+g.startsOf(o), manyWays)
			all = append(all, g.first(o))
			g.work += len(all[len(all)-1].texts)
			recursive = recursive || g.recurses(o, in)
		}
		if apart(all) {
			return max(most, starts), nil
		}
		if recursive && !g.apartWhereRecursive(p.of, all, in) {
			return 0, errAmbiguous
		}
		return max(sum, starts), nil
	}
	sum, most := 0, 0
	for i, o := range p.of {
		w, err := g.waysOf(o, in)
		if err != nil {
			return 0, err
		}
		sum = min(sum+w, manyWays)
		most = max(most, sum)
		if !g.open(o, p.of[i+1:]) {
			sum = 0
		} else if g.recurses(&part{kind: sequence, of: p.of[i:]}, in) {
			return 0, errAmbiguous
		}
	}
	return most, nil
}

var errIntricate = errors.New("the rules of the grammar refer to each other in too many ways")

// tired counts a step, and tells whether there have been too many; then nothing that is found out counts.
func (g *grammar) tired() bool {
	g.work++
	return g.work > mostWork
}

var errAmbiguous = fmt.Errorf("the grammar is ambiguous where it is recursive, which would take more time and memory with each token: let alternatives that lead back to a rule begin differently from the others")

// apartWhereRecursive tells whether each alternative that leads back is told from all others by how it begins.
func (g *grammar) apartWhereRecursive(parts []*part, all []leads, in *rule) bool {
	for i, p := range parts {
		if !g.recurses(p, in) {
			continue
		}
		for j := range parts {
			if g.work += len(all[i].texts) + len(all[j].texts); i != j && !apart([]leads{all[i], all[j]}) {
				return false
			}
		}
	}
	return true
}

// startsOf is how many places of a grammar a part may begin at.
func (g *grammar) startsOf(p *part) int {
	if g.tired() {
		return 1
	}
	switch p.kind {
	case literal, class:
		return 1
	case reference:
		r := g.rules[p.name]
		if r == nil || r.startsState == working {
			return 1
		}
		if r.startsState == fresh {
			r.startsState = working
			r.starts = g.startsOf(r.body)
			r.startsState = done
		}
		return r.starts
	case choice:
		n := 0
		for _, o := range p.of {
			n = min(n+g.startsOf(o), manyWays)
		}
		return n
	}
	n := 0
	for _, o := range p.of {
		n = min(n+g.startsOf(o), manyWays)
		if !g.nullable(o) {
			break
		}
	}
	return n
}
