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

// withoutMessage returns the arguments without the text of a commit message.
func withoutMessage(args []word) []word {
	var rest []word
	for i := 0; i < len(args); i++ {
		if a := args[i].text; a == "-m" || a == "-am" || a == "--message" {
			i++
			continue
		}
		rest = append(rest, args[i])
	}
	return rest
}

// git refuses settings that run commands, and remotes if the sandbox has no network. It
// judges the commands of git bisect run and git submodule foreach.
func (s *script) git(args []word, stmt *syntax.Stmt) *Finding {
	sub, rest := gitSub(args)
	if len(rest) > 1 && (sub == "bisect" && rest[0].text == "run" || sub == "submodule" && rest[0].text == "foreach") {
		return s.run(rest[1:], stmt)
	}
	for i, a := range args {
		key, value, _ := strings.Cut(fold(a.text), "=")
		runs := strings.HasPrefix(key, "alias.") || slices.Contains([]string{
			"core.pager", "core.editor", "core.sshcommand", "core.fsmonitor", "core.hookspath", "diff.external",
		}, key)
		if runs && (sub == "config" || i > 0 && args[i-1].text == "-c") || strings.HasPrefix(value, "!") {
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
