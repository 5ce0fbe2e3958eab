package rule

import (
	"path"
	"strings"
	"sync"

	"mvdan.cc/sh/v3/syntax"
)

const (
	maxNesting  = 8    // levels of programs within programs: sh -c "sh -c …"
	maxCommands = 2000 // simple commands in one call, including nested ones
)

// command judges exec (docs/reference/policy.md, Command rules). It parses the command as a
// shell would, because patterns over its text miss too much (docs/reference/policy.md,
// command patterns), and judges every simple command in it, including those in pipelines,
// substitutions and the argument of sh -c. Text that is unknown before the run is refused
// where it determines which command runs, and accepted where it is only an operand.
//
// command judges text, not effects. The sandbox restricts programs in other languages and
// scripts that the agent has written earlier.
func command(sh *shell) Rule {
	return Rule{
		ID: "command.forbidden_patterns", Priority: 300,
		Applies: Selector{Tools: []string{"exec"}},
		Does:    "parses the shell command and refuses what destroys, reads secrets, changes guards, leaves the workspace or the sandbox, or cannot be judged before it runs",
		Codes:   []Code{ForbiddenCommand, ShellParse, ShellUnjudgeable, NetworkDenied},
		Data:    []any{sh.tables, sh.paths},
		Check: func(c *Call) (*Finding, error) {
			if !path.IsAbs(c.Workspace) {
				return forbid("the agent has no workspace, so no command can run; ask the operator to apply the agent again"), nil
			}
			ws := path.Clean(c.Workspace)
			s := &script{
				shell: sh, workspace: ws, network: c.Network, authority: c.Authority,
				scope:     scope{home: ws, dirs: []folder{{path: ws}}, vars: variables{}},
				functions: map[string]bool{}, aliases: map[string]bool{}, piped: map[*syntax.Stmt]*syntax.Stmt{},
			}
			return s.program(c.Values.String("command")), nil
		},
	}
}

func forbid(format string, a ...any) *Finding { return deny(ForbiddenCommand, format, a...) }

func unjudgeable(format string, a ...any) *Finding { return deny(ShellUnjudgeable, format, a...) }

// shell is the state that all calls share. It is safe for concurrent use.
type shell struct {
	tables  *tables
	paths   *protectedPaths
	parsers sync.Pool // of *syntax.Parser, which is not safe for concurrent use
}

func newShell(g *protectedPaths) *shell {
	sh := &shell{tables: newTables(), paths: g}
	sh.parsers.New = func() any { return syntax.NewParser(syntax.Variant(syntax.LangBash)) }
	return sh
}

func (sh *shell) parse(src string) (*syntax.File, error) {
	p, _ := sh.parsers.Get().(*syntax.Parser)
	defer sh.parsers.Put(p)
	return p.Parse(strings.NewReader(src), "")
}

// script is the state of the judgement of one command.
type script struct {
	*shell
	scope
	workspace string
	network   bool
	authority int // of the turn
	nesting   int
	commands  int
	functions map[string]bool               // functions declared anywhere in the script
	aliases   map[string]bool               // names that alias has replaced
	piped     map[*syntax.Stmt]*syntax.Stmt // statement → statement that is piped into its standard input
	flow
}

// program judges shell source. It returns nil if there is no objection.
func (s *script) program(src string) *Finding {
	if s.nesting == maxNesting {
		return unjudgeable("programs are nested more than %d deep; run the inner command directly", maxNesting)
	}
	f, err := s.parse(src)
	if err != nil {
		return deny(ShellParse, "the command is not valid shell (%v); correct the quoting and try again", err)
	}
	s.nesting++
	dirs, loops, bodies := s.dirs, s.loops, s.bodies
	s.loops, s.bodies = 0, 0 // another shell has none
	defer func() { s.nesting, s.dirs, s.loops, s.bodies = s.nesting-1, dirs, loops, bodies }()
	end, finding := s.file(f)
	s.after = end
	if finding != nil || !nestedParens(f) {
		return finding
	}
	// bash evaluates ((…)) as arithmetic, a POSIX sh runs it as two nested subshells;
	// both readings are judged.
	posix, err := syntax.NewParser(syntax.Variant(syntax.LangPOSIX)).Parse(strings.NewReader(src), "")
	if err != nil {
		return nil
	}
	s.dirs = dirs
	again, finding := s.file(posix)
	s.after = outcome{union(end.ok, again.ok), union(end.fail, again.fail)}
	return finding
}

func nestedParens(f *syntax.File) bool {
	for n := range syntax.Preorder(f) {
		if _, ok := n.(*syntax.ArithmCmd); ok {
			return true
		}
	}
	return false
}

