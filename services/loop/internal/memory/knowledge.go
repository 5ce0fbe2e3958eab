package memory

import (
	"cmp"
	"encoding/json"
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
	text := sanitize.Bytes(sanitize.Clean(sanitize.Bytes(c.Result, maxScanned)), maxScanned)
	found := scan(text)
	if found&signal == 0 {
		return nil
	}
	tool := sanitize.First(c.Tool, 64)
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
	for _, f := range fragments(text) {
		s := sanitize.First(strings.Join(strings.Fields(f), " "), maxSignal)
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
	u, err := url.Parse(sanitize.Bytes(address, 2048))
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
func fragments(text string) (all []string) {
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
		switch {
		case len(lines) > 1 && len(line) <= maxSignal:
			all = append(all, line)
		case line[0] == '{' || line[0] == '[':
			all = append(all, strings.Split(line, "}")...)
		default:
			all = append(all, strings.Split(sentences.Replace(line), "\n")...)
		}
	}
	return all
}

// sentences ends each sentence of a line with a line end.
var sentences = strings.NewReplacer(". ", ".\n", "! ", "!\n", "? ", "?\n")

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

// vocabulary holds the words with a meaning. after is the text before the word that gives
// it this meaning, or [number]; "": it always has it.
var vocabulary = []struct {
	signs        signs
	after, words string
}{
	{pricing | market, "", "price prices priced pricing"},
	{pricing, "", "cost costs fee fees subscription subscriptions rate rates revenue revenues"},
	{market, "", "usd usdc"},
	{pricing | market, number, "usd usdc"},
	{pricing, number, "cent cents"},
	{demand | market, "", "demand demands"},
	{demand, "", "trend trends trending growth volume volumes traffic adoption users waitlist backlog orders"},
	{competitor | market, "", "competitor competitors alternative alternatives rival rivals"},
	{competitor, "", "vs versus"},
	{competitor, "market ", "leader leaders"},
	{dated, "", "updated published posted modified dated date"},
	{dated, "as ", "of"},
	{secret, "", "password passwords passphrase mnemonic bearer secret secrets apikey"},
}

const (
	number      = "0" // a digit and at most one space, or digits that begin the word, as in 5usd
	longestSign = 13  // length of the longest word, in bytes
)

type meaning struct {
	signs signs
	after string
}

// meanings is the vocabulary by word. shapes holds, by first letter, the lengths of its
// words, as bits; it excludes most words of a text without a lookup.
var meanings, shapes = func() (m map[string][]meaning, s [256]uint16) {
	m = map[string][]meaning{}
	for _, v := range vocabulary {
		for w := range strings.FieldsSeq(v.words) {
			m[w] = append(m[w], meaning{v.signs, v.after})
			s[w[0]] |= 1 << len(w)
		}
	}
	return m, s
}()

// scan returns the signs of a text in one pass without allocations, because it is applied
// to the answers of all tools that may have queried a market.
func scan(text string) signs {
	var found signs
	from, unit := 0, 0 // the beginning of a word, and of its part after the digits that begin it
	for i := range len(text) + 1 {
		if i < len(text) && (isLetter(text[i]) || isDigit(text[i])) {
			if i == unit && isDigit(text[i]) {
				unit++
			}
			continue
		}
		if unit < i && i-from <= longestSign && shapes[lower(text[unit])]&(1<<(i-unit)) != 0 {
			found |= wordSigns(text[:i], from, unit)
		}
		if i < len(text) && text[i] == '$' && amount(text[i+1:]) {
			found |= pricing | market
		}
		from, unit = i+1, i+1
	}
	return found
}

// wordSigns returns the signs of the word that ends a text. The word begins at from, and
// after its digits at unit.
func wordSigns(text string, from, unit int) (found signs) {
	var word [longestSign]byte
	n := copy(word[:], text[unit:])
	for i := range n {
		word[i] = lower(word[i])
	}
	for _, m := range meanings[string(word[:n])] {
		given := follows(text[:from], m.after)
		switch m.after {
		case "":
			given = from == unit
		case number:
			before := strings.TrimSuffix(text[:from], " ")
			given = from < unit || before != "" && isDigit(before[len(before)-1])
		}
		if given {
			found |= m.signs
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

// sites are hosts, with the trust in them and in their subdomains.
var sites = map[string]int{"github.com": official, "wikipedia.org": official, "gov": official, "edu": official, "x.com": gossip}

// sourceTrust returns the trust in content that a tool got from a host, in hundredths: by
// the host, otherwise by the tool. Only whole words of a host count, because an author
// can choose any path. The name of a tool never makes it official, because its provider
// chose the name.
func sourceTrust(tool, host string) int {
	for site, trust := range sites { // at most one matches
		if host == site || strings.HasSuffix(host, "."+site) {
			return trust
		}
	}
	if tool == "read_file" { // a file does not have an author
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

// ages are the units of an age, in days.
var ages = map[string]float64{"second": 1. / 86400, "minute": 1. / 1440, "hour": 1. / 24, "day": 1, "week": 7, "month": 30, "year": 365}

// freshness returns the recency of a match of dates.
func freshness(m []string, at int64) int {
	switch {
	case m[1] != "":
		return sinceDay("2006 1 2", m[1:4], at)
	case m[4] != "":
		return sinceDay("2 Jan 2006", m[4:7], at)
	case m[7] != "":
		return sinceDay("Jan 2 2006", m[7:10], at)
	case m[10] != "":
		n, err := strconv.Atoi(m[10])
		if err != nil {
			n = 1 // "a", "an", "one"
		}
		return byAge(float64(n) * ages[m[11]])
	case m[12] != "":
		return freshToday
	case m[13] != "":
		return freshYesterday
	}
	return unreadable
}

// sinceDay returns the recency of a day in UTC, given its parts in the order of a layout.
// A day that is not in the calendar, or more than a day in the future, is unreadable.
func sinceDay(layout string, parts []string, at int64) int {
	d, err := time.Parse(layout, strings.Join(parts, " "))
	age := time.UnixMicro(at).Sub(d)
	if err != nil || age < -24*time.Hour {
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
	return utf8.RuneCountInString(w) > 1 && !stopWords[w] && meanings[w] == nil && !isDigit(w[0]) && !slices.Contains(unspecific, w)
}

// unspecific are words next to an amount, and names of fields, that are no subjects.
var unspecific = strings.Fields("name id title symbol item product plan tier url description available per month monthly year yearly day daily today yesterday week weekly ago total new free")

func folded(s string) string { return sanitize.First(Fold(s), maxSubject) }
