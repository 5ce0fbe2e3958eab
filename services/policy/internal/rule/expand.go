package rule

import (
	"bytes"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// Limits on the expansion of one word. Beyond them the text is unknown.
const (
	maxFields = 32
	maxWord   = 64 << 10
)

// word is one field of a command after expansion, as far as the text determines it.
type word struct {
	text string // without quotes; [unknown] where only the run determines the text
	glob string // text as a path.Match pattern; "" if there are no unquoted wildcards
	or   bool   // one of several possible values
}

// known reports whether text is exactly the word at run time.
func (w word) known() bool { return w.glob == "" && !w.or && !strings.Contains(w.text, unknown) }

// pattern returns the text to compare path elements with.
func (w word) pattern() string {
	if w.glob != "" {
		return w.glob
	}
	return w.text
}

// scope is the state of a script that expansion depends on.
type scope struct {
	home    string
	dirs    []folder // possible working folders, initially the workspace
	vars    variables
	dynamic bool // a command sets variables that collect cannot see
	splits  bool // the script sets IFS, so unquoted values may be split anywhere
	work    int  // see maxWork
}

// spend counts work.
func (s *scope) spend(bytes int) { s.work += bytes }

// spent reports whether the work exceeds its limit. Then words count as unknown, and the
// command is refused.
func (s *scope) spent() bool { return s.work > maxWork }

// fields expands a word as a shell does, without running commands: braces, tilde,
// variables with known values, quotes, field splitting at white space. A word with several possible
// values yields a field for each value.
func (s *scope) fields(w *syntax.Word) []word {
	if w == nil {
		return nil
	}
	if len(w.Parts) == 1 {
		if lit, ok := w.Parts[0].(*syntax.Lit); ok && !strings.ContainsAny(lit.Value, "\\*?[{~") {
			return []word{{text: lit.Value}}
		}
	}
	var out []word
	for _, parts := range braces(w.Parts) {
		e := expansion{scope: s, values: [][]byte{nil}}
		e.parts(parts, false)
		for _, v := range e.values {
			out = append(out, split(string(v), len(e.values) > 1)...)
		}
		if len(out) > maxFields {
			return []word{{text: unknown}}
		}
	}
	return out
}

// text expands a word that is not split into fields: an assigned value, the target of a
// redirection or, if quoted, a here-document.
func (s *scope) text(w *syntax.Word, quoted bool) []string {
	values := s.patterns(w, quoted)
	for i, v := range values {
		values[i] = unescape(v)
	}
	return values
}

// patterns is like text, but returns the values in the syntax of path.Match.
func (s *scope) patterns(w *syntax.Word, quoted bool) []string {
	if w == nil {
		return []string{""}
	}
	e := expansion{scope: s, values: [][]byte{nil}}
	e.parts(w.Parts, quoted)
	out := make([]string, len(e.values))
	for i, v := range e.values {
		out[i] = strings.ReplaceAll(string(v), fieldBreak, " ")
	}
	return out
}

// expansion builds the possible values of a word. A value is in the syntax of path.Match:
// quoted wildcards are escaped, and fieldBreak stands for white space from an unquoted
// variable.
type expansion struct {
	*scope
	values [][]byte
}

const fieldBreak = "\x01"

// add appends every alternative to every value.
func (e *expansion) add(alternatives ...string) {
	if e.spent() {
		e.values = [][]byte{[]byte(unknown)}
		return
	}
	if len(e.values)*len(alternatives) > maxFields {
		alternatives = []string{unknown}
	}
	grown := make([][]byte, 0, len(e.values)*len(alternatives))
	for _, v := range e.values {
		for i, a := range alternatives {
			if len(v)+len(a) > maxWord {
				a = unknown
			}
			head := v
			if i < len(alternatives)-1 { // the last alternative may reuse the buffer
				head = bytes.Clone(v)
				e.spend(len(v))
			}
			grown = append(grown, append(head, a...))
			e.spend(len(a))
		}
	}
	e.values = grown
}

func (e *expansion) parts(parts []syntax.WordPart, quoted bool) {
	for i, p := range parts {
		switch p := p.(type) {
		case *syntax.Lit:
			e.add(e.literal(p.Value, quoted, i == 0))
		case *syntax.SglQuoted:
			v := p.Value
			if p.Dollar {
				v = ansi(v)
			}
			e.add(escape(v))
		case *syntax.DblQuoted:
			e.parts(p.Parts, true)
		case *syntax.ParamExp:
			e.add(e.param(p, quoted)...)
		case *syntax.CmdSubst:
			e.add(e.substitution(p, quoted)...)
		default: // arithmetic, process substitution, extended globs
			e.add(unknown)
		}
	}
}

func (e *expansion) literal(v string, quoted, first bool) string {
	if !strings.ContainsAny(v, "\\*?[]~") {
		return v
	}
	if first && !quoted && (v == "~" || strings.HasPrefix(v, "~/")) {
		return escape(e.home) + e.literal(v[1:], quoted, false)
	}
	var b strings.Builder
	for i := 0; i < len(v); i++ {
		c := v[i]
		switch {
		case c == '\\' && i+1 < len(v):
			// Within double quotes a backslash escapes only these four characters.
			if quoted && !strings.ContainsRune("\\\"$`", rune(v[i+1])) {
				b.WriteString(`\\`)
				continue
			}
			i++
			b.WriteString(escape(v[i : i+1]))
		case c == '[' && !quoted:
			// A bracket expression matches one character; the differences between the
			// classes of the shell and of path.Match do not matter here.
			if end := strings.IndexByte(v[min(i+2, len(v)):], ']'); end >= 0 {
				i += 2 + end
				b.WriteByte('?')
			} else {
				b.WriteString(`\[`)
			}
		case quoted:
			b.WriteString(escape(v[i : i+1]))
		case c == '*' || c == '?':
			b.WriteByte(c)
		default:
			b.WriteString(escape(v[i : i+1]))
		}
	}
	return b.String()
}

// param returns the possible values of a parameter.
func (e *expansion) param(p *syntax.ParamExp, quoted bool) []string {
	if !plain(p) {
		// ${x:-word} may expand to word; the other operators are not evaluated.
		if p.Exp != nil && p.Exp.Op <= syntax.AssignUnsetOrNull && p.Exp.Word != nil {
			return append(e.expanded(e.patterns(p.Exp.Word, true), quoted), unknown)
		}
		return []string{unknown}
	}
	name := p.Param.Value
	var values []string
	switch name {
	case "HOME":
		values = append(values, escape(e.home))
	case "PWD":
		values = append(values, e.folders()...)
	case "$", "!":
		return []string{"$" + name} // the shell itself or its last background process, which kill may signal
	}
	if assigned, ok := e.vars[name]; ok {
		values = append(values, assigned...)
	}
	if len(values) == 0 || e.dynamic {
		values = append(values, unknown)
	}
	return e.expanded(values, quoted)
}

// expanded returns values as they appear in a word. Unquoted values are split at white space
// and their wildcards are active.
func (e *expansion) expanded(values []string, quoted bool) []string {
	if quoted {
		return values
	}
	out := make([]string, len(values))
	for i, v := range values {
		v = strings.Join(strings.Fields(unescape(v)), fieldBreak)
		out[i] = e.literal(strings.ReplaceAll(v, `\`, `\\`), false, false)
	}
	if e.splits {
		out = append(out, unknown)
	}
	return out
}

// folders returns the possible working folders in the syntax of path.Match.
func (s *scope) folders() []string {
	out := make([]string, len(s.dirs))
	for i, d := range s.dirs {
		out[i] = escape(d.path)
	}
	return out
}

func escaped(values []string) []string {
	out := make([]string, len(values))
	for i, v := range values {
		out[i] = escape(v)
	}
	return out
}

// substitution returns the output of the commands whose output follows from the text.
func (e *expansion) substitution(c *syntax.CmdSubst, quoted bool) []string {
	if len(c.Stmts) != 1 || len(c.Stmts[0].Redirs) > 0 {
		return []string{unknown}
	}
	call, ok := c.Stmts[0].Cmd.(*syntax.CallExpr)
	if !ok || len(call.Args) == 0 {
		return []string{unknown}
	}
	var argv []string
	for _, a := range call.Args {
		for _, f := range e.fields(a) {
			if !f.known() {
				return []string{unknown}
			}
			argv = append(argv, f.text)
		}
	}
	switch {
	case argv[0] == "pwd":
		return e.expanded(e.folders(), quoted)
	case argv[0] == "jobs":
		return []string{"$!"}
	case argv[0] == "mktemp" && !slices.ContainsFunc(argv[1:], func(a string) bool { return a != "-d" && a != "-q" && a != "--directory" }):
		return e.expanded([]string{"/tmp/tmp." + unknown}, quoted) // a new name below TMPDIR
	case argv[0] == "echo" && (len(argv) == 1 || !strings.HasPrefix(argv[1], "-")):
		text := strings.Join(argv[1:], " ")
		if strings.Contains(text, `\`) { // echo of dash interprets it, echo of bash does not
			return []string{unknown}
		}
		return e.expanded([]string{escape(text)}, quoted)
	case argv[0] == "printf" && len(argv) == 2 && !strings.ContainsAny(argv[1], `%\`):
		return e.expanded(escaped(argv[1:]), quoted)
	}
	return []string{unknown}
}

// plain reports whether p is $name or ${name}.
func plain(p *syntax.ParamExp) bool {
	return p.Param != nil && p.Flags == nil && !p.Excl && !p.Length && !p.Width && !p.IsSet &&
		p.NestedParam == nil && p.Index == nil && len(p.Modifiers) == 0 && p.Slice == nil &&
		p.Repl == nil && p.Names == 0 && p.Exp == nil
}

// split splits one value into fields.
func split(v string, or bool) []word {
	var out []word
	for f := range strings.SplitSeq(v, fieldBreak) {
		w := word{text: unescape(f), or: or}
		if hasWildcard(f) {
			w.glob = f
		}
		out = append(out, w)
	}
	return out
}
