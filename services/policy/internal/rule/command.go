package rule

import (
	"path"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"

	"github.com/anima-run/anima/pkg/api"
)

// run judges one simple command. stmt is the statement of the command and determines its
// standard input.
func (s *script) run(argv []word, stmt *syntax.Stmt) *Finding {
	if s.commands++; s.commands > maxCommands {
		return unjudgeable("the script has more than %d commands; split it", maxCommands)
	}
	if s.spent() {
		return tooLong()
	}
	if s.checks += len(argv) * (len(s.dirs) - 1); s.checks > maxChecks {
		return folders()
	}
	for len(argv) > 0 && argv[0].text == "" && argv[0].known() {
		argv = argv[1:] // an empty variable before the command
	}
	if len(argv) == 0 {
		return nil
	}
	if !argv[0].known() && argv[0].text != "[" {
		if s.again {
			if f := s.possible(argv, stmt); f != nil || s.tests[stmt] { // as in [[ -n $a && $b == c ]]
				return f
			}
		}
		return unjudgeable("the name of a command is only known when it runs; write it out")
	}
	if i := slices.IndexFunc(argv, func(w word) bool { return s.socket(w.text) != nil }); i >= 0 {
		return s.socket(argv[i].text)
	}
	name := fold(path.Base(argv[0].text))
	args := argv[1:]
	if !s.moves(argv[0].text, args) {
		defer func() { s.after = s.stay() }() // what it starts has a folder of its own
	}
	if f := s.refused(name, argv); f != nil {
		return f
	}
	if s.aliases[argv[0].text] {
		return unjudgeable("the alias %s hides the command; write the command out", argv[0].text)
	}
	if s.functions[argv[0].text] {
		// A function may have the name of a command that takes text, a pattern or an address.
		if f := s.operands("the function "+argv[0].text, args); f != nil {
			return f
		}
	}
	if f, ok := s.launcher(name, args, stmt); ok {
		return f
	}
	if f := s.byName(name, args, stmt); f != nil || s.tables.Texts[name] {
		return f
	}
	if name == "git" {
		args = withoutTexts(args)
	}
	if s.tests[stmt] && !s.tables.has(name) {
		return nil // as in [[ -f a && $b == c ]]
	}
	return s.operands(name, args)
}

// possible judges a command with each of the names that it may have, as far as they are
// known. It counts as one command.
func (s *script) possible(argv []word, stmt *syntax.Stmt) *Finding {
	commands := s.commands
	defer func() { s.commands = commands }()
	for i, w := range argv {
		if !w.or {
			break
		}
		if w.or = false; !w.known() {
			continue
		}
		if f := s.run(append([]word{w}, argv[i+1:]...), stmt); f != nil {
			return f
		}
	}
	return nil
}

// refused returns the finding against a command that its name or its network use forbids,
// or nil.
func (s *script) refused(name string, argv []word) *Finding {
	if why, ok := s.tables.Forbidden[name]; ok || strings.HasPrefix(name, "mkfs") {
		if !ok {
			why = "makes a file system"
		}
		return forbid("%s %s", name, why)
	}
	if f := statementSQL(argv); f != nil {
		return f
	}
	if s.tables.Network[name] && !s.network {
		return deny(NetworkDenied, "%s needs the network and this agent's sandbox has none; ask the creator to grant it", name)
	}
	return nil
}

// launcher judges commands with operands that are commands or shell source. The result is
// false for any other command.
func (s *script) launcher(name string, args []word, stmt *syntax.Stmt) (*Finding, bool) {
	if s.tables.Shells[name] {
		return s.shellProgram(name, args, stmt), true
	}
	if w, ok := s.tables.Wrappers[name]; ok {
		return s.wrapped(name, w, args, stmt), true
	}
	switch name {
	case "eval":
		return s.joined("eval", args), true
	case "env":
		return s.env(args, stmt), true
	case "trap":
		if len(args) > 1 && args[0].text != "-" {
			return s.joined("trap", args[:1]), true
		}
		return nil, true
	case "alias":
		return s.alias(args), true
	case "script":
		return s.recorded(args, stmt), true
	}
	return nil, false
}

// byName applies the rules for the operands of specific commands.
func (s *script) byName(name string, args []word, stmt *syntax.Stmt) *Finding {
	outer := s.bash
	s.bash = false // they start shell source with /bin/sh
	defer func() { s.bash = outer }()
	if _, ok := s.tables.Databases[name]; ok {
		return s.database(name, args, stmt)
	}
	lang := language(name)
	if codeOptions, ok := s.tables.Languages[lang]; ok {
		return s.interpreter(lang, strings.Fields(codeOptions), args, stmt)
	}
	switch name {
	case "source", ".":
		return s.sourced(args)
	case "set":
		if len(args) == 0 {
			return forbid("set without arguments prints every variable; name the one you need")
		}
	case "rm", "rmdir", "unlink":
		return s.remove(name, args)
	case "mv":
		return s.move(args)
	case "shred":
		return s.remove(name, args)
	case "find":
		return s.find(args, stmt)
	case "kill":
		return s.kill(args)
	case "chown", "chmod":
		return s.mode(name, args)
	case "git":
		return s.git(args, stmt)
	case "vi", "vim", "nvim", "ex":
		for i, a := range args {
			if i > 0 && (args[i-1].text == "-c" || args[i-1].text == "--cmd") {
				if _, command, ok := strings.Cut(a.text, "!"); ok {
					return s.program(command)
				}
			}
		}
	case "tar":
		for _, a := range args {
			option, value, _ := strings.Cut(a.text, "=")
			if option == "--to-command" || option == "--use-compress-program" || option == "--checkpoint-action" {
				return s.program(strings.TrimPrefix(value, "exec="))
			}
		}
	case "openssl":
		if len(args) > 0 && strings.HasPrefix(args[0].text, "s_") && !s.network {
			return deny(NetworkDenied, "openssl %s needs the network and this agent's sandbox has none", args[0].text)
		}
	}
	return nil
}

