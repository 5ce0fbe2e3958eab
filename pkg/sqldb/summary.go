package sqldb

import "strings"

// summarize extracts the name of a span from a statement: the operation in capitals, such
// as INSERT, and the first table that it uses, as written, or "" if there is none. It
// never returns the content of strings, numbers or parameters. It is not a complete
// parser: of text that it does not understand it returns only the first word.
func summarize(query string) (operation, table string) {
	words := split(query)
	at := 0
	for at < len(words) && words[at].text == "(" {
		at++
	}
	if at == len(words) || !words[at].plain {
		return "", ""
	}
	operation = strings.ToUpper(words[at].text)
	ctes := map[string]bool{}
	if operation == "WITH" {
		at = skipWith(words, at, ctes)
		if at == len(words) {
			return operation, ""
		}
		operation = strings.ToUpper(words[at].text)
	}
	rest := words[at+1:]
	switch operation {
	case "SELECT":
		return operation, selected(words, ctes)
	case "INSERT", "REPLACE", "MERGE":
		return operation, after(rest, "INTO")
	case "DELETE":
		return operation, after(rest, "FROM")
	case "UPDATE":
		if len(rest) > 1 && rest[0].is("OR") { // SQLite: update or ignore t
			rest = rest[2:]
		}
		return operation, name(rest)
	case "CREATE", "ALTER", "DROP", "TRUNCATE":
		return operation, after(rest, "TABLE")
	}
	return operation, ""
}

// word is a word of a statement, or one of the characters ( ) and comma.
type word struct {
	text  string // last part of a qualified name, without quotes
	plain bool   // neither quoted nor one of the characters, so it may be a keyword
	depth int    // number of open parentheses around it
	query bool   // the innermost parentheses hold a SELECT, or there are none
}

func (w word) is(keyword string) bool { return w.plain && strings.EqualFold(w.text, keyword) }

// skipWith returns the index of the statement that follows the common table expressions,
// and adds their names to ctes.
func skipWith(words []word, at int, ctes map[string]bool) int {
	depth := words[at].depth
	for named := true; ; {
		at++
		if at == len(words) {
			return at
		}
		w := words[at]
		switch {
		case w.depth != depth || w.is("RECURSIVE"):
		case w.text == ",":
			named = true
		case named:
			ctes[strings.ToLower(w.text)] = true
			named = false
		case w.is("SELECT"), w.is("INSERT"), w.is("UPDATE"), w.is("DELETE"):
			return at
		}
	}
}

// selected returns the table of a SELECT: that of its own FROM, otherwise the first one
// of its subqueries.
func selected(words []word, ctes map[string]bool) string {
	inner := ""
	for i, w := range words {
		// FROM is also part of extract(epoch from x) and of IS DISTINCT FROM.
		if !w.is("FROM") || !w.query || i > 0 && words[i-1].is("DISTINCT") {
			continue
		}
		t := name(words[i+1:])
		for j := i + 1; j < len(words) && j <= i+3; j++ { // a function is not a table
			if words[j].text == t && j+1 < len(words) && words[j+1].text == "(" {
				t = ""
			}
		}
		switch {
		case t == "" || ctes[strings.ToLower(t)]:
		case w.depth == words[0].depth && words[0].text != "(":
			return t
		case inner == "":
			inner = t
		}
	}
	return inner
}

// after returns the name that follows a keyword.
func after(words []word, keyword string) string {
	for i, w := range words {
		if w.is(keyword) {
			return name(words[i+1:])
		}
	}
	return ""
}

// name returns the name at the start of words.
func name(words []word) string {
	for _, w := range words {
		switch {
		case w.is("ONLY"), w.is("LATERAL"), w.is("IF"), w.is("NOT"), w.is("EXISTS"):
		case w.text == "(" || w.text == ")" || w.text == ",":
			return ""
		default:
			return w.text
		}
	}
	return ""
}

// split splits a statement into words. It omits strings, numbers, parameters, comments
// and operators.
func split(q string) []word {
	var words []word
	open := []bool{true} // for each parenthesis whether it holds a SELECT
	add := func(text string, plain bool) {
		words = append(words, word{text, plain, len(open) - 1, open[len(open)-1]})
	}
	for i := 0; i < len(q); {
		switch c := q[i]; {
		case strings.HasPrefix(q[i:], "--"):
			i = end(q, i, "\n")
		case strings.HasPrefix(q[i:], "/*"):
			i = end(q, i+2, "*/")
		case c == '\'':
			i = end(q, i+1, "'") // an escaped '' is read as two adjacent strings
		case c == '(':
			add("(", false)
			open = append(open, opensQuery(q[i+1:]))
			i++
		case c == ')':
			if len(open) > 1 {
				open = open[:len(open)-1]
			}
			add(")", false)
			i++
		case c == ',':
			add(",", false)
			i++
		case c == '$' || c == ':' || c == '@' || c == '?' || c >= '0' && c <= '9':
			for i++; i < len(q) && letter(q[i]); i++ {
			}
		case c == '"' || letter(c):
			var text string
			plain := c != '"'
			text, i = identifier(q, i)
			for i+1 < len(q) && q[i] == '.' && (q[i+1] == '"' || letter(q[i+1])) { // keep the table of schema.table
				plain = false
				text, i = identifier(q, i+1)
			}
			add(text, plain)
		default:
			i++
		}
	}
	return words
}

// end returns the index after the next mark, or the length of q if there is none.
func end(q string, from int, mark string) int {
	if from > len(q) {
		return len(q)
	}
	if n := strings.Index(q[from:], mark); n >= 0 {
		return from + n + len(mark)
	}
	return len(q)
}

func identifier(q string, i int) (string, int) {
	if q[i] == '"' {
		last := end(q, i+1, `"`)
		return strings.Trim(q[i:last], `"`), last
	}
	from := i
	for i < len(q) && letter(q[i]) {
		i++
	}
	return q[from:i], i
}

func letter(c byte) bool {
	return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c >= 0x80
}

func opensQuery(q string) bool {
	q = strings.TrimLeft(q, " \t\r\n(")
	return len(q) >= 6 && strings.EqualFold(q[:6], "select") || len(q) >= 4 && strings.EqualFold(q[:4], "with")
}
