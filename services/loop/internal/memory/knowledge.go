package memory

import (
	"cmp"
	"encoding/json"
	"iter"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/catalog"

	"github.com/anima-run/anima/services/loop/internal/sanitize"
)

// Bounds of the facts that the tools of a turn can make, whatever the author of their
// answers (docs/reference/memory.md, Market knowledge).
const (
	// MaxKnowledge is the number of facts of a turn that are stored, those with the
	// highest confidence. It is the number of results on a page of search results. A page
	// that tries to fill the memory needs fifty turns for [MaxFacts].
	MaxKnowledge = 10

	maxScanned = 10_000 // bytes of an answer that are scanned, as many as the model is shown
	maxSignal  = 240    // characters of a fragment that are stored
	maxSubject = 40     // characters of the subject in a key, so that the key has at most maxKey bytes
	maxSignals = 200    // signals of an answer, the first
	maxDates   = 8      // dates of a fragment
)

// Confidence is counted in hundredths, because floating-point sums may be rounded
// differently on processors with fused operations.
const (
	leastConfidence = 50 // a fact with less is not stored
	sureConfidence  = 70 // a fact with less expires
	knowledgeLife   = 30 * 24 * time.Hour
)

// Knowledge extracts facts about prices, demand and competitors from the answers of a
// turn's tools (docs/reference/memory.md, Market knowledge): at most [MaxKnowledge],
// the highest confidence first, each key once. All have an external origin. The result
// depends on the turn only, and takes time proportional to at most maxScanned bytes for
// each call.
//
// A signal is recognised by its words; whether it is true is not checked.
func Knowledge(t api.Turn) []Fact {
	var all []Fact
	for _, c := range t.Calls {
		for _, f := range signals(c, t.EndedAt) {
			f.Turn = t.ID
			// Of equal confidence the later call counts, because its answer is newer.
			if i := slices.IndexFunc(all, func(o Fact) bool { return o.ID() == f.ID() }); i < 0 {
				all = append(all, f)
			} else if f.Confidence >= all[i].Confidence {
				all[i] = f
			}
		}
	}
	slices.SortStableFunc(all, bySurety)
	return all[:min(len(all), MaxKnowledge)]
}

func bySurety(a, b Fact) int { return cmp.Compare(b.Confidence, a.Confidence) }

// outward are the built-in tools whose answers may have external content. The answers of
// the others are the agent's own state: a balance is no price, and a recalled fact would
// confirm itself.
var outward = []string{"discover_agents", "exec", "read_file", "search_domains", "x402_fetch"}

// marketTool are parts of the names of tools that query a market (docs/memory.md,
// Knowledge of a market).
var marketTool = []string{"search", "discover", "fetch", "domain", "market", "price", "api"}

// signals returns the facts in the answer of one call, at most [MaxKnowledge], the
// highest confidence first.
func signals(c api.CallState, at int64) []Fact {
	if failed(c) || c.Result == "" {
		return nil
	}
	if _, builtin := catalog.Named(c.Tool); builtin && !slices.Contains(outward, c.Tool) {
		return nil
	}
	text := start(sanitize.Clean(start(c.Result, maxScanned)), maxScanned)
	found := scan(text)
	if found&signal == 0 {
		return nil
	}
	tool := first(c.Tool, 64)
	from, asked := host(c.Arguments)
	named := slices.ContainsFunc(marketTool, func(w string) bool { return strings.Contains(strings.ToLower(tool), w) })
	if !named && !asked && found&market == 0 {
		return nil
	}
	return extract(text, tool, from, at)
}

