package agent

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/anima-run/anima/services/loop/internal/frontmatter"
)

// Parse parses an AGENT.md. It returns a valid definition and no faults, or the zero
// definition and all faults, sorted by line. Invalid YAML yields one fault, because the
// values cannot be checked then. Parse is safe for concurrent use.
func Parse(src []byte, known Known) (Definition, []frontmatter.Fault) {
	p := parser{known: known, def: Definition{
		Tools: slices.Clone(known.Basic), Limits: DefaultLimits(), Context: DefaultContext(), Sandbox: DefaultSandbox(),
	}}
	if file, ok := p.Open(src, MaxFile); ok && file.Present {
		p.Root(file, p.fields())
		p.body(file.Body, file.Closing)
	} else if ok {
		p.Fault(1, "missing frontmatter: the first line must be ---")
	}
	if faults := p.Faults(); len(faults) > 0 {
		return Definition{}, faults
	}
	return p.def, nil
}

type parser struct {
	frontmatter.Reader
	known Known
	def   Definition
}

// body reads the Markdown. after is the line of the closing fence.
func (p *parser) body(text string, after int) {
	text = strings.TrimSpace(text)
	switch n := utf8.RuneCountInString(text); {
	case n == 0:
		p.Fault(after, "the Markdown after the frontmatter is empty; write the genesis prompt there")
	case n > MaxBody:
		p.Fault(after+1, "the genesis prompt has %d characters; at most %d are allowed", n, MaxBody)
	}
	p.def.Body = text
}
