package agent

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

// Parse parses an AGENT.md. It returns a valid definition and no faults, or the zero
// definition and all faults, sorted by line. Invalid YAML yields one fault, because the
// values cannot be checked then. Parse is safe for concurrent use.
func Parse(src []byte, known Known) (Definition, []Fault) {
	if len(src) > MaxFile {
		return Definition{}, []Fault{{1, fmt.Sprintf("the file has %d bytes; at most %d are allowed", len(src), MaxFile)}}
	}
	if faults := checkText(src); len(faults) > 0 {
		return Definition{}, sorted(faults)
	}
	text := strings.TrimPrefix(string(src), "\ufeff")
	text = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(text)
	lines := strings.Split(text, "\n")

	closing, fault := fences(lines)
	if fault != nil {
		return Definition{}, []Fault{*fault}
	}
	p := parser{known: known}
	p.def.Limits = DefaultLimits()
	p.def.Context = DefaultContext()
	p.def.Sandbox = DefaultSandbox()
	p.frontmatter(lines[1:closing])
	p.body(strings.Join(lines[closing+1:], "\n"), closing+1)
	if len(p.faults) > 0 {
		return Definition{}, sorted(p.faults)
	}
	return p.def, nil
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

// fences returns the index of the line that closes the frontmatter.
func fences(lines []string) (int, *Fault) {
	if strings.TrimRight(lines[0], " \t") != fence {
		return 0, &Fault{1, "missing frontmatter: the first line must be ---"}
	}
	for i := 1; i < len(lines); i++ {
		if strings.TrimRight(lines[i], " \t") == fence {
			return i, nil
		}
	}
	return 0, &Fault{1, "the frontmatter opened here is not closed; add a line --- before the Markdown"}
}

type parser struct {
	known  Known
	def    Definition
	faults []Fault
}

func (p *parser) fault(line int, format string, args ...any) {
	p.faults = append(p.faults, Fault{line, fmt.Sprintf(format, args...)})
}

// frontmatter parses the lines between the fences. The first one is line 2 of the file.
func (p *parser) frontmatter(lines []string) {
	for i, line := range lines {
		// For these errors the YAML library reports no line.
		if strings.ContainsFunc(line, func(r rune) bool { return unicode.IsControl(r) && r != '\t' }) {
			p.fault(i+2, "a control character; remove it")
			return
		}
	}
	// The empty line takes the place of the opening fence, so that line numbers agree.
	var doc yaml.Node
	err := yaml.Load([]byte("\n"+strings.Join(lines, "\n")), &doc)
	switch {
	case err != nil && blank(lines):
		p.definition(&yaml.Node{Kind: yaml.MappingNode, Line: 1})
	case err != nil:
		p.syntax(lines, err)
	default:
		p.definition(doc.Content[0])
	}
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

// syntax reports the faults of a frontmatter that is not valid YAML.
func (p *parser) syntax(lines []string, err error) {
	tabs := false
	for i, line := range lines {
		if strings.Contains(line[:len(line)-len(strings.TrimLeft(line, " \t"))], "\t") {
			p.fault(i+2, "a tab in the indentation; YAML requires spaces")
			tabs = true
		}
	}
	if tabs {
		return // usually the only cause; other errors follow from it
	}
	var load *yaml.LoadError
	if !errors.As(err, &load) {
		p.fault(1, "the frontmatter is not YAML: %v", err)
		return
	}
	line := load.Mark.Line
	switch load.ContextMsg {
	case "while scanning a quoted scalar", "while parsing a flow sequence", "while parsing a flow mapping", "while scanning a simple key":
		line = load.ContextMark.Line // where the construct was opened, not where the text ended
	}
	line = min(line, len(lines)+1) // the end of the text is the closing fence, which is correct
	message := strings.TrimPrefix(load.Message, "yaml: ")
	if hint, ok := yamlHint(message); ok {
		message += "; " + hint
	}
	p.fault(max(line, 1), "the frontmatter is not YAML: %s", message)
}

// yamlHint returns advice for a frequent mistake.
func yamlHint(message string) (string, bool) {
	switch message {
	case "mapping values are not allowed in this context":
		return `put text that has ": " in it in quotes, and check the indentation`, true
	case "found character that cannot start any token":
		return "put text that starts with a sign in quotes", true
	case "found unexpected end of stream":
		return "close the quotes opened here", true
	case "could not find expected ':'":
		return "each line is a key, a colon and a value", true
	case "did not find expected key":
		return "check the indentation", true
	case "did not find expected ',' or ']'", "did not find expected ',' or '}'":
		return "close the bracket opened here", true
	case "expected single document, found multiple":
		return "remove the line ...", true
	}
	return "", false
}

// body reads the Markdown. after is the line of the closing fence.
func (p *parser) body(text string, after int) {
	text = strings.TrimSpace(text)
	switch n := utf8.RuneCountInString(text); {
	case n == 0:
		p.fault(after, "the Markdown after the frontmatter is empty; write the genesis prompt there")
	case n > MaxBody:
		p.fault(after+1, "the genesis prompt has %d characters; at most %d are allowed", n, MaxBody)
	}
	p.def.Body = text
}
