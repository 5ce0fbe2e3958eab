package memory

import (
	"cmp"
	"slices"
	"strings"
	"time"

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
