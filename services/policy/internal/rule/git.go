package rule

import (
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// gitSub returns the subcommand of git and the arguments after it.
func gitSub(args []word) (string, []word) {
	for i := 0; i < len(args); i++ {
		switch a := args[i].text; {
		case a == "-C" || a == "-c" || a == "--git-dir" || a == "--work-tree":
			i++
		case strings.HasPrefix(a, "-"):
		default:
			return a, args[i+1:]
		}
	}
	return "", nil
}

// Options of git subcommands with text as their value.
var (
	messages = words("-m --message")
	searches = words("-S -G --grep --author")
)

// withoutTexts returns the arguments without commit messages and search patterns.
func withoutTexts(args []word) []word {
	sub, _ := gitSub(args)
	var texts map[string]bool
	pattern := false
	switch sub {
	case "commit", "tag", "merge", "stash", "notes":
		texts = messages
	case "log", "show", "shortlog":
		texts = searches
	case "grep":
		texts = givenPatterns
		pattern = !slices.ContainsFunc(args, func(w word) bool {
			return readOption(w.text, texts).name != "" || readOption(w.text, patternFiles).name != ""
		})
	}
	var rest []word
	found := false // the subcommand
	for i := 0; i < len(args); i++ {
		option, _, last := takeOption(args, i, texts)
		switch {
		case found && option != "":
			i = last
			continue
		case found && pattern && !strings.HasPrefix(args[i].text, "-"):
			pattern = false
			continue
		case args[i].text == sub:
			found = true
		}
		rest = append(rest, args[i])
	}
	return rest
}

// git refuses settings that run commands, and remotes if the sandbox has no network. It
// judges the commands of git bisect run and git submodule foreach, and those that are the
// value of an option, as in git rebase --exec.
func (s *script) git(args []word, stmt *syntax.Stmt) *Finding {
	sub, rest := gitSub(args)
	if len(rest) > 1 && (sub == "bisect" && rest[0].text == "run" || sub == "submodule" && rest[0].text == "foreach") {
		return s.run(rest[1:], stmt)
	}
	for i := 0; i < len(rest); i++ {
		option, values, last := takeOption(rest, i, s.tables.GitCommands[sub])
		for _, v := range values {
			if f := s.started("git "+sub+" "+option, v); f != nil {
				return f
			}
		}
		i = last
	}
	for i, a := range args {
		text, attached := strings.CutPrefix(fold(a.text), "--config=") // of git clone
		if !attached {
			text, attached = strings.CutPrefix(text, "--config-env=")
		}
		key, value, _ := strings.Cut(text, "=")
		set := attached || sub == "config" || i > 0 && slices.Contains([]string{"-c", "--config", "--config-env"}, args[i-1].text)
		if set && s.gitRuns(key) || strings.HasPrefix(value, "!") || sub == "config" && strings.HasPrefix(text, "!") {
			return forbid("git setting %s runs commands; run the command itself", key)
		}
	}
	remote := slices.ContainsFunc(rest, func(w word) bool {
		return strings.Contains(w.text, "://") || strings.Contains(w.text, "@") && strings.Contains(w.text, ":")
	})
	if !s.network && (s.tables.GitCalls[sub] || remote && (sub == "clone" || sub == "submodule" || sub == "archive")) {
		return deny(NetworkDenied, "git %s needs the network and this agent's sandbox has none; ask the creator to grant it", sub)
	}
	return nil
}

// gitRuns reports whether the value of a git setting is a command, or a file with such
// settings. The name of the setting is in lower case, and may have a part between two dots
// that names a tool, a driver or a remote.
func (s *script) gitRuns(key string) bool {
	section, name, _ := strings.Cut(key, ".")
	if section == "alias" && name != "" {
		return true
	}
	return s.tables.GitSettings[section+"."+name[strings.LastIndexByte(name, '.')+1:]]
}
