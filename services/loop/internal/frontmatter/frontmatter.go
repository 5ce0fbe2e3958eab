// Package frontmatter reads the YAML frontmatter of Markdown files that people and models
// write: AGENT.md, SKILL.md and SOUL.md. It reports faults by their line in the file. It
// must not decide which keys a file may have.
package frontmatter

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

const fence = "---"

// Fault is an error in a file.
type Fault struct {
	Line    int // line of the file, from 1
	Message string
}

// String returns the fault as text, as in "line 4: name is empty".
func (f Fault) String() string {
	return fmt.Sprintf("line %d: %s", f.Line, f.Message)
}

// File is a file that is divided at its fences.
type File struct {
	Present bool     // the first line opens a frontmatter
	Lines   []string // of the frontmatter, from line 2 of the file
	Body    string   // Markdown after the frontmatter; the whole text if there is none
	Closing int      // line of the closing fence, from 1; 0: there is no frontmatter
}

// Split divides a text at its fences, after it has removed a byte order mark and made all
// line ends \n. It returns a fault if the frontmatter is not closed.
func Split(text string) (File, *Fault) {
	text = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(strings.TrimPrefix(text, "\ufeff"))
	lines := strings.Split(text, "\n")
	if strings.TrimRight(lines[0], " \t") != fence {
		return File{Body: text}, nil
	}
	for i := 1; i < len(lines); i++ {
		if strings.TrimRight(lines[i], " \t") == fence {
			return File{true, lines[1:i], strings.Join(lines[i+1:], "\n"), i + 1}, nil
		}
	}
	return File{}, &Fault{1, "the frontmatter opened here is not closed; add a line --- before the Markdown"}
}

// checkText returns the faults of a file that is not text.
func checkText(src []byte) []Fault {
	var faults []Fault
	for i, line := range bytes.Split(src, []byte("\n")) {
		if !utf8.Valid(line) {
			faults = append(faults, Fault{i + 1, "not valid UTF-8; save the file as UTF-8"})
		}
		if bytes.IndexByte(line, 0) >= 0 {
			faults = append(faults, Fault{i + 1, "a NUL byte; remove it"})
		}
	}
	return faults
}

// Load parses the lines of a frontmatter. The lines of nodes and faults are those of the
// file. The node is an empty mapping if the lines are blank, and nil if there are faults.
func Load(lines []string) (*yaml.Node, []Fault) {
	for i, line := range lines {
		// For these errors the YAML library reports no line.
		if strings.ContainsFunc(line, func(r rune) bool { return unicode.IsControl(r) && r != '\t' }) {
			return nil, []Fault{{i + 2, "a control character; remove it"}}
		}
	}
	// The empty line takes the place of the opening fence, so that line numbers agree.
	var doc yaml.Node
	err := yaml.Load([]byte("\n"+strings.Join(lines, "\n")), &doc)
	switch {
	case err != nil && blank(lines):
		return &yaml.Node{Kind: yaml.MappingNode, Line: 1}, nil
	case err != nil:
		return nil, syntax(lines, err)
	}
	return doc.Content[0], nil
}

// blank reports whether the lines contain only white space and comments.
func blank(lines []string) bool {
	for _, line := range lines {
		if s := strings.TrimSpace(line); s != "" && !strings.HasPrefix(s, "#") {
			return false
		}
	}
	return true
}

// syntax returns the faults of a frontmatter that is not valid YAML.
func syntax(lines []string, err error) (faults []Fault) {
	tabs := false
	for i, line := range lines {
		if strings.Contains(line[:len(line)-len(strings.TrimLeft(line, " \t"))], "\t") {
			faults = append(faults, Fault{i + 2, "a tab in the indentation; YAML requires spaces"})
			tabs = true
		}
	}
	if tabs {
		return faults // usually the only cause; other errors follow from it
	}
	var load *yaml.LoadError
	if !errors.As(err, &load) {
		return []Fault{{1, fmt.Sprintf("the frontmatter is not YAML: %v", err)}}
	}
	line := load.Mark.Line
	switch load.ContextMsg {
	case "while scanning a quoted scalar", "while parsing a flow sequence", "while parsing a flow mapping", "while scanning a simple key":
		line = load.ContextMark.Line // where the construct was opened, not where the text ended
	}
	line = min(line, len(lines)+1) // the end of the text is the closing fence, which is correct
	message := strings.TrimPrefix(load.Message, "yaml: ")
	if hint := yamlHints()[message]; hint != "" {
		message += "; " + hint
	}
	return []Fault{{max(line, 1), "the frontmatter is not YAML: " + message}}
}

// yamlHints returns advice for frequent mistakes, by the library's message.
func yamlHints() map[string]string {
	return map[string]string{
		"mapping values are not allowed in this context": `put text that has ": " in it in quotes, and check the indentation`,
		"found character that cannot start any token":    "put text that starts with a sign in quotes",
		"found unexpected end of stream":                 "close the quotes opened here",
		"could not find expected ':'":                    "each line is a key, a colon and a value",
		"did not find expected key":                      "check the indentation",
		"did not find expected ',' or ']'":               "close the bracket opened here",
		"did not find expected ',' or '}'":               "close the bracket opened here",
		"expected single document, found multiple":       "remove the line ...",
	}
}