// extract returns the facts of a text in which scan has found signals.
func extract(text, tool, from string, at int64) []Fact {
	type fragment struct {
		text  string
		signs signs
		fresh int // 0: it has no date
	}
	var all []fragment
	page := 0 // recency of the text's own date
	for f := range fragments(text) {
		s := first(strings.Join(strings.Fields(f), " "), maxSignal)
		found := scan(s)
		if found&(signal|dated) == 0 || found&secret != 0 {
			continue
		}
		fresh := recency(s, at)
		if found&dated != 0 && page == 0 {
			page = fresh
		}
		// Instructions are not about a market, and must not be shown again.
		if found&signal != 0 && len(all) < maxSignals && sanitize.Instructions(s) == s {
			all = append(all, fragment{s, found, fresh})
		}
	}
	// Of signals with the same confidence the first counts, because pages begin with
	// their subject.
	var out []Fact
	place := map[string]int{}
	source := "tool:" + tool
	if from != "" {
		source += " " + from
	}
	trust := sourceTrust(tool, from)
	for _, s := range all {
		sure := confidence(trust, cmp.Or(s.fresh, page, undated))
		if sure < leastConfidence {
			continue
		}
		about := subject(s.text, from)
		for _, kind := range kinds {
			if s.signs&kind.sign == 0 {
				continue
			}
			f := Fact{
				Category: kind.category, Key: kind.name + ":" + about, Value: s.text, Confidence: float64(sure) / 100, Source: source,
				By: api.Principal{Kind: api.External}, At: at,
			}
			if sure < sureConfidence {
				f.Expires = at + knowledgeLife.Microseconds()
			}
			if i, known := place[f.Key]; !known {
				place[f.Key] = len(out)
				out = append(out, f)
			} else if f.Confidence > out[i].Confidence {
				out[i] = f
			}
		}
	}
	slices.SortStableFunc(out, bySurety)
	return out[:min(len(out), MaxKnowledge)]
}

// host returns the host of the url or endpoint in a call's arguments, "" if it cannot be
// parsed, and whether they have one. The rest of an address is left out, because it may
// contain a secret.
func host(arguments json.RawMessage) (string, bool) {
	var args struct {
		URL      string `json:"url"`
		Endpoint string `json:"endpoint"`
	}
	_ = json.Unmarshal(arguments, &args) // arguments that do not match are left empty
	address := strings.TrimSpace(cmp.Or(args.URL, args.Endpoint))
	if address == "" {
		return "", false
	}
	if !strings.Contains(address, "://") {
		address = "//" + address
	}
	u, err := url.Parse(start(address, 2048))
	if err != nil || !isHost(u.Hostname()) {
		return "", true
	}
	return bare(u.Hostname()), true
}

// bare returns a host in the form in which facts name it: lower case, without "www.".
func bare(host string) string {
	return strings.TrimPrefix(strings.ToLower(host), "www.")
}

// fragments returns the lines of a text. The only line, or one longer than maxSignal, is
// split into sentences, or into records if it is JSON.
func fragments(text string) iter.Seq[string] {
	return func(yield func(string) bool) {
		var lines []string
		for line := range strings.SplitSeq(text, "\n") {
			line = strings.TrimSpace(line)
			if len(line) > 2 && line[0] == '[' && isLetter(line[1]) && line[len(line)-1] == ']' {
				continue // source and truncation marks are added by loop
			}
			// Marks of quotations, lists and tables.
			if line = strings.TrimLeft(line, "> \t-*#|•"); line != "" {
				lines = append(lines, line)
			}
		}
		for _, line := range lines {
			parts := sentences(line)
			switch {
			case len(lines) > 1 && len(line) <= maxSignal:
				parts = slices.Values([]string{line})
			case line[0] == '{' || line[0] == '[':
				parts = strings.SplitSeq(line, "}")
			}
			for s := range parts {
				if !yield(s) {
					return
				}
			}
		}
	}
}

// sentences splits a line after a full stop, exclamation or question mark that a space
// follows.
func sentences(line string) iter.Seq[string] {
	return func(yield func(string) bool) {
		from := 0
		for i := 1; i < len(line); i++ {
			if line[i] == ' ' && strings.IndexByte(".!?", line[i-1]) >= 0 {
				if !yield(line[from:i]) {
					return
				}
				from = i + 1
			}
		}
		if from < len(line) {
			yield(line[from:])
		}
	}
}

