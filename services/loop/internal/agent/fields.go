package agent

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

// field is a key of a mapping, with the function that reads its value.
type field struct {
	key      string
	required bool
	read     func(path string, n *yaml.Node)
}

func (p *parser) definition(n *yaml.Node) {
	tools := false
	p.mapping("", n, []field{
		{"name", true, func(path string, n *yaml.Node) { p.name(path, n, &p.def.Name) }},
		{"description", false, func(path string, n *yaml.Node) { p.text(path, n, MaxDescription, true, &p.def.Description) }},
		{"version", false, func(path string, n *yaml.Node) { p.text(path, spelled(n), maxLine, false, &p.def.Version) }},
		{"model", false, func(path string, n *yaml.Node) { p.text(path, n, maxLine, false, &p.def.Model) }},
		{"creator", false, p.creator},
		{"message", false, func(path string, n *yaml.Node) { p.text(path, n, MaxMessage, true, &p.def.Message) }},
		{"autonomy", false, p.truth(func(v bool) { p.def.Autonomy = v })},
		{"tools", false, func(path string, n *yaml.Node) { tools = true; p.tools(path, n) }},
		{"schedule", false, p.schedule},
		{"limits", false, p.limits},
		{"context", false, p.context},
		{"sandbox", false, p.sandbox},
	})
	if !tools {
		p.def.Tools = slices.Clone(p.known.Basic)
	}
}

// mapping reads the fields of n. Faults name the keys with path as a prefix.
func (p *parser) mapping(path string, n *yaml.Node, fields []field) {
	prefix := ""
	if path != "" {
		prefix = path + "."
	}
	if n.Kind != yaml.MappingNode {
		if path == "" {
			path = "the frontmatter"
		}
		p.fault(n.Line, "%s must be keys and values, got %s", path, describe(n))
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode {
			p.fault(key.Line, "a key must be text, got %s", describe(key))
			continue
		}
		if first, ok := seen[key.Value]; ok {
			p.fault(key.Line, "%s is given twice; it is already on line %d", clip(prefix+key.Value), first)
			continue
		}
		seen[key.Value] = key.Line
		at := slices.IndexFunc(fields, func(f field) bool { return f.key == key.Value })
		if at < 0 {
			keys := make([]string, len(fields))
			for i, f := range fields {
				keys[i] = f.key
			}
			p.fault(key.Line, "unknown key %s%s", strconv.Quote(clip(key.Value)), suggest(key.Value, keys))
			continue
		}
		if f := fields[at]; value.ShortTag() == "!!null" && value.Kind == yaml.ScalarNode {
			if f.required {
				p.fault(key.Line, "%s is empty", prefix+f.key)
			}
		} else {
			f.read(prefix+f.key, value)
		}
	}
	for _, f := range fields {
		if _, ok := seen[f.key]; f.required && !ok {
			p.fault(max(n.Line, 1), "%s is missing", prefix+f.key)
		}
	}
}

var namePattern = regexp.MustCompile(`^[A-Za-z0-9-]{1,64}$`)

func (p *parser) name(path string, n *yaml.Node, to *string) {
	if !p.text(path, n, maxName, false, to) {
		return
	}
	switch {
	case *to == "":
		p.fault(n.Line, "%s is empty", path)
	case !namePattern.MatchString(*to):
		p.fault(n.Line, "%s may have only letters, digits and -, got %s", path, strconv.Quote(clip(*to)))
	}
}

// text reads a string of at most limit characters, without leading and trailing white
// space.
func (p *parser) text(path string, n *yaml.Node, limit int, lines bool, to *string) bool {
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!str" {
		hint := ""
		if n.Kind == yaml.ScalarNode {
			hint = "; put it in quotes"
		}
		p.fault(n.Line, "%s must be text, got %s%s", path, describe(n), hint)
		return false
	}
	s := strings.TrimSpace(n.Value)
	if got := utf8.RuneCountInString(s); got > limit {
		p.fault(n.Line, "%s has %d characters; at most %d are allowed", path, got, limit)
		return false
	}
	for _, r := range s {
		if lines && (r == '\n' || r == '\t') {
			continue
		}
		if unicode.IsControl(r) || unicode.In(r, unicode.Zl, unicode.Zp) {
			p.fault(n.Line, "%s has a line break or control character (%U); remove it", path, r)
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
		p.fault(n.Line, "%s must be an address of 0x and 40 hexadecimal digits, got %s", path, strconv.Quote(clip(p.def.Creator)))
	}
}

// list calls each with every item of n.
func (p *parser) list(path string, n *yaml.Node, each func(i int, item *yaml.Node)) {
	if n.Kind != yaml.SequenceNode {
		p.fault(n.Line, "%s must be a list, got %s", path, describe(n))
		return
	}
	for i, item := range n.Content {
		each(i, item)
	}
}

// mcpPattern matches tools of MCP servers, whose names are not known when the file is
// parsed, and the wildcards for one server or all servers. [api.Grants] evaluates them.
var mcpPattern = regexp.MustCompile(`^mcp_([A-Za-z0-9_]+\*?|\*)$`)

