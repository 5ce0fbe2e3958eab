package agent

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/anima-run/anima/services/loop/internal/frontmatter"
)

// Parse parses an AGENT.md. It returns a valid definition and no faults, or the zero
// definition and all faults, sorted by line. Invalid YAML yields one fault, because the
// values cannot be checked then. Parse is safe for concurrent use.
func Parse(src []byte, known Known) (Definition, []frontmatter.Fault) {
	if len(src) > MaxFile {
		return Definition{}, []frontmatter.Fault{{Line: 1, Message: fmt.Sprintf("the file has %d bytes; at most %d are allowed", len(src), MaxFile)}}
	}
	if faults := frontmatter.CheckText(src); len(faults) > 0 {
		return Definition{}, sorted(faults)
	}
	file, fault := frontmatter.Split(string(src))
	switch {
	case fault != nil:
		return Definition{}, []frontmatter.Fault{*fault}
	case !file.Present:
		return Definition{}, []frontmatter.Fault{{Line: 1, Message: "missing frontmatter: the first line must be ---"}}
	}
	p := parser{known: known}
	p.def.Limits = DefaultLimits()
	p.def.Context = DefaultContext()
	p.def.Sandbox = DefaultSandbox()
	root, faults := frontmatter.Load(file.Lines)
	if p.faults = faults; root != nil {
		p.definition(root)
	}
	p.body(file.Body, file.Closing)
	if len(p.faults) > 0 {
		return Definition{}, sorted(p.faults)
	}
	return p.def, nil
}

type parser struct {
	known  Known
	def    Definition
	faults []frontmatter.Fault
}

func (p *parser) fault(line int, format string, args ...any) {
	p.faults = append(p.faults, frontmatter.Fault{Line: line, Message: fmt.Sprintf(format, args...)})
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
