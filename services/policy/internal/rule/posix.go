package rule

import (
	"cmp"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// Commands run with /bin/sh, which is bash on some machines and on others a shell without
// its extensions, such as dash. Where the two read a program differently, both readings are
// judged: echo &>a rm b is one command of bash, and two of dash.

// ambiguous reports whether a program has a construct that a POSIX shell may read as other
// commands than bash does. Constructs that such a shell refuses, like arrays, do not count.
// In a program for bash only let does: the parser takes its > and | for operators, which
// they are for no shell.
func ambiguous(f *syntax.File, bash bool) bool {
	for n := range syntax.Preorder(f) {
		differs := false
		switch n := n.(type) {
		case *syntax.LetClause:
			return true
		case *syntax.ArithmCmd, *syntax.TestClause, *syntax.TimeClause, *syntax.CoprocClause:
			differs = true
		case *syntax.ArithmExp:
			differs = n.Bracket
		case *syntax.SglQuoted:
			differs = n.Dollar
		case *syntax.DblQuoted:
			differs = n.Dollar
		case *syntax.Redirect:
			differs = n.Op == syntax.RdrAll || n.Op == syntax.AppAll
		}
		if differs && !bash {
			return true
		}
	}
	return false
}

// posix judges a program as a POSIX shell reads it. f is the reading of bash. Statements
// before a syntax error count, because a shell runs them before it finds the error.
func (s *script) posix(src string, f *syntax.File) (outcome, *Finding) {
	outer := s.again
	s.again = true
	defer func() { s.again = outer }()
	p := syntax.NewParser(syntax.Variant(syntax.LangPOSIX))
	read := &syntax.File{}
	for stmt, err := range p.StmtsSeq(strings.NewReader(portable(src, f))) {
		if err != nil {
			break
		}
		read.Stmts = append(read.Stmts, stmt)
	}
	s.markTests(read)
	return s.file(read)
}

// markTests records the statements of a POSIX program that are operands of [[ … ]] and
// ((…)) for bash.
func (s *script) markTests(read *syntax.File) {
	if s.tests == nil {
		s.tests = map[*syntax.Stmt]bool{}
	}
	lists := map[*syntax.BinaryCmd]bool{} // parts of a longer list
	for n := range syntax.Preorder(read) {
		switch n := n.(type) {
		case *syntax.BinaryCmd:
			if isList(n) && !lists[n] {
				within := false
				s.markList(n, lists, &within)
			}
		case *syntax.Subshell:
			if len(n.Stmts) == 0 {
				continue
			}
			if inner, ok := n.Stmts[0].Cmd.(*syntax.Subshell); ok && inner.Lparen.Offset() == n.Lparen.Offset()+1 {
				s.markAll(inner)
			}
		}
	}
}

// markList records the statements of a list with && and || that are between [[ and ]].
func (s *script) markList(list *syntax.BinaryCmd, lists map[*syntax.BinaryCmd]bool, within *bool) {
	lists[list] = true
	for _, stmt := range []*syntax.Stmt{list.X, list.Y} {
		switch c := stmt.Cmd.(type) {
		case *syntax.Subshell:
			if *within {
				s.markAll(c)
			}
		case *syntax.BinaryCmd:
			if isList(c) {
				s.markList(c, lists, within)
			}
		case *syntax.CallExpr:
			if len(c.Args) == 0 {
				continue
			}
			if *within {
				s.tests[stmt] = true
			}
			*within = (*within || c.Args[0].Lit() == "[[") && c.Args[len(c.Args)-1].Lit() != "]]"
		}
	}
}

// markAll records the statements of a subshell.
func (s *script) markAll(sub *syntax.Subshell) {
	for n := range syntax.Preorder(sub) {
		if stmt, ok := n.(*syntax.Stmt); ok {
			s.tests[stmt] = true
		}
	}
}

func isList(c *syntax.BinaryCmd) bool { return c.Op == syntax.AndStmt || c.Op == syntax.OrStmt }

// portable replaces what the parser refuses in a POSIX program and a POSIX shell does not
// refuse before it runs the command: &>x, ${x^^}, ${x:1}, ${a[0]}, ${ ls; }, {fd}>x.
func portable(src string, f *syntax.File) string {
	type part struct {
		begin, end int
		text       string
	}
	var parts []part
	replace := func(n syntax.Node, text string) {
		parts = append(parts, part{int(n.Pos().Offset()), int(n.End().Offset()), text})
	}
	for n := range syntax.Preorder(f) {
		switch n := n.(type) {
		case *syntax.ParamExp:
			if n.Excl || n.Index != nil || n.Slice != nil || n.Repl != nil || n.Exp != nil && n.Exp.Op >= syntax.MatchEmpty {
				replace(n, "${_}")
			}
		case *syntax.CmdSubst:
			if n.TempFile || n.ReplyVar {
				replace(n, "${_}")
			}
		case *syntax.Redirect:
			if n.N != nil && strings.HasPrefix(n.N.Value, "{") {
				replace(n.N, n.N.Value+" ")
			}
			if n.Op == syntax.RdrAll || n.Op == syntax.AppAll { // the "&" ends the command
				at := int(n.OpPos.Offset())
				parts = append(parts, part{at, at + 1, "& "})
			}
		}
	}
	slices.SortFunc(parts, func(a, b part) int { return cmp.Compare(a.begin, b.begin) })
	var b strings.Builder
	from := 0
	for _, p := range parts {
		if p.begin < from { // within another one
			continue
		}
		b.WriteString(src[from:p.begin] + p.text)
		from = p.end
	}
	b.WriteString(src[from:])
	return b.String()
}
