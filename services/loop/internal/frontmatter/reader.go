package frontmatter

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"github.com/anima-run/anima/pkg/spelling"

	"github.com/anima-run/anima/services/loop/internal/sanitize"
)

// maxFaults limits the size of a message that contains the faults.
const maxFaults = 100

// Reader reads the values of a file and collects their faults. The paths that its methods
// take name the value in faults, as in "limits.max_turns".
type Reader struct {
	Lenient bool // unknown keys are ignored, except known ones with _ for - or upper-case letters
	faults  []Fault
}

// Field is a key of a mapping, with the function that reads its value.
type Field struct {
	Key      string
	Required bool
	Read     func(path string, n *yaml.Node)
}

// Open checks that a file is text of at most max bytes and divides it at its fences. ok
// is false if there are faults.
func (r *Reader) Open(src []byte, max int) (f File, ok bool) {
	if len(src) > max {
		r.Fault(1, "the file has %d bytes; at most %d are allowed", len(src), max)
		return f, false
	}
	if !utf8.Valid(src) || bytes.IndexByte(src, 0) >= 0 {
		r.faults = checkText(src)
		return f, false
	}
	f, fault := Split(string(src))
	if fault != nil {
		r.faults = append(r.faults, *fault)
	}
	return f, fault == nil
}

// Root reads the frontmatter of a file.
func (r *Reader) Root(f File, fields []Field) {
	root, faults := Load(f.Lines)
	if r.faults = append(r.faults, faults...); root != nil {
		r.Mapping("", root, fields)
	}
}

// Fault adds a fault.
func (r *Reader) Fault(line int, format string, args ...any) {
	r.faults = append(r.faults, Fault{max(line, 1), fmt.Sprintf(format, args...)})
}

// Faults returns the faults sorted by line, at most 100 with a note of how many are
// omitted.
func (r *Reader) Faults() []Fault {
	slices.SortStableFunc(r.faults, func(a, b Fault) int { return cmp.Compare(a.Line, b.Line) })
	if more := len(r.faults) - maxFaults; more > 0 {
		last := Fault{r.faults[maxFaults-1].Line, fmt.Sprintf("%d more faults follow; fix these first", more)}
		return append(slices.Clip(r.faults[:maxFaults]), last)
	}
	return r.faults
}

// Mapping reads the fields of n and reports whether it has no faults. The path of the
// frontmatter itself is "".
func (r *Reader) Mapping(path string, n *yaml.Node, fields []Field) bool {
	before := len(r.faults)
	if n.Kind != yaml.MappingNode {
		r.Fault(n.Line, "%s must be keys and values, got %s", cmp.Or(path, "the frontmatter"), describe(n))
		return false
	}
	prefix := ""
	if path != "" {
		prefix = path + "."
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode {
			r.Fault(key.Line, "a key must be text, got %s", describe(key))
			continue
		}
		if first, ok := seen[key.Value]; ok {
			r.Fault(key.Line, "%s is given twice; it is already on line %d", Clip(prefix+key.Value), first)
			continue
		}
		seen[key.Value] = key.Line
		at := slices.IndexFunc(fields, func(f Field) bool { return f.Key == key.Value })
		switch null := value.ShortTag() == "!!null" && value.Kind == yaml.ScalarNode; {
		case at < 0:
			r.unknown(key, fields)
		case !null:
			fields[at].Read(prefix+key.Value, value)
		case fields[at].Required:
			r.Fault(key.Line, "%s is empty", prefix+key.Value)
		}
	}
	for _, f := range fields {
		if _, ok := seen[f.Key]; f.Required && !ok {
			r.Fault(n.Line, "%s is missing", prefix+f.Key)
		}
	}
	return len(r.faults) == before
}

func (r *Reader) unknown(key *yaml.Node, fields []Field) {
	var known []string
	for _, f := range fields {
		known = append(known, f.Key)
	}
	hint := Suggest(key.Value, known)
	if r.Lenient {
		plain := strings.ToLower(strings.ReplaceAll(key.Value, "_", "-"))
		if !slices.Contains(known, plain) {
			return
		}
		hint = didYouMean(plain)
	}
	r.Fault(key.Line, "unknown key %s%s", Quoted(key.Value), hint)
}

// Text reads a string, without leading and trailing white space.
func (r *Reader) Text(path string, n *yaml.Node, to *string) bool {
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!str" {
		*to = strings.TrimSpace(n.Value)
		return true
	}
	hint := ""
	if n.Kind == yaml.ScalarNode {
		hint = "; put it in quotes"
	}
	r.Fault(n.Line, "%s must be text, got %s%s", path, describe(n), hint)
	return false
}

// List calls each with every item of n.
func (r *Reader) List(path string, n *yaml.Node, each func(i int, item *yaml.Node)) {
	if n.Kind != yaml.SequenceNode {
		r.Fault(n.Line, "%s must be a list, got %s", path, describe(n))
		return
	}
	for i, item := range n.Content {
		each(i, item)
	}
}

// Bool returns a function that reads a boolean.
func (r *Reader) Bool(to *bool) func(path string, n *yaml.Node) {
	return func(path string, n *yaml.Node) {
		v, err := strconv.ParseBool(strings.ToLower(n.Value))
		if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!bool" || err != nil {
			r.Fault(n.Line, "%s must be true or false, got %s", path, describe(n))
			return
		}
		*to = v
	}
}

// Int returns a function that reads an integer from low to high.
func (r *Reader) Int(low, high int, to *int) func(path string, n *yaml.Node) {
	return func(path string, n *yaml.Node) {
		v, err := strconv.Atoi(n.Value)
		switch {
		case n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int" || err != nil:
			r.Fault(n.Line, "%s must be a whole number from %d to %d, got %s", path, low, high, describe(n))
		case v < low || v > high:
			r.Fault(n.Line, "%s must be from %d to %d, got %d", path, low, high, v)
		default:
			*to = v
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
		return "an alias (*" + Clip(n.Value) + "); write the value out"
	default:
	}
	value := " " + Clip(n.Value)
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
		return "the text " + Quoted(n.Value)
	}
	return "a value tagged " + Clip(n.Tag)
}

// Quoted quotes a text of the file for a message, and limits its length.
func Quoted(s string) string { return strconv.Quote(Clip(s)) }

// Clip limits the length of a text that a message quotes.
func Clip(s string) string {
	if first := sanitize.First(s, 40); first != s {
		return first + "…"
	}
	return s
}

// Suggest returns an addition to a message about an unknown word: the most similar known
// word, or all of them if there are at most 12.
func Suggest(word string, known []string) string {
	best := spelling.Nearest(word, known, 2) // more edits make another word
	switch {
	case best != "":
		return didYouMean(best)
	case len(known) == 0 || len(known) > 12:
		return ""
	}
	return "; known are " + strings.Join(known, ", ")
}

func didYouMean(word string) string { return "; did you mean " + strconv.Quote(word) + "?" }
