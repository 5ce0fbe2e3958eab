package rule

import (
	"iter"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// language returns the interpreter that a command starts, without its version: python for
// python3.12.
func language(name string) string {
	trimmed := strings.TrimRight(name, "0123456789.")
	if trimmed == "rscript" {
		return "Rscript"
	}
	return trimmed
}

// interpreter judges code given on the command line or in a here-document.
func (s *script) interpreter(lang string, options []string, args []word, stmt *syntax.Stmt) *Finding {
	if _, ok := s.tables.Patterns[lang]; ok { // sed and awk: the first operand is the program
		return s.editorCode(lang, args)
	}
	operand := false
	for i := 0; i < len(args); i++ {
		a := args[i].text
		code, next := codeAfter(options, a)
		if next && i+1 < len(args) {
			i++
			code, operand = args[i].text, true
		}
		if code != "" {
			operand = true
			if f := s.code(lang, code); f != nil {
				return f
			}
		}
		operand = operand || !strings.HasPrefix(a, "-") || a == "-m" || strings.HasPrefix(a, "--")
	}
	if operand {
		return nil
	}
	text, from := s.input(stmt)
	if f := s.code(lang, text); f != nil {
		return f
	}
	if from == stream && s.feed != nil && !versionOnly(args) {
		return unjudgeable("%s would run whatever it reads; put the code in a file or after %s", lang, options)
	}
	return nil
}

// codeAfter returns the code that an option contains (-c'code', --eval=code), or reports
// that the next word is the code (-c, -Ic, --eval).
func codeAfter(options []string, a string) (code string, next bool) {
	for _, o := range options {
		if a == o {
			return "", true
		}
		if long, value, ok := strings.Cut(a, "="); ok && long == o {
			return value, false
		}
		if len(o) != 2 || len(a) < 3 || a[0] != '-' || a[1] == '-' {
			continue
		}
		if i := strings.IndexByte(a, o[1]); i > 0 && strings.Trim(a[1:i], "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0") == "" {
			return a[i+1:], i == len(a)-1
		}
	}
	return "", false
}

func versionOnly(args []word) bool {
	return len(args) == 1 && (args[0].text == "-V" || args[0].text == "-v" || args[0].text == "-h")
}

// Options of sed and awk with a value.
var (
	sedValued = words("-e -f -l --expression --file --line-length")
	awkValued = words("-e -f -E -F -i -v --source --file --exec --field-separator --include --assign")
)

// editorCode judges every program of sed and awk: the values of -e, or else the first
// operand.
func (s *script) editorCode(lang string, args []word) *Finding {
	sed := lang == "sed" || lang == "gsed"
	valued := awkValued
	if sed {
		valued = sedValued
	}
	judge := s.awkCode
	if sed {
		judge = s.sedCode
	}
	given := false
	for i := 0; i < len(args); i++ {
		a := args[i].text
		option, programs, last := takeOption(args, i, valued)
		switch option {
		case "-e", "--expression", "--source":
			given = true
		case "-f", "--file", "-E", "--exec":
			given, programs = true, nil
		case "":
			if !given && (a == "-" || !strings.HasPrefix(a, "-")) {
				given = true
				programs, last = following(args, i-1)
			}
		default:
			programs = nil
		}
		for _, p := range programs {
			if f := judge(p.text); f != nil {
				return f
			}
		}
		i = last
	}
	return nil
}

// sedCode judges a program of sed. Its commands w and e, and the flag e of s, have one
// letter.
func (s *script) sedCode(code string) *Finding {
	if s.spend(len(code) * (1 + len(s.tables.sedRuns))); s.spent() {
		return tooLong()
	}
	for _, at := range s.tables.sedExec.FindAllStringIndex(code, -1) {
		command, _, _ := strings.Cut(code[at[1]:], "\n")
		if f := s.program(command); f != nil && f.Code == ForbiddenCommand {
			return f
		}
	}
	for _, expr := range s.tables.sedRuns {
		for _, m := range expr.FindAllStringSubmatch(code, -1) {
			if f := s.program(m[1]); f != nil && f.Code == ForbiddenCommand {
				return f
			}
		}
	}
	return s.scan(code, true, nil)
}

// awkCode judges a program of awk, which writes with > and starts commands with |.
func (s *script) awkCode(code string) *Finding {
	starts := quotedStrings(code, !strings.Contains(code, "system"))
	return s.scan(code, strings.Contains(code, ">") || strings.Contains(code, "inplace"), starts)
}

// Signs of code that writes to files or starts commands.
var (
	writeSigns = []string{
		"write", "Write", "unlink", "remove", "rename", "replace", "append", "truncate", "move", "touch", "rm(", "rmSync", "rmtree", "copy",
		"'w", `"w`, "'a'", `"a"`, "'r+", `"r+`, "-i",
	}
	startSigns = []string{"system", "popen", "subprocess", "child_process", "exec", "spawn", "qx", "`"}
	// Perl opens files to write and commands with signs in the name.
	perlWrites = []string{`">`, "'>", `"+<`, "'+<"}
	perlStarts = []string{`"|`, "'|", `|"`, "|'"}
)

// code scans a program in another language for protected names and, if the program can
// start commands, for commands in its strings. It does not parse the language; the
// sandbox restricts what the program builds at run time.
func (s *script) code(lang, text string) *Finding {
	writing, starting := writeSigns, startSigns
	if lang == "perl" {
		writing, starting = slices.Concat(writing, perlWrites), slices.Concat(starting, perlStarts)
	}
	signs := text
	if lang != "lua" {
		signs = strings.ReplaceAll(text, "execute", "") // of a statement, which starts no command
	}
	var starts []string
	if slices.ContainsFunc(starting, func(sign string) bool { return strings.Contains(signs, sign) }) {
		starts = quotedStrings(text, false)
	}
	return s.scan(text, slices.ContainsFunc(writing, func(sign string) bool { return strings.Contains(text, sign) }), starts)
}

// scan refuses the names of secrets and, if the program writes, of protected files. starts
// are the strings that it may start as commands.
func (s *script) scan(text string, writes bool, starts []string) *Finding {
	s.spend(len(text))
	for token, before := range tokens(text) {
		quoted := strings.ContainsRune("'\"`", before) && before != 0
		w := word{text: token}
		if e := s.match(w, s.paths.secret); e != "" && (quoted || !strings.HasPrefix(e, "*")) {
			return forbid("%s holds secrets and no program may touch it; use the tool that needs the secret instead", e)
		}
		if e := s.match(w, s.protected); writes && e != "" && (quoted || !strings.HasPrefix(e, "*")) {
			return forbid("%s is protected and this program could change it; write to another file", e)
		}
	}
	for _, q := range starts {
		if f := s.program(strings.Trim(q, "| ")); f != nil && f.Code == ForbiddenCommand {
			return f
		}
	}
	return nil
}

// tokens yields the runs of characters that are common in file names, each with the
// character before it.
func tokens(text string) iter.Seq2[string, rune] {
	return func(yield func(string, rune) bool) {
		start, before := -1, rune(0)
		for i, r := range text + "\n" {
			if strings.ContainsRune(" \t\r\n'\"`()[]{}<>,;=|&+!?#:", r) {
				if start >= 0 && !yield(text[start:i], before) {
					return
				}
				start, before = -1, r
			} else if start < 0 {
				start = i
			}
		}
	}
}

// quotedStrings returns the strings between pairs of equal quotes; with piped, those next
// to a single |.
func quotedStrings(text string, piped bool) []string {
	var all []string
	for i := 0; i < len(text); i++ {
		if c := text[i]; c == '\'' || c == '"' || c == '`' {
			end := strings.IndexByte(text[i+1:], c)
			if end < 0 {
				return all
			}
			end += i + 1
			before, after := strings.TrimRight(text[:i], " \t"), strings.TrimLeft(text[end+1:], " \t")
			if !piped || strings.HasSuffix(before, "|") && !strings.HasSuffix(before, "||") || strings.HasPrefix(after, "|") && !strings.HasPrefix(after, "||") {
				all = append(all, text[i+1:end])
			}
			i = end
		}
	}
	return all
}

// statementSQL refuses SQL that is entered as a command.
func statementSQL(argv []word) *Finding {
	if len(argv) < 2 {
		return nil
	}
	destroys := false
	switch second := fold(argv[1].text); fold(argv[0].text) {
	case "drop":
		destroys = second == "table" || second == "database" || second == "schema"
	case "delete":
		destroys = second == "from"
	case "truncate":
		destroys = second == "table" || argv[0].text != "truncate" // truncate(1) is a command
	}
	if !destroys {
		return nil
	}
	return forbid("this is SQL that destroys data, not a command; use the tools for memory instead")
}

// database judges the SQL that a database client receives. It refuses changes of the tables
// of the agent's state, and on a database server every change of a table except insert. The
// agent may change other tables in its own files.
func (s *script) database(name string, args []word, stmt *syntax.Stmt) *Finding {
	texts := make([]string, 0, len(args)+1)
	for _, a := range args {
		texts = append(texts, a.text)
	}
	if text, from := s.input(stmt); from != file {
		texts = append(texts, text)
	}
	if left := s.feed; left != nil {
		literals, f := s.literals(left)
		if f != nil {
			return f
		}
		for _, w := range literals {
			texts = append(texts, w.text)
		}
	}
	for _, t := range texts {
		s.spend(len(t))
	}
	sql := s.tables.comment.ReplaceAllString(strings.Join(texts, "\n"), " ")
	for line := range strings.Lines(sql) {
		line = fold(strings.TrimSpace(line))
		if strings.HasPrefix(line, ".shell") || strings.HasPrefix(line, ".system") || strings.Contains(line, `\!`) {
			return unjudgeable("%s may not start commands; run the command itself", name)
		}
	}
	for _, m := range s.tables.sql.FindAllStringSubmatch(sql, -1) {
		if s.tables.State[fold(m[2])] || s.tables.Databases[name] && !strings.HasPrefix(fold(m[1]), "insert") {
			return forbid("%s %s changes data that is not this command's; use the tools for memory instead", fold(m[1]), m[2])
		}
	}
	for token := range tokens(sql) {
		if f := s.namesSecret(word{text: token}); f != nil {
			return f
		}
	}
	return nil
}
