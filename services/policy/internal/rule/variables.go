package rule

import (
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// Limits on the values of one variable. Beyond them the value is unknown.
const (
	maxValues = 8       // number
	maxValue  = 4 << 10 // bytes of one value
)

// variables holds every literal value that a script assigns to a variable, in any branch,
// in the syntax of path.Match. [unknown] is among them if the variable may have another
// value.
type variables map[string][]string

func (v variables) add(name string, values ...string) {
	for _, s := range values {
		if len(v[name]) > maxValues {
			return
		}
		if len(v[name]) == maxValues || len(s) > maxValue {
			s = unknown
		}
		if !slices.Contains(v[name], s) {
			v[name] = append(v[name], s)
		}
	}
}

// secretVariable reports whether an environment variable holds credentials, by the usual
// suffixes of such names.
func secretVariable(name string) bool {
	name = strings.ToUpper(name)
	endings := []string{"_KEY", "_TOKEN", "_SECRET", "_PASSWORD", "_CREDENTIALS", "APIKEY", "MNEMONIC"}
	return slices.ContainsFunc(endings, func(end string) bool { return strings.HasSuffix(name, end) })
}

// collect records all values that the script assigns to variables. It does not follow
// branches: every assigned value is possible.
func (s *script) collect(f *syntax.File) {
	ofRead := map[*syntax.Assign]bool{} // as in IFS= read x, which affects only read
	for n := range syntax.Preorder(f) {
		switch n := n.(type) {
		case *syntax.Assign:
			s.assign(n)
			s.splits = s.splits || n.Name != nil && n.Name.Value == "IFS" && !ofRead[n]
		case *syntax.WordIter:
			s.splits = s.splits || n.Name.Value == "IFS"
			if len(n.Items) == 0 {
				s.vars.add(n.Name.Value, unknown)
			}
			for _, item := range n.Items {
				for _, w := range s.fields(item) {
					v := w.glob
					if v == "" {
						v = escape(w.text)
					}
					s.vars.add(n.Name.Value, v)
				}
			}
		case *syntax.ParamExp:
			if n.Exp != nil && n.Param != nil && (n.Exp.Op == syntax.AssignUnset || n.Exp.Op == syntax.AssignUnsetOrNull) {
				s.vars.add(n.Param.Value, unknown)
				s.splits = s.splits || n.Param.Value == "IFS"
			}
		case *syntax.DeclClause:
			for _, a := range n.Args {
				if a.Naked && a.Value != nil && a.Value.Lit() == "" { // as in export "x=y"
					s.dynamic, s.splits = true, true
				}
			}
		case *syntax.FuncDecl:
			if n.Name != nil {
				s.functions[n.Name.Value] = true
			}
		case *syntax.CallExpr:
			if len(n.Args) == 0 {
				continue
			}
			s.setters(n)
			for _, a := range n.Assigns {
				ofRead[a] = n.Args[0].Lit() == "read" && !s.functions["read"]
			}
		}
	}
}

func (s *script) assign(a *syntax.Assign) {
	if a.Name == nil || a.Naked {
		return
	}
	name := a.Name.Value
	if a.Array != nil || a.Index != nil {
		s.vars.add(name, unknown)
		return
	}
	values := s.patterns(a.Value, false)
	if a.Append {
		old := s.vars[name]
		s.vars.add(name, unknown)
		for _, o := range old {
			for _, v := range values {
				if s.spend(len(o) + len(v)); s.spent() {
					return
				}
				s.vars.add(name, o+v)
			}
		}
		return
	}
	s.vars.add(name, values...)
}

// setters marks variables as unknown that a command sets.
func (s *script) setters(call *syntax.CallExpr) {
	switch unquoted(call.Args[0].Parts) {
	case "eval", "source", ".":
		s.dynamic = true
	case "read", "mapfile", "readarray", "getopts", "printf", "unset", "wait":
		for _, a := range call.Args[1:] {
			if name := a.Lit(); syntax.ValidName(name) {
				s.vars.add(name, unknown)
				s.splits = s.splits || name == "IFS"
			}
		}
	case "command", "builtin": // may run one of these commands
		s.dynamic = s.dynamic || len(call.Args) > 1 && call.Args[1].Lit() != "-v" && call.Args[1].Lit() != "-V"
	}
}

// unquoted returns the literal text of a word without quotes; it leaves out expansions.
func unquoted(parts []syntax.WordPart) string {
	text := ""
	for _, p := range parts {
		switch p := p.(type) {
		case *syntax.Lit:
			text += unescape(p.Value)
		case *syntax.SglQuoted:
			text += p.Value
		case *syntax.DblQuoted:
			text += unquoted(p.Parts)
		}
	}
	return text
}
