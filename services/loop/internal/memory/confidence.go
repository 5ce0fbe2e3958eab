package memory

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
)

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
