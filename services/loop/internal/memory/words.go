package memory

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// maxTerms is the largest number of terms of a query (docs/reference/memory.md, Query).
const maxTerms = 25

// Fold returns text in the form in which it is compared: without compatibility forms,
// accents and case.
func Fold(s string) string {
	if isASCII(s) {
		return strings.ToLower(s) // most texts are ASCII, and this takes a tenth of the time
	}
	return strings.Map(func(r rune) rune {
		if unicode.Is(unicode.Mn, r) {
			return -1
		}
		return unicode.ToLower(r)
	}, norm.NFKD.String(strings.ToValidUTF8(s, " ")))
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// Words returns the folded runs of letters and digits of a text, the form in which an
// index of any engine has it. Words of more than 64 bytes are left out.
func Words(s string) []string {
	all := strings.FieldsFunc(Fold(s), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsNumber(r) })
	return slices.DeleteFunc(all, func(w string) bool { return len(w) > 64 })
}

// Query is a parsed query (docs/reference/memory.md, Query).
type Query struct {
	// Terms are folded and keep their punctuation: "100%" matches these characters, and
	// not every 100 (V-30 in docs/reference/memory.md, Test vectors).
	Terms      []string
	Categories []string // of facts that it is about
	Days       int      // it is about the last Days days; 0: any time
}

var (
	quoted = regexp.MustCompile(`"([^"\n]{2,128})"`)
	token  = regexp.MustCompile(`[\pL\pN][\pL\pN_./%-]{1,63}`)
)

// ParseQuery parses a text, and adds terms of the goals up to [maxTerms].
func ParseQuery(text string, goals ...string) Query {
	var q Query
	text = Fold(text)
	for _, m := range quoted.FindAllStringSubmatch(text, -1) {
		q.add(strings.TrimSpace(m[1]))
	}
	q.addTokens(quoted.ReplaceAllString(text, " "))
	for _, c := range aboutWords {
		if c.words.MatchString(text) {
			q.Categories = append(q.Categories, c.category)
		}
	}
	for _, d := range timeWords {
		if d.words.MatchString(text) {
			q.Days = d.days
			break
		}
	}
	for _, g := range goals {
		q.addTokens(Fold(g))
	}
	return q
}

func (q *Query) addTokens(folded string) {
	for _, t := range token.FindAllString(folded, -1) {
		t = strings.TrimRight(t, "./-")
		if len(t) < 2 || stopWords[t] {
			continue
		}
		q.add(t)
		if long, ok := abbreviations[t]; ok {
			q.add(long)
		}
	}
}

func (q *Query) add(term string) {
	if len(q.Terms) < maxTerms && !slices.Contains(q.Terms, term) && len(Words(term)) > 0 {
		q.Terms = append(q.Terms, term)
	}
}

// Phrases returns the terms as sequences of words, for [Store].Search.
func (q Query) Phrases() []string {
	out := make([]string, 0, len(q.Terms))
	for _, t := range q.Terms {
		if p := strings.Join(Words(t), " "); !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}

// share returns the share of the query's terms that an entry's text contains, and
// scratch, which it has used for the text, for the next entry.
func (q Query) share(e *Entry, scratch []byte) (float64, []byte) {
	if len(q.Terms) == 0 {
		return 0, scratch
	}
	scratch = appendFolded(scratch[:0], e.ID, e.Title, e.Text, e.Extra)
	n := 0
	for _, t := range q.Terms {
		if bytes.Contains(scratch, []byte(t)) {
			n++
		}
	}
	return float64(n) / float64(len(q.Terms)), scratch
}

// appendFolded appends the parts of a text, separated by spaces, folded as by [Fold].
func appendFolded(b []byte, parts ...string) []byte {
	for _, p := range parts {
		if !isASCII(p) { // characters at the end of a part may fold with the next
			return append(b[:0], Fold(strings.Join(parts, " "))...)
		}
	}
	for i, p := range parts {
		if i > 0 {
			b = append(b, ' ')
		}
		for k := range len(p) {
			c := p[k]
			if c >= 'A' && c <= 'Z' {
				c += 'a' - 'A'
			}
			b = append(b, c)
		}
	}
	return b
}

var abbreviations = map[string]string{
	"aa": "account abstraction", "api": "programming interface", "cd": "continuous delivery", "ci": "continuous integration",
	"db": "database", "llm": "language model", "mcp": "model context protocol", "pnl": "profit", "qa": "quality", "rag": "retrieval",
	"sre": "reliability", "ts": "typescript", "ui": "interface", "ux": "experience",
}

var aboutWords = []struct {
	category string
	words    *regexp.Regexp
}{
	{"financial", regexp.MustCompile(`\b(price|pricing|cost|costs|balance|money|credit|credits|usd|usdc|pay|paid|earn|revenue|budget|fee|fees|profit)\b`)},
	{"environment", regexp.MustCompile(`\b(error|errors|failed|fails|server|machine|sandbox|kernel|disk|network|port|installed|environment)\b`)},
	{"market", regexp.MustCompile(`\b(market|markets|competitor|competitors|competition|rival|rivals|alternative|alternatives|demand|trend|trends|adoption|traffic)\b`)},
	{"creator", regexp.MustCompile(`\b(creator|owner|boss)\b`)},
	{"agent", regexp.MustCompile(`\b(agent|agents|peer|peers|friend|who)\b|\b0x[0-9a-f]{4,}`)},
	{"self", regexp.MustCompile(`\b(yourself|myself|soul|genesis|your name)\b`)},
	{"procedural_ref", regexp.MustCompile(`\b(how to|procedure|steps)\b`)},
}

var timeWords = []struct {
	days  int
	words *regexp.Regexp
}{
	{30, regexp.MustCompile(`\b(last|this) month\b`)},
	{1, regexp.MustCompile(`\byesterday\b|\blast day\b`)},
	{7, regexp.MustCompile(`\b(today|latest|recent|recently|currently)\b|\b(last|this) week\b`)},
}

var stopWords = func() map[string]bool {
	m := map[string]bool{}
	for w := range strings.FieldsSeq(`about above after again all also am an and any are as at be because been before being below between
		both but by can could did do does doing done down during each else ever every few for from further get gets give go goes got had
		has have having he her here hers him his how however if in into is it its itself just let like make many may me might more most
		much must my no nor not now of off on once one only or other our ours out over own please same shall she should so some such tell
		than that the their theirs them then there these they this those through to too under until up us use used using very was we were
		what when where which while who whom why will with within without would yes yet you your yours wake message peer`) {
		m[w] = true
	}
	return m
}()
