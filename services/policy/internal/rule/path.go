package rule

import (
	"path"
	"strings"
)

// unknown stands in a shell word for text that only the run knows.
const unknown = "\x00"

// location is a path as rules compare it: absolute, lexically clean and with
// its case folded, because some file systems fold it too. Symbolic links are not
// resolved here, there is no I/O: the executor opens files through os.Root, which
// refuses a link that leaves the workspace.
type location struct {
	abs    string   // clean; may hold [unknown]
	elems  []string // folded; path.Match patterns if wild, may hold [unknown]
	below  int      // first element below the workspace, 0 when outside
	inside bool     // the workspace or below it
	wild   bool     // elems hold glob patterns
}

// locate resolves raw as a tool would: relative to dir, "~" is the workspace
// (it is the tools' HOME), and somebody else's home is outside.
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

// contains says whether l is dir or an ancestor of it.
func (l location) contains(dir string) bool {
	dir = path.Clean(dir)
	return l.abs == "/" || dir == l.abs || strings.HasPrefix(dir, l.abs+"/")
}

// scratch says whether l is strictly inside a folder for temporary files.
func (l location) scratch() bool {
	return strings.HasPrefix(l.abs, "/tmp/") || strings.HasPrefix(l.abs, "/var/tmp/")
}

// fold makes two spellings of a name equal that a file system without case
// would take for one file. Upper case first: U+017F, the long s, has no other
// way to s.
func fold(s string) string {
	for i := range len(s) {
		if c := s[i]; c >= 0x80 {
			return strings.ToLower(strings.ToUpper(s))
		}
	}
	return strings.ToLower(s)
}

// covers says whether the element, which may be a pattern, can be the name.
// An element that fits nearly everything (*, *.json, a variable) does not count
// as naming it: `cat *.json` is about a folder, and the sandbox keeps secrets
// out of the folder.
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

// generic says whether a glob holds no letters besides an extension.
func generic(elem string) bool {
	rest := strings.TrimLeft(elem, "*?")
	return rest != elem && (rest == "" || rest[0] == '.' && !strings.ContainsAny(rest, "*?"+unknown))
}

// everything says whether a glob is made of wildcards only.
func everything(elem string) bool { return strings.Trim(elem, "*?") == "" }
