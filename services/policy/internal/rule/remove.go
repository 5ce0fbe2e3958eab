package rule

import (
	"path"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// changeFolder applies cd to the working folder, to which later paths are relative.
func (s *script) changeFolder(args []word) {
	target := word{text: s.workspace}
	for _, a := range args {
		if !strings.HasPrefix(a.text, "-") {
			target = a
			break
		}
		if a.text == "-" {
			target = word{text: unknown}
		}
	}
	var dirs []string
	for _, d := range s.dirs {
		if abs := locate(s.workspace, d, target.text).abs; !slices.Contains(dirs, abs) {
			dirs = append(dirs, abs)
		}
	}
	s.dirs = dirs
}

// remove judges rm, rmdir, unlink and shred.
func (s *script) remove(name string, args []word) *Finding {
	recursive, maybe, ended := false, false, false
	var targets []word
	for _, a := range args {
		switch {
		case ended || !strings.HasPrefix(a.text, "-") || a.text == "-":
			targets = append(targets, a)
			maybe = maybe || a.text == unknown || a.or
		case a.text == "--":
			ended = true
		case a.text == "--no-preserve-root":
			return forbid("%s --no-preserve-root removes the whole machine; name what you want to remove", name)
		case strings.HasPrefix(a.text, "--"):
			recursive = recursive || strings.HasPrefix("--recursive", a.text)
		default:
			recursive = recursive || strings.ContainsAny(a.text, "rR"+unknown)
		}
	}
	for _, t := range targets {
		if t.text == unknown && !recursive {
			continue
		}
		// The options of `rm $options dir` may include -r.
		if f := s.removal(name, t, recursive || maybe); f != nil {
			return f
		}
	}
	return nil
}

// removal judges one target of a command that removes or moves files.
func (s *script) removal(name string, target word, recursive bool) *Finding {
	if target.text == "" {
		return nil
	}
	for _, l := range s.locations(target) {
		for len(l.elems) > l.below && l.wild && everything(l.elems[len(l.elems)-1]) && !strings.Contains(l.elems[len(l.elems)-1], unknown) {
			l.elems, l.abs = l.elems[:len(l.elems)-1], path.Dir(l.abs) // dir/* is judged as dir
		}
		if e := s.paths.protected(l); e != "" {
			return forbid("%s is protected and cannot be removed", e)
		}
		if e := s.paths.Homes.match(l); e != "" && (recursive || strings.TrimSuffix(e, "/") == l.elems[len(l.elems)-1]) {
			return forbid("%s is the agent itself and cannot be removed", e)
		}
		if recursive && (len(l.elems) == l.below || strings.Contains(l.elems[l.below], unknown)) && strings.Contains(l.abs, unknown) {
			return unjudgeable("what %s would remove is only known when it runs; write the path out", name)
		}
		if recursive && l.contains(s.workspace) {
			return forbid("%s would remove the whole workspace or more; name what you want to remove", name)
		}
		if !l.inside && !l.scratch() {
			return forbid("%s outside the workspace and /tmp is refused; name something in the workspace", name)
		}
	}
	return nil
}

func (s *script) move(args []word) *Finding {
	operands := slices.DeleteFunc(slices.Clone(args), func(w word) bool { return strings.HasPrefix(w.text, "-") })
	for i, a := range operands {
		if i == len(operands)-1 {
			return s.write(a)
		}
		if a.text == unknown {
			continue
		}
		if f := s.removal("mv", a, true); f != nil {
			return f
		}
	}
	return nil
}

// find judges the commands that find runs and the files that it deletes.
func (s *script) find(args []word, stmt *syntax.Stmt) *Finding {
	var roots []word
	deletes, filtered := false, false
	for i := 0; i < len(args); i++ {
		a := args[i].text
		switch {
		case i == len(roots) && !strings.HasPrefix(a, "-") && a != "(" && a != "!":
			roots = append(roots, args[i])
		case a == "-delete":
			deletes = true
		case a == "-exec" || a == "-execdir" || a == "-ok" || a == "-okdir":
			end := slices.IndexFunc(args[i:], func(w word) bool { return w.text == ";" || w.text == "+" })
			if end < 0 {
				end = len(args) - i
			}
			inner := args[i+1 : i+end]
			if f := s.run(inner, stmt); f != nil {
				return f
			}
			deletes = deletes || len(inner) > 0 && slices.Contains([]string{"rm", "shred", "unlink", "mv"}, path.Base(inner[0].text))
			i += end
		case strings.HasSuffix(a, "name") || strings.HasSuffix(a, "path") || strings.HasSuffix(a, "regex"):
			filtered = i+1 < len(args) && !everything(args[i+1].text)
		case a == "-fprint" || a == "-fprintf" || a == "-fls":
			if i+1 < len(args) {
				if f := s.write(args[i+1]); f != nil {
					return f
				}
			}
		case strings.HasSuffix(a, "time") || strings.HasSuffix(a, "min") || a == "-newer" || a == "-empty" || a == "-size":
			filtered = true
		}
	}
	if !deletes {
		return nil
	}
	if len(roots) == 0 {
		roots = []word{{text: "."}}
	}
	for _, r := range roots {
		if filtered && slices.ContainsFunc(s.locations(r), func(l location) bool { return l.inside }) {
			continue
		}
		if f := s.removal("find", r, true); f != nil {
			return f
		}
	}
	return nil
}

// kill allows a script to signal its own jobs, its last background process and itself.
func (s *script) kill(args []word) *Finding {
	for i := 0; i < len(args); i++ {
		a := args[i].text
		switch {
		case a == "-l" || a == "-L":
			return nil
		case a == "-s" || a == "-n":
			i++
		case i == 0 && strings.HasPrefix(a, "-") && a != "-1" || a == "--":
		case a == "$!" || a == "$$" || strings.HasPrefix(a, "%"):
		case i == 0 && a == "-1" && len(args) > 1: // kill -1 PID sends HUP
		default:
			return forbid("kill may only end what the command itself started; use kill $! or kill %%1")
		}
	}
	return nil
}

// mode refuses to give files to root and to set the set-uid and set-gid bits.
func (s *script) mode(name string, args []word) *Finding {
	i := slices.IndexFunc(args, func(w word) bool { return !strings.HasPrefix(w.text, "-") })
	if i < 0 {
		return nil
	}
	first := args[i].text
	owner, group, _ := strings.Cut(first, ":")
	if name == "chown" {
		if owner == "root" || owner == "0" || group == "root" || group == "0" {
			return forbid("files may not be given to root; keep them your own")
		}
		return nil
	}
	special := len(strings.TrimLeft(first, "0")) == 4 && strings.Trim(first, "01234567") == "" && strings.TrimLeft(first, "0")[0] > '1'
	_, set, symbolic := strings.Cut(first, "+")
	if special || symbolic && strings.Contains(set, "s") {
		return forbid("chmod %s makes a program run as its owner; leave that bit out", first)
	}
	return nil
}
