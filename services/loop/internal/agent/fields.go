package agent

import (
	"regexp"
	"slices"
	"strconv"
	"time"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"github.com/anima-run/anima/services/loop/internal/frontmatter"
)

// reader reads the value of a key, whose path is its name in faults.
type reader = func(path string, n *yaml.Node)

func (p *parser) fields() []frontmatter.Field {
	return []frontmatter.Field{
		{Key: "name", Required: true, Read: p.name(&p.def.Name)},
		{Key: "description", Read: p.lines(MaxDescription, &p.def.Description)},
		{Key: "version", Read: func(path string, n *yaml.Node) { p.line(&p.def.Version)(path, spelled(n)) }},
		{Key: "model", Read: p.line(&p.def.Model)},
		{Key: "creator", Read: p.creator},
		{Key: "message", Read: p.lines(MaxMessage, &p.def.Message)},
		{Key: "autonomy", Read: p.Bool(&p.def.Autonomy)},
		{Key: "tools", Read: p.tools},
		{Key: "schedule", Read: p.schedule},
		{Key: "limits", Read: p.limits},
		{Key: "context", Read: p.context},
		{Key: "sandbox", Read: p.sandbox},
	}
}

var namePattern = regexp.MustCompile(`^[A-Za-z0-9-]{1,64}$`)

func (p *parser) name(to *string) reader {
	return func(path string, n *yaml.Node) {
		switch ok := p.text(path, n, maxName, false, to); {
		case !ok:
		case *to == "":
			p.Fault(n.Line, "%s is empty", path)
		case !namePattern.MatchString(*to):
			p.Fault(n.Line, "%s may have only letters, digits and -, got %s", path, frontmatter.Quoted(*to))
		}
	}
}

func (p *parser) line(to *string) reader {
	return func(path string, n *yaml.Node) { p.text(path, n, maxLine, false, to) }
}

func (p *parser) lines(limit int, to *string) reader {
	return func(path string, n *yaml.Node) { p.text(path, n, limit, true, to) }
}

// text reads a string of at most limit characters, with several lines only if lines.
func (p *parser) text(path string, n *yaml.Node, limit int, lines bool, to *string) bool {
	var s string
	if !p.Text(path, n, &s) {
		return false
	}
	if got := utf8.RuneCountInString(s); got > limit {
		p.Fault(n.Line, "%s has %d characters; at most %d are allowed", path, got, limit)
		return false
	}
	for _, r := range s {
		if lines && (r == '\n' || r == '\t') {
			continue
		}
		if unicode.IsControl(r) || unicode.In(r, unicode.Zl, unicode.Zp) {
			p.Fault(n.Line, "%s has a line break or control character (%U); remove it", path, r)
			return false
		}
	}
	*to = s
	return true
}

// spelled returns a number as the text that it was written as: in YAML, version 1.0 and
// an address without quotes are numbers.
func spelled(n *yaml.Node) *yaml.Node {
	if tag := n.ShortTag(); n.Kind == yaml.ScalarNode && (tag == "!!int" || tag == "!!float") {
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: n.Value, Line: n.Line}
	}
	return n
}

var addressPattern = regexp.MustCompile(`^0x[0-9A-Fa-f]{40}$`)

func (p *parser) creator(path string, n *yaml.Node) {
	if p.text(path, spelled(n), maxLine, false, &p.def.Creator) && !addressPattern.MatchString(p.def.Creator) {
		p.Fault(n.Line, "%s must be an address of 0x and 40 hexadecimal digits, got %s", path, frontmatter.Quoted(p.def.Creator))
	}
}

// mcpPattern matches tools of MCP servers, whose names are not known when the file is
// parsed, and the wildcards for one server or all servers. [api.Grants] evaluates them.
var mcpPattern = regexp.MustCompile(`^mcp_([A-Za-z0-9_]+\*?|\*)$`)