// signs are the possible subjects of a text, by its words.
type signs uint8

const (
	pricing signs = 1 << iota
	demand
	competitor
	market // the text is about a market, whatever the tool
	dated  // a date next to it is that of the text
	secret // must not be stored

	signal = pricing | demand | competitor
)

var kinds = []struct {
	sign           signs
	name, category string
}{{pricing, "pricing", "financial"}, {demand, "demand", "market"}, {competitor, "competitor", "market"}}

// longestSign is the length of the longest word in signWords, in bytes.
const longestSign = 13

var signWords = func() map[string]signs {
	m := map[string]signs{"usd": market, "usdc": market}
	for _, l := range []struct {
		signs signs
		words string
	}{
		{pricing | market, "price prices priced pricing"},
		{pricing, "cost costs fee fees subscription subscriptions rate rates revenue revenues"},
		{demand | market, "demand demands"},
		{demand, "trend trends trending growth volume volumes traffic adoption users waitlist backlog orders"},
		{competitor | market, "competitor competitors alternative alternatives rival rivals"},
		{competitor, "vs versus"},
		{dated, "updated published posted modified dated date"},
		{secret, "password passwords passphrase mnemonic bearer secret secrets apikey"},
	} {
		for w := range strings.FieldsSeq(l.words) {
			m[w] = l.signs
		}
	}
	return m
}()

// shapes holds, by first letter, the lengths of the words with a meaning, as bits. It
// excludes most words without a lookup.
var shapes = func() [256]uint16 {
	var s [256]uint16
	for w := range signWords {
		s[w[0]] |= 1 << len(w)
	}
	for _, w := range []string{"cent", "cents", "leader", "leaders", "of"} { // they have a meaning after certain words
		s[w[0]] |= 1 << len(w)
	}
	for c := '0'; c <= '9'; c++ { // as in 5usd
		s[c] = 1<<(longestSign+1) - 1
	}
	return s
}()

// scan returns the signs of a text in one pass without allocations, because it is applied
// to the answers of all tools that may have queried a market.
func scan(text string) signs {
	var found signs
	var word [longestSign]byte
	n, from := 0, 0
	for i := range len(text) + 1 {
		c := byte(' ')
		if i < len(text) {
			c = text[i]
		}
		if isLetter(c) || isDigit(c) {
			if n == 0 {
				from = i
			}
			if n < len(word) {
				word[n] = lower(c)
			}
			n++
			continue
		}
		if n > 0 && n <= len(word) && shapes[word[0]]&(1<<n) != 0 {
			found |= wordSigns(word[:n], text[:from])
		}
		n = 0
		if c == '$' && amount(text[i+1:]) {
			found |= pricing | market
		}
	}
	return found
}

// wordSigns returns the signs of a word in lower case, given the text before it.
func wordSigns(word []byte, before string) signs {
	found := signWords[string(word)]
	unit := 0
	for unit < len(word) && isDigit(word[unit]) {
		unit++
	}
	switch string(word[unit:]) {
	case "usd", "usdc":
		found |= market
		fallthrough
	case "cent", "cents":
		if n := strings.TrimSuffix(before, " "); unit > 0 || n != "" && isDigit(n[len(n)-1]) {
			found |= pricing
		}
	case "leader", "leaders":
		if follows(before, "market ") {
			found |= competitor
		}
	case "of":
		if follows(before, "as ") {
			found |= dated
		}
	}
	return found
}

// amount reports whether a text begins with a number, after at most one space.
func amount(s string) bool {
	s = strings.TrimPrefix(s, " ")
	s = strings.TrimPrefix(s, ".")
	return s != "" && isDigit(s[0])
}

// follows reports whether a text ends with end, ignoring case.
func follows(text, end string) bool {
	return len(text) >= len(end) && strings.EqualFold(text[len(text)-len(end):], end)
}

func isDigit(c byte) bool  { return '0' <= c && c <= '9' }
func isLetter(c byte) bool { return 'a' <= lower(c) && lower(c) <= 'z' || c >= utf8.RuneSelf }

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		c += 'a' - 'A'
	}
	return c
}

