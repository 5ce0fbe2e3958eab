package skill

import (
	"bytes"
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"github.com/anima-run/anima/services/loop/internal/frontmatter"
)

const (
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
func Parse(src []byte, folder string) (Skill, []frontmatter.Fault) {
	p := parser{skill: Skill{Name: folder, AutoActivate: true}}
	switch {
	case len(src) > MaxFile:
		p.fault(1, "the file has %d bytes; at most %d are allowed", len(src), MaxFile)
	case !utf8.Valid(src) || bytes.IndexByte(src, 0) >= 0:
		p.faults = frontmatter.CheckText(src)
	default:
		p.file(string(src), folder)
	}
	if len(p.faults) > 0 {
		slices.SortStableFunc(p.faults, func(a, b frontmatter.Fault) int { return cmp.Compare(a.Line, b.Line) })
		return Skill{}, p.faults[:min(len(p.faults), maxFaults)]
	}
	return p.skill, nil
}

type parser struct {
	skill  Skill
	faults []frontmatter.Fault
}

func (p *parser) fault(line int, format string, args ...any) {
	p.faults = append(p.faults, frontmatter.Fault{Line: max(line, 1), Message: fmt.Sprintf(format, args...)})
}

func (p *parser) file(text, folder string) {
	f, fault := frontmatter.Split(text)
	if fault != nil {
		p.faults = append(p.faults, *fault)
		return
	}
	if f.Present {
		p.frontmatter(f.Lines, folder)
	}
	p.skill.Instructions = cut(strings.TrimSpace(f.Body), MaxInstructions)
	if p.skill.Instructions == "" && p.skill.Description == "" {
		p.fault(1+strings.Count(text, "\n"), "the skill says nothing; write instructions in Markdown")
	}
}

func (p *parser) frontmatter(lines []string, folder string) {
	root, faults := frontmatter.Load(lines)
	if p.faults = append(p.faults, faults...); root == nil {
		return
	}
	s := &p.skill
	p.mapping("the frontmatter", root, map[string]func(string, *yaml.Node){
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
	return fmt.Appendf(nil, "---\n%s---\n\n%s\n", head, strings.TrimSpace(instructions)), nil
}