// Options of the commands in the tables.
var (
	givenPatterns  = words("-e --expression --regexp --source") // the pattern of a command with a pattern
	patternFiles   = words("-f --file --from-file --exec")      // files with it; also -E of awk
	targetOptions  = words("-t -S --target-directory --suffix")
	jqVariables    = words("--arg --argjson --rawfile --slurpfile")
	installOptions = words("-t -S -m -o -g --target-directory --suffix --mode --owner --group")
)

// operands refuses protected names among the arguments of a command.
func (s *script) operands(name string, args []word) *Finding {
	reads := s.readsOnly(name, args)
	args = s.withoutPatterns(name, args)
	fetches := s.tables.Fetchers[name]
	var operands []word
	for _, a := range args {
		if strings.HasPrefix(a.text, "-") && len(a.text) > 1 {
			if f := s.attached(a, reads, fetches); f != nil {
				return f
			}
			continue
		}
		if fetches && remoteURL(a.text) {
			continue
		}
		operands = append(operands, a)
		if f := s.namesSecret(a); f != nil {
			return f
		}
		if f := s.attached(a, reads, fetches); f != nil {
			return f
		}
	}
	written := s.tables.Writers[name]
	last := s.tables.LastOnly[name]
	if last {
		folder, f := s.target(name, args)
		if f != nil {
			return f
		}
		last = !folder
		written = written || name == "install" && slices.ContainsFunc(args, func(w word) bool { return w.text == "-d" || w.text == "--directory" })
	}
	for i, a := range operands {
		switch {
		case written || last && i > 0 && i == len(operands)-1:
			if f := s.write(a); f != nil {
				return f
			}
		case reads || s.tables.LastOnly[name] && name != "ln" && name != "link":
		default:
			if e := s.match(a, s.protected); e != "" {
				return forbid("%s is protected and %s could change it; read it with cat", e, name)
			}
		}
	}
	return nil
}

// withoutPatterns returns the arguments of a command that may be files: without the
// pattern of a search, the program of an editor and the files that an option leaves out.
func (s *script) withoutPatterns(name string, args []word) []word {
	valued, searches := s.tables.Patterns[name]
	excludes := s.tables.Excludes[name]
	if !searches && excludes == nil {
		return args
	}
	var rest []word
	at, values := -1, 0 // the first operand in rest, with each of its possible values
	given, ended := !searches, false
	for i := 0; i < len(args); i++ {
		begin, text, option := i, args[i].text, ""
		operand := ended || !strings.HasPrefix(text, "-") || text == "-"
		if !ended {
			if option, _, i = takeOption(args, begin, excludes); option != "" {
				continue
			}
			option, _, i = takeOption(args, begin, valued)
			ended = text == "--"
		}
		switch {
		case givenPatterns[option]:
			given = true
			continue
		case option != "":
			given = given || patternFiles[option] || option == "-E" && name != "rg"
		case name == "jq" && jqVariables[text]: // with a name and a value
			i = min(i+2, len(args)-1)
		case operand && at < 0:
			_, i = following(args, i-1)
			at, values = len(rest), i-begin+1
		}
		rest = append(rest, args[begin:i+1]...)
	}
	if !given && at >= 0 {
		rest = slices.Delete(rest, at, at+values)
	}
	return rest
}

// target judges the folder that an option of cp, mv, install and ln names, and reports
// whether there is one: all operands are sources then.
func (s *script) target(name string, args []word) (given bool, f *Finding) {
	valued := targetOptions
	switch name {
	case "cp", "mv", "ln":
	case "install":
		valued = installOptions
	default:
		return false, nil // -t of rsync has no value
	}
	for i := 0; i < len(args) && args[i].text != "--"; i++ {
		var name string
		var values []word
		name, values, i = takeOption(args, i, valued)
		if name != "-t" && name != "--target-directory" {
			continue
		}
		given = true
		for _, v := range values {
			if f := s.write(v); f != nil {
				return true, f
			}
		}
	}
	return given, nil
}