func (p *parser) tools(path string, n *yaml.Node) {
	p.def.Tools = nil
	seen := map[string]int{}
	p.List(path, n, func(i int, item *yaml.Node) {
		var tool string
		if !p.text(path+"["+strconv.Itoa(i)+"]", item, maxLine, false, &tool) {
			return
		}
		first, twice := seen[tool]
		switch {
		case twice:
			p.Fault(item.Line, "tool %s is listed twice; it is already on line %d", frontmatter.Quoted(tool), first)
		case !slices.Contains(p.known.Tools, tool) && !mcpPattern.MatchString(tool):
			p.Fault(item.Line, "unknown tool %s%s", frontmatter.Quoted(tool), frontmatter.Suggest(tool, p.known.Tools))
		default:
			p.def.Tools = append(p.def.Tools, tool)
		}
		if !twice {
			seen[tool] = item.Line
		}
	})
}

func (p *parser) schedule(path string, n *yaml.Node) {
	if n.Kind == yaml.SequenceNode && len(n.Content) > MaxSchedules {
		p.Fault(n.Line, "%s has %d entries; at most %d are allowed", path, len(n.Content), MaxSchedules)
		return
	}
	seen := map[string]int{}
	p.List(path, n, func(i int, item *yaml.Node) {
		var s Schedule
		p.Mapping(path+"["+strconv.Itoa(i)+"]", item, []frontmatter.Field{
			{Key: "name", Required: true, Read: func(path string, n *yaml.Node) {
				p.name(&s.Name)(path, n)
				if first, ok := seen[s.Name]; ok && s.Name != "" {
					p.Fault(n.Line, "%s %s is used twice; it is already on line %d", path, frontmatter.Quoted(s.Name), first)
					return
				}
				seen[s.Name] = n.Line
			}},
			{Key: "cron", Required: true, Read: func(path string, n *yaml.Node) {
				var text string
				if !p.text(path, n, maxLine, false, &text) {
					return
				}
				var err error
				if s.Cron, err = parseCron(text); err != nil {
					p.Fault(n.Line, "%s: %v", path, err)
				}
			}},
			{Key: "reason", Read: p.line(&s.Reason)},
		})
		p.def.Schedule = append(p.def.Schedule, s)
	})
}

func (p *parser) limits(path string, n *yaml.Node) {
	to := &p.def.Limits
	p.Mapping(path, n, []frontmatter.Field{
		{Key: "max_turns", Read: p.Int(1, 100, &to.MaxTurns)},
		{Key: "max_tool_calls", Read: p.Int(1, 10, &to.MaxToolCalls)},
		{Key: "timeout_seconds", Read: p.seconds(3600, &to.Timeout)},
		{Key: "queue_timeout_seconds", Read: p.seconds(3600, &to.QueueTimeout)},
	})
}

func (p *parser) context(path string, n *yaml.Node) {
	to := &p.def.Context
	line := map[string]int{}
	tokens := func(key string, low int, to *int) frontmatter.Field {
		return frontmatter.Field{Key: key, Read: func(path string, n *yaml.Node) {
			line[key] = n.Line
			if low == MinWindow && n.ShortTag() == "!!int" && n.Value == "0" {
				return // means the model's own window
			}
			p.Int(low, MaxTokens, to)(path, n)
		}}
	}
	if !p.Mapping(path, n, []frontmatter.Field{tokens("window", MinWindow, &to.Window), tokens("reserve", 1, &to.Reserve), tokens("flush", 1, &to.Flush)}) {
		return // the following checks would use default values
	}
	if to.Flush < to.Reserve {
		p.Fault(max(line["flush"], line["reserve"]), "%s.flush is %d and %s.reserve %d: memories are written before the context is compacted, so flush must not be less", path, to.Flush, path, to.Reserve)
	}
	if to.Window != 0 && to.Window <= to.Flush {
		p.Fault(max(line["window"], line["flush"]), "%s.window is %d and %s.flush %d: nothing is left for the conversation; window must be more", path, to.Window, path, to.Flush)
	}
}

func (p *parser) sandbox(path string, n *yaml.Node) {
	to := &p.def.Sandbox
	p.Mapping(path, n, []frontmatter.Field{
		{Key: "network", Read: p.Bool(&to.Network)},
		{Key: "timeout_seconds", Read: p.seconds(600, &to.Timeout)},
	})
}

func (p *parser) seconds(high int, to *time.Duration) reader {
	return func(path string, n *yaml.Node) {
		seconds := int(*to / time.Second) // kept if the value has a fault
		p.Int(1, high, &seconds)(path, n)
		*to = time.Duration(seconds) * time.Second
	}
}