// confidence returns the confidence of a signal from the trust in its source and its
// recency, all in hundredths (docs/reference/memory.md, Market knowledge).
func confidence(source, recency int) int { return (65*source + 35*recency + 50) / 100 }

// Trust in sources, in hundredths (docs/reference/memory.md, Market knowledge).
const (
	official  = 90
	listing   = 72
	somewhere = 55
	gossip    = 45
	unknown   = 35
)

// sourceWords are words of hosts and tools, with the trust in such a source.
var sourceWords = []struct {
	trust int
	words []string
}{
	{official, strings.Fields("official docs registry conway api")},
	{listing, strings.Fields("search discover domain domains web market markets news report reports")},
	{gossip, strings.Fields("social reddit forum forums twitter")},
	{unknown, strings.Fields("exec shell unknown")},
}

// sourceTrust returns the trust in content that a tool got from a host, in hundredths: by
// the host, otherwise by the tool. Only whole words of a host count, because an author
// can choose any path. The name of a tool never makes it official, because its provider
// chose the name.
func sourceTrust(tool, host string) int {
	under := func(site string) bool { return host == site || strings.HasSuffix(host, "."+site) }
	switch {
	case under("github.com"), under("wikipedia.org"), under("gov"), under("edu"):
		return official
	case under("x.com"):
		return gossip
	case tool == "read_file": // a file does not have an author
		return unknown
	}
	for _, name := range []string{host, strings.ToLower(tool)} {
		words := strings.FieldsFunc(name, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
		for _, s := range sourceWords {
			if slices.ContainsFunc(words, func(w string) bool { return slices.Contains(s.words, w) }) && (name == host || s.trust != official) {
				return s.trust
			}
		}
	}
	return somewhere
}

// Recency of a signal, in hundredths (docs/reference/memory.md, Market knowledge).
const (
	undated        = 50
	unreadable     = 45
	freshToday     = 100
	freshYesterday = 95
)

const months = `(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*`

// dates matches dates in lower case.
var dates = regexp.MustCompile(`\b(?:` + strings.Join([]string{
	`(\d{4})[-/](\d{1,2})[-/](\d{1,2})(?:\b|t)`,                          // 1 2 3
	`(\d{1,2})(?:st|nd|rd|th)? ` + months + `\.?,? (\d{4})\b`,            // 4 5 6
	months + `\.? (\d{1,2})(?:st|nd|rd|th)?,? (\d{4})\b`,                 // 7 8 9
	`(\d{1,4}|an?|one) (second|minute|hour|day|week|month|year)s? ago\b`, // 10 11
	`(today|just now)\b`,      // 12
	`(yesterday)\b`,           // 13
	`\d{1,2}/\d{1,2}/\d{4}\b`, // day or month first: ambiguous
}, "|") + `)`)

// recency returns the recency of a text with single spaces by its latest date, in
// hundredths; 0: it has no date.
func recency(s string, at int64) int {
	s = strings.ToLower(s)
	if !mayDate(s) {
		return 0
	}
	best := 0
	for _, m := range dates.FindAllStringSubmatch(s, maxDates) {
		best = max(best, freshness(m, at))
	}
	return best
}

// mayDate reports whether dates may match a text in lower case. Most signals are a name
// and an amount, and matching dates is most of the work.
func mayDate(s string) bool {
	digits := 0
	for i := range len(s) {
		if !isDigit(s[i]) {
			digits = 0
		} else if digits++; digits == 4 {
			return true // a year
		}
	}
	return strings.Contains(s, " ago") || strings.Contains(s, "day") || strings.Contains(s, "just now")
}

// freshness returns the recency of a match of dates.
func freshness(m []string, at int64) int {
	number := func(s string) int {
		n, err := strconv.Atoi(s)
		if err != nil {
			return 1 // "a", "an", "one"
		}
		return n
	}
	switch {
	case m[1] != "":
		return sinceDay(number(m[1]), time.Month(number(m[2])), number(m[3]), at)
	case m[4] != "":
		return sinceDay(number(m[6]), monthOf(m[5]), number(m[4]), at)
	case m[7] != "":
		return sinceDay(number(m[9]), monthOf(m[7]), number(m[8]), at)
	case m[10] != "":
		days := map[string]float64{"second": 1. / 86400, "minute": 1. / 1440, "hour": 1. / 24, "day": 1, "week": 7, "month": 30, "year": 365}
		return byAge(float64(number(m[10])) * days[m[11]])
	case m[12] != "":
		return freshToday
	case m[13] != "":
		return freshYesterday
	}
	return unreadable
}

func monthOf(name string) time.Month {
	return time.Month(strings.Index("janfebmaraprmayjunjulaugsepoctnovdec", name)/3 + 1)
}

// sinceDay returns the recency of a day in UTC. A day that is not in the calendar, or
// more than a day in the future, is unreadable.
func sinceDay(year int, month time.Month, day int, at int64) int {
	d := time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
	age := time.UnixMicro(at).Sub(d)
	if d.Month() != month || d.Day() != day || age < -24*time.Hour {
		return unreadable
	}
	return byAge(age.Hours() / 24)
}

func byAge(days float64) int {
	for _, step := range []struct {
		days  float64
		fresh int
	}{{1, freshToday}, {7, 90}, {30, 78}, {90, 62}, {365, 48}} {
		if days <= step.days {
			return step.fresh
		}
	}
	return 30
}

// subject returns the subject of a signal for the key of its fact: the word before a
// colon at its beginning, else its first domain, else its first word, else the host that
// it is from (docs/memory.md, Knowledge of a market). A word that only names the kind of
// signal is no subject, because two pages with "Price: $5" do not contradict each other.
func subject(s, host string) string {
	inWord := func(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) || r == '_' || r == '-' }
	if w, rest, found := strings.Cut(s, ":"); found && (rest == "" || rest[0] == ' ') &&
		!strings.ContainsFunc(w, func(r rune) bool { return !inWord(r) && r != '.' }) && names(w) {
		return folded(w)
	}
	for w := range strings.FieldsFuncSeq(s, func(r rune) bool { return !inHost(r) }) {
		if w = strings.Trim(w, ".-"); isHost(w) {
			return folded(bare(w))
		}
	}
	for w := range strings.FieldsFuncSeq(s, func(r rune) bool { return !inWord(r) }) {
		if w = strings.Trim(w, "_-"); names(w) {
			return folded(w)
		}
	}
	return cmp.Or(folded(host), "general")
}