func (s *script) node(n syntax.Node) *Finding {
	switch n := n.(type) {
	case *syntax.BinaryCmd:
		return s.pipe(n)
	case *syntax.FuncDecl:
		return s.function(n)
	case *syntax.DeclClause:
		return s.declaration(n)
	case *syntax.Assign:
		if n.Name != nil && s.tables.preload[n.Name.Value] {
			return forbid("%s loads code into every program; run the command without it", n.Name.Value)
		}
	case *syntax.ParamExp:
		if n.Param == nil {
			return nil
		}
		if _, assigned := s.vars[n.Param.Value]; !assigned && secretVariable(n.Param.Value) {
			return forbid("%s names a secret; use the tool that needs it instead", n.Param.Value)
		}
	}
	return nil
}

func (s *script) statement(stmt *syntax.Stmt) *Finding {
	s.after = s.stay()
	for _, r := range stmt.Redirs {
		if f := s.redirect(r); f != nil {
			return f
		}
	}
	call, ok := stmt.Cmd.(*syntax.CallExpr)
	if !ok || len(call.Args) == 0 {
		return nil
	}
	for _, a := range call.Assigns {
		for _, v := range s.patterns(a.Value, false) {
			if f := s.namesSecret(toWord(v)); f != nil {
				return f
			}
		}
	}
	var argv []word
	for _, a := range call.Args {
		argv = append(argv, s.fields(a)...)
	}
	f := s.run(argv, stmt)
	if len(stmt.Redirs) > 0 && len(s.after.ok) == 0 {
		s.after = s.stay() // the shell does not run exit if it cannot open the file
	}
	return f
}

// toWord converts a value in the syntax of path.Match into a word.
func toWord(pattern string) word {
	w := word{text: unescape(pattern)}
	if hasWildcard(pattern) {
		w.glob = pattern
	}
	return w
}

// redirect judges the target or source of a redirection.
func (s *script) redirect(r *syntax.Redirect) *Finding {
	switch r.Op {
	case syntax.Hdoc, syntax.DashHdoc, syntax.WordHdoc, syntax.DplIn:
		return nil // text, which is judged where a command reads it as a program; or a descriptor
	default:
	}
	for _, v := range s.patterns(r.Word, false) {
		w := toWord(v)
		if f := s.socket(w.text); f != nil {
			return f
		}
		if r.Op == syntax.RdrIn {
			if f := s.namesSecret(w); f != nil {
				return f
			}
			continue
		}
		if r.Op == syntax.DplOut && strings.Trim(w.text, "0123456789-") == "" {
			continue // duplicates a descriptor
		}
		if f := s.write(w); f != nil {
			return f
		}
	}
	return nil
}

// function refuses a function name that redefines a command which the judgement relies
// on.
func (s *script) function(d *syntax.FuncDecl) *Finding {
	if d.Name == nil {
		return nil
	}
	switch d.Name.Value {
	case "echo", "printf", "pwd", "jobs", "mktemp", "cd", "pushd", "popd":
		return unjudgeable("a function named %s hides the command; give it another name", d.Name.Value)
	}
	return nil
}

// pipe records the source of each statement's standard input, and refuses the fork bomb:
// a function of the script that is piped into itself.
func (s *script) pipe(b *syntax.BinaryCmd) *Finding {
	if b.Op != syntax.Pipe && b.Op != syntax.PipeAll {
		return nil
	}
	if name := called(b.X); s.functions[name] && name == called(b.Y) {
		return forbid("the function %s is piped into itself and would multiply; use a loop", name)
	}
	for n := range syntax.Preorder(b.Y) {
		if stmt, ok := n.(*syntax.Stmt); ok {
			s.piped[stmt] = b.X
		}
	}
	return nil
}

// called returns the literal name of the command that a statement calls, or "".
func called(stmt *syntax.Stmt) string {
	if call, ok := stmt.Cmd.(*syntax.CallExpr); ok && len(call.Args) > 0 {
		return call.Args[0].Lit()
	}
	return ""
}

func (s *script) declaration(d *syntax.DeclClause) *Finding {
	bare := true
	for _, a := range d.Args {
		if a.Name != nil {
			bare = false
		}
		if a.Naked && a.Value != nil && strings.HasPrefix(a.Value.Lit(), "-") && strings.Contains(a.Value.Lit(), "n") || d.Variant.Value == "nameref" {
			return unjudgeable("references to variables cannot be followed; use the variable itself")
		}
	}
	if bare {
		return forbid("%s without a name prints every variable; name the one you need", d.Variant.Value)
	}
	return nil
}
