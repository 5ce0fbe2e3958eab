package rule

import (
	"path"
	"strings"
)

// unknown marks text of a shell word that is not known before the command runs.
const unknown = "\x00"

// location is a path in the form that rules compare: absolute, lexically clean and
// case-folded, because some file systems ignore case. Symbolic links are not resolved,
// because rules do no I/O; the executor opens files through os.Root, which refuses a link
// that leads out of the workspace.
type location struct {
	abs    string   // clean; may hold [unknown]
	elems  []string // folded; path.Match patterns if wild, may hold [unknown]
	below  int      // first element below the workspace, 0 when outside
	inside bool     // the workspace or below it
	wild   bool     // elems hold glob patterns
	doubt  bool     // relative to a folder in doubt, see [folder]
}

// locate resolves a path as a tool would. A relative path is relative to dir, "~" is the
// workspace, which is the HOME of the tools, and "~name" is outside the workspace.
func locate(workspace, dir, raw string) location {
	if rest, ok := strings.CutPrefix(raw, "~"); ok {
		switch {
		case rest == "" || rest[0] == '/':
			raw = workspace + rest
		case rest == "+" || strings.HasPrefix(rest, "+/"):
			raw = dir + rest[1:]
		default:
			raw = "/~" + rest
		}
	}
	if !path.IsAbs(raw) {
		raw = dir + "/" + raw
	}
	abs := path.Clean(raw)
	l := location{abs: abs}
	if abs != "/" {
		l.elems = strings.Split(fold(abs[1:]), "/")
	}
	ws := path.Clean(workspace)
	switch {
	case !path.IsAbs(ws):
	case ws == "/":
		l.inside = true
	case abs == ws || strings.HasPrefix(abs, ws+"/"):
		l.inside, l.below = true, strings.Count(ws, "/")
	}
	return l
}

// contains reports whether l is dir or an ancestor of dir.
func (l location) contains(dir string) bool {
	dir = path.Clean(dir)
	return l.abs == "/" || dir == l.abs || strings.HasPrefix(dir, l.abs+"/")
}

// scratch reports whether l is strictly inside a folder for temporary files.
func (l location) scratch() bool {
	return strings.HasPrefix(l.abs, "/tmp/") || strings.HasPrefix(l.abs, "/var/tmp/")
}

// fold maps spellings of a name that are equal on a case-insensitive file system to one
// spelling. It maps to upper case first, because U+017F (long s) becomes s only that way.
func fold(s string) string {
	for i := range len(s) {
		if c := s[i]; c >= 0x80 {
			return strings.ToLower(strings.ToUpper(s))
		}
	}
	return strings.ToLower(s)
}

// covers reports whether an element, which may be a pattern, can match the name. An
// element that matches nearly every name (*, *.json, a variable) does not count: the
// sandbox keeps secrets out of the folder that such a pattern lists.
func covers(elem, name string) bool {
	if !strings.ContainsAny(elem, "*?\\"+unknown) {
		return elem == name
	}
	if elem == unknown || generic(elem) {
		return false
	}
	if strings.HasPrefix(name, ".") && (elem[0] == '*' || elem[0] == '?') {
		return false // globs do not match a leading dot
	}
	ok, err := path.Match(strings.ReplaceAll(elem, unknown, "*"), name)
	return ok || err != nil
}

// generic reports whether a glob has no literal characters besides an extension.
func generic(elem string) bool {
	rest := strings.TrimLeft(elem, "*?")
	return rest != elem && (rest == "" || rest[0] == '.' && !strings.ContainsAny(rest, "*?"+unknown))
}

// everything reports whether a glob consists of wildcards only.
func everything(elem string) bool { return strings.Trim(elem, "*?") == "" }
