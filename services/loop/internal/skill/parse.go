package skill

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"github.com/anima-run/anima/services/loop/internal/frontmatter"
	"github.com/anima-run/anima/services/loop/internal/sanitize"
)

const (
	maxItems = 32  // of a list
	maxItem  = 100 // characters of an item
)

var (
	binPattern = regexp.MustCompile(`^[A-Za-z0-9._-]{1,100}$`)
	envPattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,99}$`)
)

// Parse reads a SKILL.md: YAML frontmatter, then instructions in Markdown. It returns
// either the skill and no faults, or every fault, in the order of the file. Without
// frontmatter the whole file is the instructions, the name is the folder's and
// AutoActivate is true. Unknown keys are ignored, except a misspelt known key, which is a
// fault.
func Parse(src []byte, folder string) (Skill, []frontmatter.Fault) {
	p := parser{frontmatter.Reader{Lenient: true}, Skill{Name: folder, AutoActivate: true}}
	if f, ok := p.Open(src, MaxFile); ok {
		if f.Present {
			p.Root(f, p.fields(folder))
		}
		p.skill.Instructions = sanitize.First(strings.TrimSpace(f.Body), MaxInstructions)
		if p.skill.Instructions == "" && p.skill.Description == "" {
			p.Fault(1+bytes.Count(src, []byte("\n")), "the skill has no instructions; write them in Markdown after the frontmatter")
		}
	}
	if faults := p.Faults(); len(faults) > 0 {
		return Skill{}, faults
	}
	return p.skill, nil
}

type parser struct {
	frontmatter.Reader
	skill Skill
}

func (p *parser) fields(folder string) []frontmatter.Field {
	s := &p.skill
	return []frontmatter.Field{
		{Key: "name", Read: func(path string, n *yaml.Node) {
			switch ok := p.Text(path, n, &s.Name); {
			case !ok:
			case checkName(s.Name) != nil:
				p.Fault(n.Line, "name may have 1 to 64 letters, digits and -, got %s", frontmatter.Quoted(s.Name))
			case s.Name != folder:
				p.Fault(n.Line, "name is %s and the folder is %s; they must be the same", s.Name, folder)
			}
		}},
		{Key: "description", Read: func(path string, n *yaml.Node) {
			p.Text(path, n, &s.Description) // an error is a fault already
			s.Description = sanitize.First(s.Description, MaxDescription)
		}},
		{Key: "auto-activate", Read: p.Bool(&s.AutoActivate)},
		{Key: "requires", Read: func(path string, n *yaml.Node) {
			p.Mapping(path, n, []frontmatter.Field{
				{Key: "bins", Read: func(_ string, n *yaml.Node) { s.Bins = p.list("bins", n, binPattern, "letters, digits, ., _ and -") }},
				{Key: "env", Read: func(_ string, n *yaml.Node) { s.Env = p.list("env", n, envPattern, "letters, digits and _") }},
			})
		}},
		{Key: "triggers", Read: func(path string, n *yaml.Node) { s.Triggers = p.list(path, n, nil, "") }},
	}
}

// list reads a list of strings that match a pattern.
func (p *parser) list(key string, n *yaml.Node, pattern *regexp.Regexp, of string) []string {
	if n.Kind != yaml.SequenceNode || len(n.Content) > maxItems {
		p.Fault(n.Line, "%s must be a list of at most %d texts", key, maxItems)
		return nil
	}
	var all []string
	for _, item := range n.Content {
		var s string
		switch {
		case !p.Text(key, item, &s):
		case s == "" || utf8.RuneCountInString(s) > maxItem || strings.ContainsFunc(s, unicode.IsControl):
			p.Fault(item.Line, "an item of %s is 1 to %d characters on one line", key, maxItem)
		case pattern != nil && !pattern.MatchString(s):
			p.Fault(item.Line, "an item of %s may have %s, got %s", key, of, frontmatter.Quoted(s))
		default:
			all = append(all, s)
		}
	}
	return all
}

// render writes a skill of the agent as a SKILL.md that Parse can read.
func render(name, description, instructions string) ([]byte, error) {
	head, err := yaml.Dump(struct {
		Name        string `yaml:"name"`
		Description string `yaml:"description"`
	}{name, description})
	if err != nil {
		return nil, fmt.Errorf("write the frontmatter: %w", err)
	}
	return fmt.Appendf(nil, "---\n%s---\n\n%s\n", head, strings.TrimSpace(instructions)), nil
}