// readsOnly reports whether a command leaves its input files unchanged.
func (s *script) readsOnly(name string, args []word) bool {
	switch name {
	case "sed", "gsed":
		return !slices.ContainsFunc(args, func(w word) bool {
			return strings.HasPrefix(w.text, "--in-place") ||
				strings.HasPrefix(w.text, "-") && !strings.HasPrefix(w.text, "--") && strings.Contains(w.text, "i")
		})
	case "sort":
		return !slices.ContainsFunc(args, func(w word) bool {
			return strings.HasPrefix(w.text, "-o") || strings.HasPrefix(w.text, "--output")
		})
	case "git":
		sub, _ := gitSub(args)
		return s.tables.GitReads[sub]
	case "find":
		return true // run judges its -exec commands, find judges its deletions
	case "awk", "gawk", "mawk", "nawk":
		return !slices.ContainsFunc(args, func(w word) bool { return strings.Contains(w.text, "inplace") })
	}
	return s.tables.Readers[name]
}

// attached checks values that are attached to an option or prefix: --file=x, if=x, -fx,
// @x, host:x. A program that fetches may have its addresses there.
func (s *script) attached(a word, reads, fetches bool) *Finding {
	p := a.pattern()
	var values []string
	if _, v, ok := strings.Cut(p, "="); ok {
		if fetches && remoteURL(v) {
			return nil
		}
		values = append(values, v)
		if strings.HasPrefix(p, "of=") {
			if f := s.write(word{text: unescape(v), glob: a.glob}); f != nil {
				return f
			}
		}
	}
	if len(p) > 2 && p[0] == '-' && p[1] != '-' {
		values = append(values, p[2:])
		for i := 3; fetches && i < min(len(p), 8) && alphanumeric(p[i-1]); i++ {
			values = append(values, p[i:]) // curl -sT.env
		}
	}
	if i := strings.LastIndexByte(p, '@'); i >= 0 {
		values = append(values, p[i+1:])
	}
	if i := strings.LastIndexByte(p, ':'); i >= 0 {
		values = append(values, p[i+1:])
	}
	for _, v := range values {
		w := toWord(v)
		if f := s.namesSecret(w); f != nil {
			return f
		}
		if e := s.match(w, s.protected); e != "" && !reads {
			return forbid("%s is protected and could be changed; read it with cat", e)
		}
	}
	return nil
}

// locations returns the paths that a word may refer to, one per possible working folder.
func (s *script) locations(w word) []location {
	if s.spend((len(w.text) + 8) * len(s.dirs) / 8); s.spent() {
		return nil // the command is refused
	}
	locs := make([]location, 0, len(s.dirs))
	for _, d := range s.dirs {
		l := locate(s.workspace, d.path, w.pattern())
		l.doubt = d.doubt
		l.wild = w.glob != "" || strings.Contains(l.abs, unknown)
		locs = append(locs, l)
	}
	return locs
}

func (s *script) match(w word, entry func(location) string) string {
	if w.text == "" || w.text == unknown {
		return ""
	}
	for _, l := range s.locations(w) {
		if e := entry(l); e != "" {
			return e
		}
	}
	return ""
}

// protected returns the entry that forbids writes of loc in this turn, or "".
func (s *script) protected(loc location) string {
	if e := s.paths.protected(loc); e != "" || s.authority >= api.Self.Authority() {
		return e
	}
	return s.paths.Self.match(loc)
}

// namesSecret refuses a word that names a secret.
func (s *script) namesSecret(w word) *Finding {
	if e := s.match(w, s.paths.secret); e != "" {
		return forbid("%s holds secrets and no command may touch it; use the tool that needs the secret instead", e)
	}
	return nil
}

// write refuses a word as the target of a write.
func (s *script) write(w word) *Finding {
	if w.text == "" || w.text == unknown {
		return nil
	}
	for _, l := range s.locations(w) {
		if e := s.protected(l); e != "" {
			return forbid("%s is protected and cannot be written; write to another file", e)
		}
		if !l.inside && !l.scratch() && !l.doubt && !harmlessDevice(l.abs) {
			return forbid("%s is outside the workspace and cannot be written; use a path in the workspace or below /tmp", unescape(strings.ReplaceAll(l.abs, unknown, "?")))
		}
	}
	return nil
}

// remoteURL reports whether a word is a URL, which is not a local path for a program that
// fetches URLs. For others it is: http://../.env is the file .env if there is a folder
// named http:.
func remoteURL(text string) bool {
	scheme, _, ok := strings.Cut(text, "://")
	return ok && (scheme == "http" || scheme == "https" || scheme == "ssh" || scheme == "git")
}

func harmlessDevice(abs string) bool {
	switch abs {
	case "/dev/null", "/dev/stdout", "/dev/stderr", "/dev/tty", "/tmp", "/var/tmp":
		return true
	}
	return strings.HasPrefix(abs, "/dev/fd/")
}

// socket refuses the network devices that bash emulates.
func (s *script) socket(text string) *Finding {
	if !s.network && (strings.Contains(text, "/dev/tcp/") || strings.Contains(text, "/dev/udp/")) {
		return deny(NetworkDenied, "/dev/tcp and /dev/udp need the network and this agent's sandbox has none")
	}
	return nil
}
