package cli

import (
	"io"
	"strings"
	"unicode/utf8"
)

// The styles of text on a terminal that shows colours.
const (
	styleBold   = "1"
	styleGreen  = "32"
	styleYellow = "33"
	styleRed    = "31"
)

// styled is text with a style; without colours it is the text.
type styled struct{ text, style string }

func (o *output) paint(c styled) string {
	if !o.color || c.style == "" {
		return c.text
	}
	return "\x1b[" + c.style + "m" + c.text + "\x1b[0m"
}

// table is rows under headings, aligned by the widest cell, two blanks between columns.
type table struct {
	head []string
	rows [][]styled
}

// row adds a row; cells are strings or styled, an empty one is shown as a dash.
func (t *table) row(cells ...any) {
	row := make([]styled, len(cells))
	for i, c := range cells {
		switch c := c.(type) {
		case string:
			row[i] = styled{text: c}
		case styled:
			row[i] = c
		}
		row[i].text = oneLine(row[i].text)
		if row[i].text == "" {
			row[i].text = "-"
		}
	}
	t.rows = append(t.rows, row)
}

func (t *table) print(o *output) {
	widths := make([]int, len(t.head))
	head := make([]styled, len(t.head))
	for i, h := range t.head {
		head[i] = styled{h, styleBold}
	}
	rows := append([][]styled{head}, t.rows...)
	for _, row := range rows {
		for i, c := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(c.text))
		}
	}
	for _, row := range rows {
		var b strings.Builder
		for i, c := range row {
			b.WriteString(o.paint(c))
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c.text)+2))
			}
		}
		io.WriteString(o, b.String()+"\n")
	}
}

// facts is a page of names and values in two columns; values that are empty are left out.
type facts struct{ rows [][2]styled }

func (f *facts) add(name string, value any) {
	v, ok := value.(styled)
	if !ok {
		v = styled{text: value.(string)}
	}
	if v.text = plain(v.text); v.text != "" {
		f.rows = append(f.rows, [2]styled{{text: name}, v})
	}
}

func (f *facts) print(o *output) {
	width := 0
	for _, r := range f.rows {
		width = max(width, utf8.RuneCountInString(r[0].text))
	}
	for _, r := range f.rows {
		pad := strings.Repeat(" ", width-utf8.RuneCountInString(r[0].text)+2)
		for i, line := range strings.Split(strings.TrimRight(r[1].text, "\n"), "\n") {
			if i > 0 {
				r[0].text, pad = strings.Repeat(" ", width), "  "
			}
			io.WriteString(o, r[0].text+pad+o.paint(styled{line, r[1].style})+"\n")
		}
	}
}

// oneLine is text for a cell.
func oneLine(text string) string {
	return strings.TrimSpace(strings.Join(strings.FieldsFunc(plain(text), func(r rune) bool { return r == '\n' || r == '\t' }), " "))
}