func (p *parser) tools(path string, n *yaml.Node) {
	seen := map[string]int{}
	p.list(path, n, func(i int, item *yaml.Node) {
		var tool string
		if !p.text(path+"["+strconv.Itoa(i)+"]", item, maxLine, false, &tool) {
			return
		}
		first, twice := seen[tool]
		switch {
		case twice:
			p.fault(item.Line, "tool %s is listed twice; it is already on line %d", strconv.Quote(clip(tool)), first)
		case !slices.Contains(p.known.Tools, tool) && !mcpPattern.MatchString(tool):
			p.fault(item.Line, "unknown tool %s%s", strconv.Quote(clip(tool)), suggest(tool, p.known.Tools))
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
		p.fault(n.Line, "%s has %d entries; at most %d are allowed", path, len(n.Content), MaxSchedules)
		return
	}
	seen := map[string]int{}
	p.list(path, n, func(i int, item *yaml.Node) {
		var s Schedule
		p.mapping(path+"["+strconv.Itoa(i)+"]", item, []field{
			{"name", true, func(path string, n *yaml.Node) {
				p.name(path, n, &s.Name)
				if first, ok := seen[s.Name]; ok && s.Name != "" {
					p.fault(n.Line, "%s %s is used twice; it is already on line %d", path, strconv.Quote(clip(s.Name)), first)
					return
				}
				seen[s.Name] = n.Line
			}},
			{"cron", true, func(path string, n *yaml.Node) {
				var text string
				if !p.text(path, n, maxLine, false, &text) {
					return
				}
				var err error
				if s.Cron, err = parseCron(text); err != nil {
					p.fault(n.Line, "%s: %v", path, err)
				}
			}},
			{"reason", false, func(path string, n *yaml.Node) { p.text(path, n, maxLine, false, &s.Reason) }},
		})
		p.def.Schedule = append(p.def.Schedule, s)
	})
}

func (p *parser) limits(path string, n *yaml.Node) {
	to := &p.def.Limits
	p.mapping(path, n, []field{
		{"max_turns", false, p.number(100, func(v int) { to.MaxTurns = v })},
		{"max_tool_calls", false, p.number(10, func(v int) { to.MaxToolCalls = v })},
		{"timeout_seconds", false, p.number(3600, func(v int) { to.Timeout = time.Duration(v) * time.Second })},
		{"queue_timeout_seconds", false, p.number(3600, func(v int) { to.QueueTimeout = time.Duration(v) * time.Second })},
	})
}

func (p *parser) context(path string, n *yaml.Node) {
	to := &p.def.Context
	line := map[string]int{}
	tokens := func(key string, low int, set *int) field {
		return field{key, false, func(path string, n *yaml.Node) {
			line[key] = n.Line
			p.number(MaxTokens, func(v int) {
				if v < low {
					p.fault(n.Line, "%s must be from %d to %d, got %d", path, low, MaxTokens, v)
					return
				}
				*set = v
			})(path, n)
		}}
	}
	window := tokens("window", MinWindow, &to.Window)
	number := window.read
	window.read = func(path string, n *yaml.Node) {
		if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!int" && n.Value == "0" {
			return // means the model's own window
		}
		number(path, n)
	}
	faults := len(p.faults)
	p.mapping(path, n, []field{window, tokens("reserve", 1, &to.Reserve), tokens("flush", 1, &to.Flush)})
	if len(p.faults) > faults {
		return // the following checks would use default values
	}
	if to.Flush < to.Reserve {
		p.fault(max(line["flush"], line["reserve"]), "%s.flush is %d and %s.reserve %d: memories are written before the context is compacted, so flush must not be less", path, to.Flush, path, to.Reserve)
	}
	if to.Window != 0 && to.Window <= to.Flush {
		p.fault(max(line["window"], line["flush"]), "%s.window is %d and %s.flush %d: nothing is left for the conversation; window must be more", path, to.Window, path, to.Flush)
	}
}

func (p *parser) sandbox(path string, n *yaml.Node) {
	to := &p.def.Sandbox
	p.mapping(path, n, []field{
		{"network", false, p.truth(func(v bool) { to.Network = v })},
		{"timeout_seconds", false, p.number(600, func(v int) { to.Timeout = time.Duration(v) * time.Second })},
	})
}

// truth reads a boolean.
func (p *parser) truth(set func(bool)) func(string, *yaml.Node) {
	return func(path string, n *yaml.Node) {
		v, err := strconv.ParseBool(strings.ToLower(n.Value))
		if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!bool" || err != nil {
			p.fault(n.Line, "%s must be true or false, got %s", path, describe(n))
			return
		}
		set(v)
	}
}

// number reads an integer from 1 to high.
func (p *parser) number(high int, set func(int)) func(string, *yaml.Node) {
	return func(path string, n *yaml.Node) {
		v, err := strconv.Atoi(n.Value)
		switch {
		case n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int" || err != nil:
			p.fault(n.Line, "%s must be a whole number from 1 to %d, got %s", path, high, describe(n))
		case v < 1 || v > high:
			p.fault(n.Line, "%s must be from 1 to %d, got %d", path, high, v)
		default:
			set(v)
		}
	}
}

// describe returns a description of a value for a fault about its type.
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "keys and values"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias (*" + clip(n.Value) + "); write the value out"
	default:
	}
	value := " " + clip(n.Value)
	switch n.ShortTag() {
	case "!!null":
		return "nothing"
	case "!!int", "!!float":
		return "the number" + value
	case "!!bool":
		return "the truth value" + value
	case "!!timestamp":
		return "the date" + value
	case "!!str":
		return "the text " + strconv.Quote(clip(n.Value))
	}
	return "a value tagged " + clip(n.Tag)
}

// clip limits the length of a text that a message quotes.
func clip(s string) string {
	const most = 40
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:most]) + "…"
}
