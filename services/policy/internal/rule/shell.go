package rule

import (
	"maps"
	"path"
	"strings"
	"sync"

	"mvdan.cc/sh/v3/syntax"
)

const (
	maxNesting  = 8         // levels of programs within programs: sh -c "sh -c …"
	maxCommands = 2000      // simple commands in one call, including nested ones
	maxBrackets = 4096      // opening brackets of one kind in one program, which may all be nested
	maxWork     = 512 << 10 // bytes of source that are parsed and of words that are expanded and compared, in one call
)

// carriageReturn stands for a carriage return in source.
const carriageReturn = "\u240d"

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
				functions: map[string]bool{}, aliases: map[string]bool{},
			}
			f := s.program(c.Values.String("command"))
			if f == nil && s.spent() {
				f = tooLong() // some of its words count as unknown
			}
			return f, nil
		},
	}
}

func forbid(format string, a ...any) *Finding { return deny(ForbiddenCommand, format, a...) }

func unjudgeable(format string, a ...any) *Finding { return deny(ShellUnjudgeable, format, a...) }

func tooLong() *Finding { return unjudgeable("the script is too long to judge; split it") }

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
	functions map[string]bool       // functions declared anywhere in the script
	aliases   map[string]bool       // names that alias has replaced
	feed      *syntax.Stmt          // statement that is piped into the standard input of the current one, or nil
	bash      bool                  // the shell is bash, whatever /bin/sh is
	again     bool                  // the source is judged as a shell other than bash reads it
	tests     map[*syntax.Stmt]bool // statements of that reading that are operands for bash
	flow
}

// program judges shell source. It returns nil if there is no objection.
func (s *script) program(src string) *Finding {
	if s.nesting == maxNesting {
		return unjudgeable("programs are nested more than %d deep; run the inner command directly", maxNesting)
	}
	if s.spend(len(src)); s.spent() || max(strings.Count(src, "("), strings.Count(src, "{"), strings.Count(src, "[")) > maxBrackets {
		return tooLong()
	}
	// For a shell a carriage return is a character of a word, for the parser it is a blank.
	src = strings.ReplaceAll(src, "\r", carriageReturn)
	f, err := s.parse(src)
	switch {
	case err != nil && strings.Contains(src, carriageReturn):
		return deny(ShellParse, "the command is not valid shell (%v); it has carriage returns, end its lines with newlines alone", err)
	case err != nil:
		return deny(ShellParse, "the command is not valid shell (%v); correct the quoting and try again", err)
	}
	s.nesting++
	dirs, before, aliases, commands := s.dirs, s.flow, maps.Clone(s.aliases), s.commands
	s.loops, s.bodies = 0, 0 // another shell has none
	defer func() { s.nesting, s.dirs, s.loops, s.bodies = s.nesting-1, dirs, before.loops, before.bodies }()
	end, finding := s.file(f)
	s.after = end
	if finding != nil || !ambiguous(f, s.bash) {
		return finding
	}
	first, defined, judged := s.flow, s.aliases, s.commands
	s.dirs, s.flow, s.aliases, s.commands = dirs, before, aliases, commands
	s.loops, s.bodies = 0, 0
	again, finding := s.posix(src, f)
	s.after = outcome{union(end.ok, again.ok), union(end.fail, again.fail)}
	s.lenient, s.visited = s.lenient || first.lenient, union(s.visited, first.visited)
	s.checks, s.commands = max(s.checks, first.checks), max(s.commands, judged)
	maps.Copy(s.aliases, defined)
	return finding
}

func (s *script) node(n syntax.Node) *Finding {
	switch n := n.(type) {
	case *syntax.FuncDecl:
		return s.function(n)
	case *syntax.DeclClause:
		return s.declaration(n)
	case *syntax.Assign:
		if n.Name != nil && s.tables.preload[n.Name.Value] {
			return forbid("%s loads code into every program; run the command without it", n.Name.Value)
		}
		if n.Name != nil && s.tables.CommandVars[n.Name.Value] && !n.Naked {
			return s.commandVariable(n)
		}
	case *syntax.ExtGlob:
		if strings.ContainsAny(n.Pattern.Value, "\"'`$\\;&<>#\n") { // the parser does not read it as a shell does
			return unjudgeable("the pattern %s…) has quotes or expansions and is hard to read; write it without", n.Op)
		}
	case *syntax.ParamExp:
		if n.Exp != nil && n.Exp.Op == syntax.OtherParamOps && n.Exp.Word.Lit() == "P" {
			return unjudgeable("@P runs the commands in the value of a variable; write the commands out")
		}
		if n.Param == nil {
			return nil
		}
		if _, assigned := s.vars[n.Param.Value]; !assigned && secretVariable(n.Param.Value) {
			return forbid("%s names a secret; use the tool that needs it instead", n.Param.Value)
		}
	}
	return nil
}

// commandVariable judges the command that a variable has for other programs, such as the
// editor of git.
func (s *script) commandVariable(a *syntax.Assign) *Finding {
	after := s.after
	defer func() { s.after = after }()
	values := s.patterns(a.Value, false)
	if a.Append || a.Array != nil {
		values = []string{unknown}
	}
	for _, v := range values {
		if f := s.started(a.Name.Value, toWord(v)); f != nil {
			return f
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
	dirs := s.dirs
	f := s.run(argv, stmt)
	switch { // the shell does not run a command if it cannot open the files
	case len(stmt.Redirs) == 0:
	case len(s.after.ok) == 0:
		s.after = s.stay()
	case len(s.after.fail) == 0:
		s.after.fail = doubtful(dirs)
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
	case syntax.Hdoc, syntax.DashHdoc:
		if len(r.Word.Parts) > 1 { // the parser takes the text for unquoted, a shell for quoted
			return unjudgeable("the end of the here-document is hard to read; quote its delimiter as a whole or not at all")
		}
		return nil // text, which is judged where a command reads it as a program
	case syntax.WordHdoc, syntax.DplIn:
		return nil // text, as above; or a descriptor
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

// forks refuses the fork bomb: a function of the script that is piped into itself.
func (s *script) forks(b *syntax.BinaryCmd) *Finding {
	if name := called(b.X); s.functions[name] && name == called(b.Y) {
		return forbid("the function %s is piped into itself and would multiply; use a loop", name)
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
