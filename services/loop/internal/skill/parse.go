package skill

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"github.com/anima-run/anima/services/loop/internal/agent"
)

const (
	fence     = "---"
	maxItems  = 32  // of a list
	maxItem   = 100 // characters of an item
	maxFaults = 100
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
func Parse(src []byte, folder string) (Skill, []agent.Fault) {
	p := parser{skill: Skill{Name: folder, AutoActivate: true}}
	switch {
	case len(src) > MaxFile:
		p.fault(1, "the file has %d bytes; at most %d are allowed", len(src), MaxFile)
	case !utf8.Valid(src) || bytes.IndexByte(src, 0) >= 0:
		for i, line := range bytes.Split(src, []byte("\n")) {
			if !utf8.Valid(line) || bytes.IndexByte(line, 0) >= 0 {
				p.fault(i+1, "not UTF-8 text; save the file as UTF-8")
			}
		}
	default:
		p.file(string(src), folder)
	}
	if len(p.faults) > 0 {
		slices.SortStableFunc(p.faults, func(a, b agent.Fault) int { return cmp.Compare(a.Line, b.Line) })
		return Skill{}, p.faults[:min(len(p.faults), maxFaults)]
	}
	return p.skill, nil
}

type parser struct {
	skill  Skill
	faults []agent.Fault
}

func (p *parser) fault(line int, format string, args ...any) {
	p.faults = append(p.faults, agent.Fault{Line: max(line, 1), Message: fmt.Sprintf(format, args...)})
}

func (p *parser) file(text, folder string) {
	text = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(strings.TrimPrefix(text, "\ufeff"))
	lines := strings.Split(text, "\n")
	if strings.TrimRight(lines[0], " \t") == fence {
		closing := slices.IndexFunc(lines[1:], func(l string) bool { return strings.TrimRight(l, " \t") == fence }) + 1
		if closing == 0 {
			p.fault(1, "the frontmatter opened here is not closed; add a line --- before the Markdown")
			return
		}
		p.frontmatter(lines[1:closing], folder)
		text = strings.Join(lines[closing+1:], "\n")
	}
	p.skill.Instructions = cut(strings.TrimSpace(text), MaxInstructions)
	if p.skill.Instructions == "" && p.skill.Description == "" {
		p.fault(len(lines), "the skill says nothing; write instructions in Markdown")
	}
}

// frontmatter reads the lines between the fences; the first is line 2.
func (p *parser) frontmatter(lines []string, folder string) {
	for i, line := range lines {
		// yaml reports no line for these.
		if strings.ContainsFunc(line, func(r rune) bool { return unicode.IsControl(r) && r != '\t' }) {
			p.fault(i+2, "a control character; remove it")
			return
		}
	}
	// The empty line stands for the opening fence, so that yaml's line numbers are the
	// file's.
	var doc yaml.Node
	err := yaml.Load([]byte("\n"+strings.Join(lines, "\n")), &doc)
	blank := !slices.ContainsFunc(lines, func(l string) bool { l = strings.TrimSpace(l); return l != "" && l[0] != '#' })
	switch {
	case err != nil && blank:
	case err != nil:
		line, message := 1, err.Error()
		if load, ok := errors.AsType[*yaml.LoadError](err); ok {
			line, message = min(load.Mark.Line, len(lines)+1), load.Message
		}
		p.fault(line, "the frontmatter is not YAML: %s", strings.TrimPrefix(message, "yaml: "))
	case len(doc.Content) == 1:
		s := &p.skill
		p.mapping("the frontmatter", doc.Content[0], map[string]func(string, *yaml.Node){
			"name": func(key string, n *yaml.Node) {
				switch ok := p.text(key, n, &s.Name); {
				case !ok:
				case checkName(s.Name) != nil:
					p.fault(n.Line, "name may have 1 to 64 letters, digits and -, got %s", clip(s.Name))
				case s.Name != folder:
					p.fault(n.Line, "name is %s and the folder is %s; they must be the same", s.Name, folder)
				}
			},
			"description": func(key string, n *yaml.Node) {
				p.text(key, n, &s.Description) // an error is a fault already
				s.Description = cut(s.Description, MaxDescription)
			},
			"auto-activate": func(key string, n *yaml.Node) {
				v, err := strconv.ParseBool(strings.ToLower(n.Value))
				if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!bool" || err != nil {
					p.fault(n.Line, "%s must be true or false", key)
				}
				s.AutoActivate = v
			},
			"requires": func(key string, n *yaml.Node) {
				p.mapping(key, n, map[string]func(string, *yaml.Node){
					"bins": func(key string, n *yaml.Node) { s.Bins = p.list(key, n, binPattern, "letters, digits, ., _ and -") },
					"env":  func(key string, n *yaml.Node) { s.Env = p.list(key, n, envPattern, "letters, digits and _") },
				})
			},
			"triggers": func(key string, n *yaml.Node) { s.Triggers = p.list(key, n, nil, "") },
		})
	}
}

// mapping reads the known keys of n.
func (p *parser) mapping(what string, n *yaml.Node, known map[string]func(string, *yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		p.fault(n.Line, "%s must be keys and values", what)
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode {
			p.fault(key.Line, "a key must be text")
			continue
		}
		if first, twice := seen[key.Value]; twice {
			p.fault(key.Line, "%s is given twice; it is already on line %d", clip(key.Value), first)
			continue
		}
		seen[key.Value] = key.Line
		plain := strings.ToLower(strings.ReplaceAll(key.Value, "_", "-"))
		switch read, ok := known[key.Value]; {
		case ok && value.Kind == yaml.ScalarNode && value.ShortTag() == "!!null": // as if the key were missing
		case ok:
			read(key.Value, value)
		case known[plain] != nil:
			p.fault(key.Line, "unknown key %s; did you mean %q?", clip(key.Value), plain)
		}
	}
}

// text reads a string and trims it.
func (p *parser) text(key string, n *yaml.Node, to *string) bool {
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!str" {
		p.fault(n.Line, "%s must be text; put it in quotes", key)
		return false
	}
	*to = strings.TrimSpace(n.Value)
	return true
}

// list reads a list of strings that match a pattern.
func (p *parser) list(key string, n *yaml.Node, pattern *regexp.Regexp, of string) []string {
	if n.Kind != yaml.SequenceNode || len(n.Content) > maxItems {
		p.fault(n.Line, "%s must be a list of at most %d texts", key, maxItems)
		return nil
	}
	var all []string
	for _, item := range n.Content {
		var s string
		switch {
		case !p.text(key, item, &s):
		case s == "" || utf8.RuneCountInString(s) > maxItem || strings.ContainsFunc(s, unicode.IsControl):
			p.fault(item.Line, "an item of %s is 1 to %d characters on one line", key, maxItem)
		case pattern != nil && !pattern.MatchString(s):
			p.fault(item.Line, "an item of %s may have %s, got %s", key, of, clip(s))
		default:
			all = append(all, s)
		}
	}
	return all
}

// clip quotes and shortens a value of the file for a message.
func clip(s string) string { return strconv.Quote(cut(s, 40)) }

// cut returns the first n characters of a text.
func cut(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n])
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
	return fmt.Appendf(nil, "%s\n%s%s\n\n%s\n", fence, head, fence, strings.TrimSpace(instructions)), nil
}
