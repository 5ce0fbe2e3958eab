package rule

import (
	"path"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

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
		if e := s.protected(l); e != "" {
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
		if !l.inside && !l.scratch() && !l.doubt {
			return forbid("%s outside the workspace and /tmp is refused; name something in the workspace", name)
		}
	}
	return nil
}

func (s *script) move(args []word) *Finding {
	folder, f := s.target("mv", args)
	if f != nil {
		return f
	}
	operands := slices.DeleteFunc(slices.Clone(args), func(w word) bool { return strings.HasPrefix(w.text, "-") })
	for i, a := range operands {
		if i == len(operands)-1 && !folder {
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

// search is the state of the judgement of find.
type search struct {
	roots    []word
	names    []word // what the filters before an action match
	paths    []word // the same of filters of the whole path
	filtered bool   // a filter applies to the next action
	deletes  bool   // an action deletes
	all      bool   // an action without a filter deletes
}

// find judges the commands that find runs and the files that it deletes.
func (s *script) find(args []word, stmt *syntax.Stmt) *Finding {
	var find search
	var inverted []bool // for each open parenthesis, whether a "!" is before it or an outer one
	not := false
	for i := 0; i < len(args); i++ {
		a := args[i].text
		negated := not || len(inverted) > 0 && inverted[len(inverted)-1]
		not = false
		switch {
		case i == len(find.roots) && !strings.HasPrefix(a, "-") && a != "(" && a != "!":
			find.roots = append(find.roots, args[i])
		case a == "!" || a == "-not":
			not = true
		case a == "(":
			inverted = append(inverted, negated)
		case a == ")" && len(inverted) > 0:
			inverted = inverted[:len(inverted)-1]
		case len(inverted) == 0 && (a == "-o" || a == "-or" || a == ","):
			find.filtered, find.names, find.paths = false, nil, nil
		case a == "-delete":
			if f := s.deleted(&find); f != nil {
				return f
			}
		case a == "-exec" || a == "-execdir" || a == "-ok" || a == "-okdir":
			end := slices.IndexFunc(args[i:], func(w word) bool { return w.text == ";" || w.text == "+" })
			if end < 0 {
				end = len(args) - i
			}
			inner := args[i+1 : i+end]
			if f := s.each(inner, slices.Concat(find.names, find.paths), stmt); f != nil {
				return f
			}
			if len(inner) > 0 && slices.Contains([]string{"rm", "shred", "unlink", "mv"}, path.Base(inner[0].text)) {
				if f := s.deleted(&find); f != nil {
					return f
				}
			}
			i += end
		case strings.HasSuffix(a, "name") || strings.HasSuffix(a, "path") || strings.HasSuffix(a, "regex"):
			var patterns []word
			patterns, i = following(args, i)
			for _, p := range patterns {
				if !negated && !everything(p.text) {
					find.filter(a, p.text)
				}
			}
			if len(find.names)+len(find.paths) > maxFields {
				return unjudgeable("find has too many filters to judge; split the command")
			}
		case a == "-fprint" || a == "-fprint0" || a == "-fprintf" || a == "-fls":
			if i+1 < len(args) {
				if f := s.write(args[i+1]); f != nil {
					return f
				}
			}
		case strings.HasSuffix(a, "time") || strings.HasSuffix(a, "min") || a == "-newer" || a == "-empty" || a == "-size":
			find.filtered = true
		}
	}
	if !find.deletes {
		return nil
	}
	if len(find.roots) == 0 {
		find.roots = []word{{text: "."}}
	}
	for _, r := range find.roots {
		if !find.all && slices.ContainsFunc(s.locations(r), func(l location) bool { return l.inside }) {
			continue
		}
		if f := s.removal("find", r, true); f != nil {
			return f
		}
	}
	return nil
}

// deleted judges an action that deletes what the filters before it match.
func (s *script) deleted(find *search) *Finding {
	find.deletes = true
	find.all = find.all || !find.filtered
	for _, n := range find.names {
		if f := s.removal("find", n, false); f != nil {
			return f
		}
	}
	for _, p := range find.paths {
		if f := s.removal("find", p, true); f != nil {
			return f
		}
	}
	return nil
}

// filter records what a filter of find matches, as far as its text tells.
func (find *search) filter(name, pattern string) {
	find.filtered = true
	if strings.HasPrefix(name, "-l") || name == "-ilname" { // the target of a link
		return
	}
	if strings.HasSuffix(name, "regex") {
		pattern = strings.NewReplacer(`\.`, ".", ".*", "*", ".+", "?*", ".", "?").Replace(pattern)
		if strings.ContainsAny(pattern, "|({+^$") {
			pattern = "/" + unknown // any path
		}
	}
	pattern = (&expansion{}).literal(pattern, false, false) // replaces bracket expressions
	patterns := []string{pattern}
	if rest := strings.TrimLeft(pattern, "*?"); rest != pattern && rest != "" && rest[0] != '/' {
		// The wildcards of find match a leading dot, those of a shell do not.
		patterns = append(patterns, "."+strings.TrimLeft(rest, "."))
	}
	roots := find.roots
	if len(roots) == 0 {
		roots = []word{{text: "."}}
	}
	for _, p := range patterns {
		if name != "-name" && name != "-iname" {
			find.paths = append(find.paths, toWord(p))
			continue
		}
		for _, r := range roots {
			find.names = append(find.names, toWord(r.pattern()+"/"+p))
		}
	}
}

// each judges a command of find, with every path that the filters match in place of {}.
func (s *script) each(inner, names []word, stmt *syntax.Stmt) *Finding {
	if len(names) == 0 {
		return s.run(inner, stmt)
	}
	for _, n := range names {
		argv := slices.Clone(inner)
		for i, a := range argv {
			if a.text == "{}" {
				argv[i] = n
			} else if strings.Contains(a.text, "{}") {
				argv[i] = word{text: strings.ReplaceAll(a.text, "{}", n.text), or: a.or}
			}
		}
		if f := s.run(argv, stmt); f != nil {
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
