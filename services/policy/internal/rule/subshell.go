package rule

import (
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

// shellProgram judges a shell: its -c argument, its here-document, or the name of its
// script.
func (s *script) shellProgram(name string, args []word, stmt *syntax.Stmt) *Finding {
	for i := 0; i < len(args); i++ {
		a := args[i].text
		switch {
		case strings.Contains(a, unknown) || args[i].or:
			return unjudgeable("what %s runs is only known when it runs; write the command or the script's name out", name)
		case a == "--rcfile" || a == "--init-file" || a == "-o" || a == "+o" || a == "-O" || a == "+O":
			i++
		case strings.HasPrefix(a, "--"):
		case strings.HasPrefix(a, "-") && strings.Contains(a, "c"):
			rest := args[i+1:]
			for len(rest) > 0 && strings.HasPrefix(rest[0].text, "-") {
				rest = rest[1:]
			}
			if len(rest) == 0 {
				return nil
			}
			if f := s.joined(name+" "+a, rest[:1]); f != nil {
				return f
			}
			return s.operands(name, rest[1:]) // positional parameters $0, $1, …
		case (a == "-" || strings.HasPrefix(a, "-") || strings.HasPrefix(a, "+")) && !strings.Contains(a, "s"):
		case strings.HasPrefix(a, "-") || standardInput(a):
			return s.shellInput(name, stmt)
		default:
			return s.operands(name, args[i:]) // a script file
		}
	}
	return s.shellInput(name, stmt)
}

func standardInput(file string) bool {
	return file == "/dev/stdin" || strings.HasPrefix(file, "/dev/fd/") || strings.HasPrefix(file, "/proc/self/fd/")
}

// shellInput judges a shell that reads its program from standard input.
func (s *script) shellInput(name string, stmt *syntax.Stmt) *Finding {
	text, from := s.input(stmt)
	switch from {
	case literal:
		return s.program(text)
	case file:
		return nil
	case stream:
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
	inner, code := w.inner(args)
	if name == "command" && len(args) > 0 && (args[0].text == "-v" || args[0].text == "-V") {
		return nil
	}
	if name == "flock" && code != nil {
		return s.joined(name, code)
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
		if f := s.stdinOperands(stmt); f != nil {
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

// inner returns the command after the wrapper's own options and operands, and the
// argument of -c.
func (w wrapper) inner(args []word) (inner, code []word) {
	skip := w.Skip
	for len(args) > 0 {
		a := args[0].text
		switch {
		case a == "--":
			args = args[1:]
			return args[min(skip, len(args)):], nil
		case a == "-c" && !w.Valued["-c"] && len(args) > 1:
			code = args[1:2]
			args = args[1:]
		case w.Valued[a] && len(args) > 1:
			args = args[1:]
		case strings.HasPrefix(a, "-") && len(a) > 1:
		case skip > 0:
			skip--
			if len(args) > 2 && args[1].text == "-c" {
				return nil, args[2:3] // as in flock FILE -c CODE
			}
		default:
			return args, code
		}
		args = args[1:]
	}
	return nil, code
}

func assignment(text string) bool {
	name, _, ok := strings.Cut(text, "=")
	return ok && syntax.ValidName(name)
}

// env judges env. Without a command it prints every variable.
func (s *script) env(args []word, stmt *syntax.Stmt) *Finding {
	for len(args) > 0 {
		a := args[0].text
		name, _, _ := strings.Cut(a, "=")
		switch {
		case a == "-u" || a == "-C" || a == "--unset" || a == "--chdir":
			args = args[min(2, len(args)):]
		case a == "-S" || a == "--split-string":
			return s.joined("env -S", args[1:])
		case strings.HasPrefix(a, "-S"), strings.HasPrefix(a, "--split-string="), strings.HasPrefix(a, "-vS"):
			return unjudgeable("env -S with its text attached is hard to read; write the command out")
		case strings.HasPrefix(a, "-"):
			args = args[1:]
		case assignment(a):
			if s.tables.preload[name] {
				return forbid("%s loads code into every program; run the command without it", name)
			}
			args = args[1:]
		default:
			return s.run(args, stmt)
		}
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
		if f := s.joined("alias "+name, []word{{text: value, glob: a.glob, or: a.or}}); f != nil {
			return f
		}
	}
	return nil
}

// optionCode judges the shell source that follows an option.
func (s *script) optionCode(name, option string, args []word) *Finding {
	for i, a := range args {
		if a.text == option && i+1 < len(args) {
			return s.joined(name+" "+option, args[i+1:i+2])
		}
	}
	return nil
}

// stdinOperands checks literal words that become operands through standard input, as in echo
// wallet.json | xargs cat, or from a here-document.
func (s *script) stdinOperands(stmt *syntax.Stmt) *Finding {
	var literals []word
	if left := s.piped[stmt]; left != nil {
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
			if e := s.match(p, s.paths.protected); e != "" {
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
