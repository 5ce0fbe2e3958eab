package rule

import (
	"path"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// Limits on the possible working folders. Beyond them the command is refused.
const (
	maxFolders = 32
	maxChecks  = 20_000 // words of commands for each folder after the first
)

// folder is a possible working folder.
type folder struct {
	path string
	// doubt is set if a cd must fail for the script to be here, which a correct script does
	// not expect: cd build; cp x ../y. Targets outside the workspace are not refused then,
	// protected ones are, and removals of the whole workspace.
	doubt bool
}

// outcome is the possible working folders after a command, by its success. Both are empty
// after exit.
type outcome struct{ ok, fail []folder }

func (o outcome) any() []folder { return union(o.ok, o.fail) }

// flow is the state of a script for the working folders.
type flow struct {
	after   outcome  // of the last command
	visited []folder // that a cd or pushd has left; popd returns to one of them
	jumps   []folder // at break, continue and return of the current loop or function
	loops   int
	bodies  int  // functions around the command
	lenient bool // set -e or exit may have no effect
	checks  int
}

// stay is the outcome of a command that does not change the folder.
func (s *script) stay() outcome { return outcome{s.dirs, s.dirs} }

func folders() *Finding {
	return unjudgeable("the script changes its folder too often; join cd and the commands after it with &&")
}

func union(a, b []folder) []folder {
	out := slices.Clone(a)
	for _, f := range b {
		if i := slices.IndexFunc(out, func(o folder) bool { return o.path == f.path }); i < 0 {
			out = append(out, f)
		} else {
			out[i].doubt = out[i].doubt && f.doubt
		}
	}
	return out
}

func doubtful(dirs []folder) []folder {
	out := slices.Clone(dirs)
	for i := range out {
		out[i].doubt = true
	}
	return out
}

// file judges a parsed program that begins in s.dirs. After set -e among its statements a
// simple command that fails ends it.
func (s *script) file(f *syntax.File) (end outcome, found *Finding) {
	s.collect(f)
	strict := false
	end = s.stay()
	for _, stmt := range f.Stmts {
		if end, found = s.stmt(stmt, end.any()); found != nil {
			return end, found
		}
		call, ok := stmt.Cmd.(*syntax.CallExpr)
		if !ok || stmt.Negated || stmt.Background || stmt.Coprocess {
			continue
		}
		if strict && !s.lenient && !s.dynamic {
			end.fail = nil
		}
		// A program within another one, as of eval, may be where the shell ignores set -e.
		strict = strict || s.nesting == 1 && !s.functions["set"] && len(call.Args) > 1 && call.Args[0].Lit() == "set" && endsOnFailure(call.Args[1].Lit())
	}
	return end, nil
}

// endsOnFailure reports whether an argument of set is -e, also with other usual options.
func endsOnFailure(arg string) bool {
	return strings.HasPrefix(arg, "-") && strings.Contains(arg, "e") && strings.Trim(arg[1:], "euvxfo") == ""
}

// list judges statements that begin in dirs.
func (s *script) list(stmts []*syntax.Stmt, dirs []folder) (end outcome, found *Finding) {
	end = outcome{dirs, dirs}
	for _, stmt := range stmts {
		if end, found = s.stmt(stmt, end.any()); found != nil {
			return end, found
		}
	}
	return end, nil
}

// apart judges statements in a subshell, whose folder ends with it.
func (s *script) apart(stmts []*syntax.Stmt, dirs []folder) (outcome, *Finding) {
	loops := s.loops
	s.loops = 0 // break has no effect on loops outside
	_, f := s.list(stmts, dirs)
	s.loops = loops
	return outcome{dirs, dirs}, f
}

// stmt judges one statement that begins in dirs.
func (s *script) stmt(stmt *syntax.Stmt, dirs []folder) (end outcome, found *Finding) {
	if len(dirs) == 0 {
		dirs = s.dirs // after exit, so nothing relies on the commands that are not reached
	}
	if len(dirs) > maxFolders {
		return end, folders()
	}
	s.dirs = dirs
	if f := s.statement(stmt); f != nil {
		return end, f
	}
	end = s.after
	for _, r := range stmt.Redirs {
		if f := s.within(r, dirs); f != nil {
			return end, f
		}
	}
	if stmt.Background || stmt.Coprocess {
		loops := s.loops
		s.loops = 0
		_, found = s.compound(stmt.Cmd, dirs, end)
		s.loops = loops
		return outcome{dirs, dirs}, found
	}
	end, found = s.compound(stmt.Cmd, dirs, end)
	if stmt.Negated {
		end.ok, end.fail = end.fail, end.ok
	}
	return end, found
}

// compound judges what a command contains. simple is the outcome of a simple command.
func (s *script) compound(cmd syntax.Command, dirs []folder, simple outcome) (end outcome, found *Finding) {
	if cmd == nil {
		return simple, nil
	}
	switch c := cmd.(type) {
	case *syntax.CallExpr:
		return simple, s.within(c, dirs)
	case *syntax.BinaryCmd:
		return s.binary(c, dirs)
	case *syntax.Block:
		return s.list(c.Stmts, dirs)
	case *syntax.Subshell:
		return s.apart(c.Stmts, dirs)
	case *syntax.CoprocClause:
		return s.apart([]*syntax.Stmt{c.Stmt}, dirs)
	case *syntax.TimeClause:
		if c.Stmt == nil {
			return outcome{dirs, dirs}, nil
		}
		return s.stmt(c.Stmt, dirs)
	case *syntax.IfClause:
		return s.branches(c, dirs)
	case *syntax.CaseClause:
		return s.cases(c, dirs)
	case *syntax.WhileClause:
		cond, f := s.list(c.Cond, dirs)
		if f != nil {
			return cond, f
		}
		if c.Until {
			cond.ok, cond.fail = cond.fail, cond.ok
		}
		return s.loop(c.Do, cond.ok, cond.fail)
	case *syntax.ForClause:
		if f := s.within(c.Loop, dirs); f != nil {
			return end, f
		}
		return s.loop(c.Do, dirs, dirs)
	case *syntax.FuncDecl:
		if f := s.function(c); f != nil {
			return end, f
		}
		loops := s.loops
		s.loops = 0
		s.bodies++
		end, found = s.body([]*syntax.Stmt{c.Body}, dirs, dirs) // it is called later, or never
		s.bodies--
		s.loops = loops
		return end, found
	}
	return outcome{dirs, dirs}, s.within(cmd, dirs)
}

func (s *script) binary(c *syntax.BinaryCmd, dirs []folder) (end outcome, found *Finding) {
	if c.Op != syntax.AndStmt && c.Op != syntax.OrStmt { // each side of a pipe is a subshell
		if f := s.forks(c); f != nil {
			return end, f
		}
		if end, found = s.apart([]*syntax.Stmt{c.X}, dirs); found != nil {
			return end, found
		}
		outer := s.feed
		s.feed = c.X
		end, found = s.apart([]*syntax.Stmt{c.Y}, dirs)
		s.feed = outer
		return end, found
	}
	x, f := s.stmt(c.X, dirs)
	if f != nil {
		return end, f
	}
	if c.Op == syntax.AndStmt {
		y, f := s.stmt(c.Y, x.ok)
		return outcome{y.ok, union(x.fail, y.fail)}, f
	}
	y, f := s.stmt(c.Y, x.fail)
	return outcome{union(x.ok, y.ok), y.fail}, f
}

func (s *script) branches(c *syntax.IfClause, dirs []folder) (end outcome, found *Finding) {
	cond, f := s.list(c.Cond, dirs)
	if f != nil {
		return end, f
	}
	then, f := s.list(c.Then, cond.ok)
	if f != nil || len(c.Cond) == 0 { // the else branch
		return then, f
	}
	rest := cond.fail
	if c.Else != nil {
		other, f := s.branches(c.Else, cond.fail)
		if f != nil {
			return end, f
		}
		rest = other.any()
	}
	all := union(then.any(), rest)
	return outcome{all, all}, nil
}

func (s *script) cases(c *syntax.CaseClause, dirs []folder) (end outcome, found *Finding) {
	if f := s.within(c.Word, dirs); f != nil {
		return end, f
	}
	all, begin := dirs, dirs
	for _, item := range c.Items {
		for _, p := range item.Patterns {
			if f := s.within(p, dirs); f != nil {
				return end, f
			}
		}
		one, f := s.list(item.Stmts, begin)
		if f != nil {
			return end, f
		}
		all, begin = union(all, one.any()), dirs
		if item.Op != syntax.Break { // the next item may run, too
			begin = union(dirs, one.any())
		}
	}
	return outcome{all, all}, nil
}

func (s *script) loop(stmts []*syntax.Stmt, begin, without []folder) (outcome, *Finding) {
	s.loops++
	defer func() { s.loops-- }()
	return s.body(stmts, begin, without)
}

// body judges the statements of a loop or function. without is the folders after it if it
// does not run.
func (s *script) body(stmts []*syntax.Stmt, begin, without []folder) (outcome, *Finding) {
	outer := s.jumps
	s.jumps = nil
	end, f := s.list(stmts, begin)
	all := union(union(without, end.any()), s.jumps)
	s.jumps = outer
	return outcome{all, all}, f
}

// within judges the words of a node and the commands in them.
func (s *script) within(n syntax.Node, dirs []folder) (found *Finding) {
	s.dirs = dirs
	syntax.Walk(n, func(n syntax.Node) bool {
		if n == nil || found != nil {
			return false
		}
		switch n := n.(type) {
		case *syntax.CmdSubst:
			_, found = s.apart(n.Stmts, dirs)
			s.dirs = dirs
			return false
		case *syntax.ProcSubst:
			_, found = s.apart(n.Stmts, dirs)
			s.dirs = dirs
			return false
		case *syntax.Stmt: // in a form that the other cases do not know
			_, found = s.stmt(n, dirs)
			s.dirs = dirs
			return false
		}
		found = s.node(n)
		return found == nil
	})
	return found
}

// moves applies the builtins of the shell that change the working folder or leave a
// sequence of commands. It returns false for any other command.
func (s *script) moves(name string, args []word) bool {
	switch name {
	case "cd", "pushd":
		s.changeFolder(name, args)
	case "popd":
		s.leave(union(s.visited, nil))
	case "set":
		s.lenient = s.lenient || slices.ContainsFunc(args, func(w word) bool { return strings.HasPrefix(w.text, "+") || !w.known() })
	case "shopt", "enable":
		s.lenient = true
	case "exit":
		if !s.lenient && !s.functions["exit"] {
			s.after = outcome{}
		}
	case "return":
		switch {
		case s.lenient || s.functions["return"]:
		case s.bodies > 0:
			s.jumps, s.after = union(s.jumps, s.dirs), outcome{}
		case s.again: // outside of functions it ends dash, and is an error of bash
			s.after = outcome{}
		}
	case "break", "continue":
		if s.loops > 0 && !s.lenient && !s.functions[name] {
			s.jumps, s.after = union(s.jumps, s.dirs), outcome{}
		}
	case "eval", "command", "builtin": // run commands in this shell
	default:
		return false
	}
	return true
}

// leave sets the outcome of a change to other folders that may fail.
func (s *script) leave(to []folder) {
	s.visited = union(s.visited, s.dirs)
	s.after = outcome{to, doubtful(s.dirs)}
}

// changeFolder applies cd and pushd to the working folder, to which later paths are
// relative.
func (s *script) changeFolder(name string, args []word) {
	var targets []word
	safe := name == "cd" // not every shell has pushd
	for _, a := range args {
		if a.text == "-" {
			a = word{text: unknown}
		} else if strings.HasPrefix(a.text, "-") || name == "pushd" && strings.HasPrefix(a.text, "+") {
			safe = false
			continue
		}
		// A variable with several values yields a word for each of them.
		if len(targets) == 0 || a.or {
			targets = append(targets, a)
		} else {
			safe = false // bash refuses a second folder
		}
	}
	if name == "pushd" && len(targets) == 0 { // exchanges folders of its stack
		s.leave(union(s.visited, s.dirs))
		return
	}
	if len(targets) == 0 {
		targets = []word{{text: s.workspace}}
		if len(s.vars["HOME"]) > 0 {
			targets[0].text = unknown
		}
	}
	var to []folder
	for _, t := range targets {
		text := t.text
		if t.glob != "" {
			text = strings.NewReplacer("*", unknown, "?", unknown).Replace(text)
		}
		if len(s.vars["CDPATH"]) > 0 && !path.IsAbs(text) {
			text = unknown
		}
		safe = safe && (text == s.workspace || !slices.ContainsFunc(strings.Split(text, "/"), func(e string) bool {
			return e != "" && e != "." && e != ".."
		}))
		for _, d := range s.dirs {
			to = union(to, []folder{{path: locate(s.workspace, d.path, text).abs, doubt: d.doubt}})
		}
	}
	s.leave(to)
	if safe { // a folder above, or the workspace: such a cd does not fail
		s.after.fail = nil
	}
}
