package rule

import (
	"path"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// joined judges words that a command joins into shell source.
func (s *script) joined(name string, args []word) *Finding {
	texts := make([]string, 0, len(args))
	for _, a := range args {
		if !a.known() {
			return unjudgeable("%s runs text that is only known when it runs; write the command out", name)
		}
		texts = append(texts, a.text)
	}
	return s.program(strings.Join(texts, " "))
}

// started judges a command that another program gives to /bin/sh.
func (s *script) started(name string, command word) *Finding {
	outer := s.bash
	s.bash = false
	defer func() { s.bash = outer }()
	return s.joined(name, []word{command})
}

// shellProgram judges a shell: its -c argument, its here-document, or the name of its
// script.
func (s *script) shellProgram(name string, args []word, stmt *syntax.Stmt) *Finding {
	outer := s.bash
	s.bash = name == "bash" || name == "rbash"
	defer func() { s.bash = outer }()
	code, input := false, false
	i := 0
options:
	for ; i < len(args); i++ {
		a := args[i].text
		skip := 0
		switch {
		case strings.Contains(a, unknown) || args[i].or:
			return unjudgeable("what %s runs is only known when it runs; write the command or the script's name out", name)
		case a == "-" || a == "--":
			i++
			break options
		case strings.HasPrefix(a, "--command=") || strings.HasPrefix(a, "--init-command="): // of fish
			return unjudgeable("%s with its program attached to an option is hard to read; write the command out", name)
		case a == "--rcfile" || a == "-rcfile" || a == "--init-file" || a == "-init-file":
			skip = 1
		case strings.HasPrefix(a, "--") || s.tables.ShellWords[a]:
		case len(a) > 1 && (a[0] == '-' || a[0] == '+'):
			if !only(a[1:], letters) {
				return unjudgeable("%s with its program attached to an option is hard to read; write the command out", name)
			}
			// The options of a word may be clustered: the names of -o and -O follow the
			// word, and the program of -c follows all options.
			code = code || strings.Contains(a, "c")
			input = input || strings.Contains(a, "s")
			skip = strings.Count(a, "o") + strings.Count(a, "O")
		default:
			break options
		}
		for ; skip > 0 && i+1 < len(args); skip-- {
			if i++; strings.HasPrefix(args[i].text, "-") || !args[i].known() {
				return unjudgeable("the options of %s are hard to read; write each of them out before the command", name)
			}
		}
	}
	rest := args[min(i, len(args)):]
	switch {
	case code && len(rest) == 0:
		return nil
	case code:
		if f := s.joined(name+" -c", rest[:1]); f != nil {
			return f
		}
		return s.operands(name, rest[1:]) // positional parameters $0, $1, …
	case input || len(rest) == 0:
		return s.shellInput(name, stmt)
	case strings.Contains(rest[0].text, unknown) || rest[0].or:
		return unjudgeable("what %s runs is only known when it runs; write the command or the script's name out", name)
	case standardInput(rest[0].text):
		return s.shellInput(name, stmt)
	}
	return s.operands(name, rest) // a script file
}

func standardInput(file string) bool {
	return file == "/dev/stdin" || strings.HasPrefix(file, "/dev/fd/") || strings.HasPrefix(file, "/proc/self/fd/")
}

// shellInput judges a shell that reads its program from standard input.
func (s *script) shellInput(name string, stmt *syntax.Stmt) *Finding {
	text, from := s.input(stmt)
	named := !slices.ContainsFunc(stmt.Redirs, func(r *syntax.Redirect) bool {
		return r.Op == syntax.RdrIn && strings.Contains(strings.Join(s.text(r.Word, false), ""), unknown)
	})
	switch {
	case from == literal:
		return s.program(text)
	case from == file && named:
		return nil
	}
	return unjudgeable("%s would run whatever it reads; put the command in place of %s", name, name)
}

// source is the origin of standard input.
type source int

const (
	stream  source = iota // a pipe, or the input that the executor supplies
	literal               // text in the script
	file                  // a file by name
)

// input returns the standard input of a statement as far as the script contains it, and
// its origin.
func (s *script) input(stmt *syntax.Stmt) (string, source) {
	for _, r := range slices.Backward(stmt.Redirs) {
		var values []string
		switch r.Op {
		case syntax.RdrIn:
			return "", file
		case syntax.WordHdoc:
			values = s.text(r.Word, false)
		case syntax.Hdoc, syntax.DashHdoc:
			if quotedDelimiter(r.Word) {
				values = []string{rawText(r.Hdoc)}
			} else {
				values = s.text(r.Hdoc, true)
			}
		default:
			continue
		}
		if len(values) != 1 || strings.Contains(values[0], unknown) {
			return strings.Join(values, "\n"), stream
		}
		return values[0], literal
	}
	return "", stream
}

// quotedDelimiter reports whether the delimiter of a here-document is quoted, so that its
// text is not expanded.
func quotedDelimiter(w *syntax.Word) bool {
	for _, p := range w.Parts {
		lit, ok := p.(*syntax.Lit)
		if !ok || strings.Contains(lit.Value, `\`) {
			return true
		}
	}
	return false
}

func rawText(w *syntax.Word) string {
	var b strings.Builder
	if w != nil {
		for _, p := range w.Parts {
			if lit, ok := p.(*syntax.Lit); ok {
				b.WriteString(lit.Value)
			}
		}
	}
	return b.String()
}

// wrapped judges the command that a wrapper runs.
func (s *script) wrapped(name string, w wrapper, args []word, stmt *syntax.Stmt) *Finding {
	if name == "command" && len(args) > 0 && (args[0].text == "-v" || args[0].text == "-V") {
		return nil
	}
	if name == "setarch" && len(args) > 0 && strings.HasPrefix(args[0].text, "-") {
		w.Skip = 0 // the architecture may be missing
	}
	outer := s.bash
	s.bash = false // wrappers start /bin/sh
	defer func() { s.bash = outer }()
	inner, written := w.inner(args)
	for _, file := range written {
		if rest := strings.TrimLeft(file.text, "|!"); rest != file.text { // strace -o '|command'
			if f := s.joined(name+" -o", []word{file.part(rest)}); f != nil {
				return f
			}
		} else if f := s.write(file); f != nil {
			return f
		}
	}
	// The options of the wrapper may name files, too.
	if f := s.operands(name, args[:len(args)-len(inner)]); f != nil {
		return f
	}
	if name == "flock" && len(inner) > 1 && (inner[0].text == "-c" || inner[0].text == "--command") {
		return s.joined(name, inner[1:2])
	}
	if (name == "sudo" || name == "doas") && len(inner) == 0 {
		return forbid("%s changes who runs a command; run it without", name)
	}
	if len(inner) == 0 {
		return nil
	}
	for len(inner) > 1 && assignment(inner[0].text) { // as in sudo A=b command
		inner = inner[1:]
	}
	if w.Stdin {
		if f := s.stdinOperands(inner, stmt); f != nil {
			return f
		}
		inner = append(slices.Clone(inner), word{text: unknown})
	}
	var f *Finding
	if w.Joined {
		f = s.joined(name, inner)
	} else {
		f = s.run(inner, stmt)
	}
	if f == nil && (name == "sudo" || name == "doas") {
		f = forbid("%s changes who runs a command; run %s without it", name, inner[0].text)
	}
	return f
}

// inner returns the command after the wrapper's own options and operands, and the files
// that the wrapper writes.
func (w wrapper) inner(args []word) (inner, written []word) {
	skip, ended := w.Skip, false
	for len(args) > 0 {
		a := args[0].text
		name, values, last := takeOption(args, 0, w.Valued)
		switch {
		case !ended && a == "--":
			ended = true
		case !ended && name != "":
			if w.Output[name] {
				written = append(written, values...)
			}
			args = args[last:]
		case !ended && strings.HasPrefix(a, "-") && len(a) > 1:
		case skip > 0:
			if skip--; w.Code && skip == 0 {
				return args[1:], written // as in flock FILE -c CODE
			}
		default:
			return args, written
		}
		args = args[1:]
	}
	return nil, written
}

func assignment(text string) bool {
	name, _, ok := strings.Cut(text, "=")
	return ok && syntax.ValidName(name)
}

var envValued = words("-u -C -S -a --unset --chdir --split-string --argv0")

// env judges env. Without a command it prints every variable.
func (s *script) env(args []word, stmt *syntax.Stmt) *Finding {
	dirs := s.dirs
	defer func() { s.dirs = dirs }()
	for len(args) > 0 {
		a := args[0].text
		option, values, last := takeOption(args, 0, envValued)
		switch {
		case option == "-S" || option == "--split-string":
			if last == 0 {
				return unjudgeable("env -S with its text attached is hard to read; write the command out")
			}
			return s.joined("env -S", args[1:])
		case option == "-C" || option == "--chdir":
			s.changeFolder("cd", values)
			s.dirs = s.after.ok
		case option != "" || strings.HasPrefix(a, "-"):
		case assignment(a):
			name, value, _ := strings.Cut(a, "=")
			if s.tables.preload[name] {
				return forbid("%s loads code into every program; run the command without it", name)
			}
			if s.tables.CommandVars[name] {
				if f := s.started(name, args[0].part(value)); f != nil {
					return f
				}
			}
		default:
			return s.run(args, stmt)
		}
		args = args[last+1:]
	}
	return forbid("env without a command prints the environment, secrets included; name the variable you need")
}

func (s *script) sourced(args []word) *Finding {
	if len(args) == 0 {
		return nil
	}
	if strings.Contains(args[0].text, unknown) || args[0].or || standardInput(args[0].text) {
		return unjudgeable("what is sourced is only known when it runs; write the file's name out")
	}
	return nil
}

func (s *script) alias(args []word) *Finding {
	for _, a := range args {
		name, value, ok := strings.Cut(a.text, "=")
		if !ok {
			continue
		}
		s.aliases[name] = true
		if f := s.joined("alias "+name, []word{{text: value, glob: a.glob, or: a.or}}); f != nil {
			return f
		}
	}
	return nil
}

var scriptValued = words("-c -E -I -B -O -T -m -o --command --echo --log-in --log-io --log-out --log-timing --logging-format --output-limit")

// recorded judges script, which runs a command and writes what it prints.
func (s *script) recorded(args []word, stmt *syntax.Stmt) *Finding {
	outer := s.bash
	s.bash = false // it starts the shell of the user
	defer func() { s.bash = outer }()
	runs := false
	for i := 0; i < len(args); i++ {
		option, values, last := takeOption(args, i, scriptValued)
		judge := s.write
		switch {
		case args[i].text == "--" && i+1 < len(args):
			return s.run(args[i+1:], stmt)
		case option == "-c" || option == "--command":
			runs = true
			judge = func(w word) *Finding { return s.joined("script -c", []word{w}) }
		case option == "-I" || option == "-B" || option == "-O" || option == "-T" || strings.HasPrefix(option, "--log-"):
		case option == "" && !strings.HasPrefix(args[i].text, "-"):
			values = args[i : i+1]
		default:
			values = nil
		}
		for _, v := range values {
			if f := judge(v); f != nil {
				return f
			}
		}
		i = last
	}
	if runs {
		return nil
	}
	return s.shellInput("script", stmt)
}

// stdinOperands checks literal words that become operands of a command through standard
// input, as in echo wallet.json | xargs cat, or from a here-document. Options may be among
// them, so a command that writes with some options is taken for one that writes.
func (s *script) stdinOperands(command []word, stmt *syntax.Stmt) *Finding {
	reads := s.tables.Readers[fold(path.Base(command[0].text))]
	var literals []word
	if left := s.feed; left != nil {
		var f *Finding
		if literals, f = s.literals(left); f != nil {
			return f
		}
	}
	if text, from := s.input(stmt); from != file {
		literals = append(literals, word{text: text})
	}
	for _, w := range literals {
		for part := range strings.FieldsSeq(w.pattern()) {
			p := toWord(part)
			if f := s.namesSecret(p); f != nil {
				return f
			}
			if e := s.match(p, s.protected); e != "" && !reads {
				return forbid("%s is protected and cannot be handed on; name the files yourself", e)
			}
		}
	}
	return nil
}

// literals returns the arguments of every command in a statement. They count towards
// maxCommands, because a long pipe is read again for each of its stages.
func (s *script) literals(stmt *syntax.Stmt) ([]word, *Finding) {
	var all []word
	for n := range syntax.Preorder(stmt) {
		call, ok := n.(*syntax.CallExpr)
		if !ok || len(call.Args) == 0 {
			continue
		}
		for _, a := range call.Args[1:] {
			all = append(all, s.fields(a)...)
		}
	}
	if s.commands += len(all); s.commands > maxCommands {
		return nil, unjudgeable("the script is too long to judge; split it")
	}
	return all, nil
}