func inHost(r rune) bool {
	return r < utf8.RuneSelf && (isLetter(byte(r)) || isDigit(byte(r))) || r == '.' || r == '-'
}

// isHost reports whether a text is a host with a domain: labels of ASCII letters and
// digits, the last without digits, the others not all of digits, as in "4.5m".
func isHost(s string) bool {
	i := strings.LastIndexByte(s, '.')
	if i < 1 || len(s) > 253 || s[0] == '.' || strings.Contains(s, "..") || strings.ContainsFunc(s, func(r rune) bool { return !inHost(r) }) {
		return false
	}
	last := s[i+1:]
	return len(last) > 1 && !strings.ContainsAny(last, "0123456789-") && strings.ContainsFunc(s[:i], unicode.IsLetter)
}

// names reports whether a word can be the subject of a signal.
func names(word string) bool {
	w := Fold(word)
	return utf8.RuneCountInString(w) > 1 && !stopWords[w] && signWords[w] == 0 && !isDigit(w[0]) && !slices.Contains(unspecific, w)
}

// unspecific are words next to an amount, and names of fields, that are no subjects.
var unspecific = strings.Fields("cent cents leader leaders name id title symbol item product plan tier url description available per month monthly year yearly day daily today yesterday week weekly ago total new free")

func folded(s string) string { return first(Fold(s), maxSubject) }

// start returns the first n bytes of a text at most, ending at a character.
func start(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
