// Package rules checks traces against the rules of docs/tracing.md: whether a turn is one
// connected trace, has links to its causes, and has span names that can be aggregated. It
// must not depend on Jaeger's API.
package rules

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/anima-run/anima/tools/trace/query"
)

// Attributes that the rules read.
const (
	operation = "gen_ai.operation.name"
	turnID    = "automaton.turn.id"
)

// Names of the rules.
const (
	OneRoot   = "one-root"   // exactly one span has no parent; in the trace of a turn it is invoke_agent
	NoOrphans = "no-orphans" // every parent is in the trace
	UniqueIDs = "unique-ids" // no two spans have the same id, except copies of one span, which OTLP allows
	OneTurn   = "one-turn"   // every span that names a turn names this one, whose id determines the trace's id
	Services  = "services"   // all services take part in the turn or in a trace that it links to
	Links     = "links"      // every link refers to an existing span
	Order     = "order"      // no span begins before its parent
	Names     = "names"      // span names contain no ids
	Consumers = "consumers"  // every span that consumes a message has a link to the span that sent it
	NotSplit  = "not-split"  // the spans of a turn are in one trace; only for many traces
	Turns     = "turns"      // every turn has its trace, with the root span of the derived id; only with Expected
	Records   = "records"    // every trace that a row names exists; only with Expected
)

// All returns the services of the suite.
func All() []string {
	return []string{"heartbeat", "inference-router", "loop", "policy", "social", "treasury"}
}

// Source returns the traces that links refer to.
type Source interface {
	// Trace returns query.ErrNotFound if there is no such trace.
	Trace(ctx context.Context, id string) (query.Trace, error)
}

// Options determine how strictly traces are checked.
type Options struct {
	Services []string      // services that must take part; nil means none
	Skew     time.Duration // maximum difference between clocks
	Depth    int           // maximum number of consecutive links that are followed; 0 means 3
}

// Verdict is the result of one rule.
type Verdict struct {
	Rule   string   `json:"rule"`
	Pass   bool     `json:"pass"`
	Note   string   `json:"note,omitempty"`   // figures
	Faults []string `json:"faults,omitempty"` // the first faults
	Count  int      `json:"count"`            // number of all faults
}

// most is the maximum number of faults that a verdict holds.
const most = 10

func verdict(rule, note string, faults []string) Verdict {
	v := Verdict{Rule: rule, Pass: len(faults) == 0, Note: note, Count: len(faults)}
	v.Faults = faults[:min(len(faults), most)]
	return v
}

// Report is the result of all rules for one trace and those that it links to.
type Report struct {
	Trace    string    `json:"trace"`
	Turn     string    `json:"turn,omitempty"`
	Spans    int       `json:"spans"`
	Services []string  `json:"services"` // including those of linked traces
	Linked   []string  `json:"linked,omitempty"`
	Verdicts []Verdict `json:"verdicts"`
}

// OK reports whether every rule passes.
func (r Report) OK() bool {
	return !slices.ContainsFunc(r.Verdicts, func(v Verdict) bool { return !v.Pass })
}

// TurnOf returns the id of the trace's turn, or "" if it is not the trace of a turn.
func TurnOf(t query.Trace) string {
	for _, s := range t.Spans {
		if s.Attributes[operation] == "invoke_agent" {
			return s.Attributes[turnID]
		}
	}
	return ""
}

// Check checks one trace. An error of the source other than query.ErrNotFound is
// returned; a missing trace is a fault.
func Check(ctx context.Context, t query.Trace, from Source, o Options) (Report, error) {
	t, copies := single(t)
	linked, broken, err := follow(ctx, t, from, o.Depth)
	if err != nil {
		return Report{}, err
	}
	r := Report{Trace: t.ID, Turn: TurnOf(t), Spans: len(t.Spans), Services: t.Services()}
	for _, l := range linked {
		r.Linked = append(r.Linked, l.ID)
		for _, s := range l.Services() {
			if !slices.Contains(r.Services, s) {
				r.Services = append(r.Services, s)
			}
		}
	}
	slices.Sort(r.Services)
	slices.Sort(r.Linked)
	var missing []string
	for _, s := range o.Services {
		if !slices.Contains(r.Services, s) {
			missing = append(missing, "no span of "+s)
		}
	}
	r.Verdicts = []Verdict{
		oneRoot(t, r.Turn != ""), noOrphans(t), uniqueIDs(t, copies), oneTurn(t, r.Turn),
		verdict(Services, strings.Join(r.Services, " "), missing),
		verdict(Links, fmt.Sprintf("%d traces linked", len(linked)), broken),
		order(t, o.Skew), names(t), consumers(t),
	}
	return r, nil
}

// follow returns the traces that t links to, directly or through others up to the depth,
// and a description of each broken link.
func follow(ctx context.Context, t query.Trace, from Source, depth int) (linked []query.Trace, broken []string, err error) {
	if depth == 0 {
		depth = 3
	}
	known := map[string]*query.Trace{t.ID: &t}
	step := []query.Trace{t}
	for range depth {
		var next []query.Trace
		for _, at := range step {
			for _, s := range at.Spans {
				for _, l := range s.Links {
					if _, asked := known[l.TraceID]; !asked {
						got, found, err := get(ctx, from, l.TraceID)
						if err != nil {
							return nil, nil, err
						}
						known[l.TraceID] = nil
						if found {
							known[l.TraceID] = &got
							next = append(next, got)
						}
					}
					if to := known[l.TraceID]; to == nil {
						broken = append(broken, fmt.Sprintf("%s links to trace %s, which is not there", label(s), l.TraceID))
					} else if !slices.ContainsFunc(to.Spans, func(x query.Span) bool { return x.ID == l.SpanID }) {
						broken = append(broken, fmt.Sprintf("%s links to span %s of trace %s, which has no such span", label(s), l.SpanID, l.TraceID))
					}
				}
			}
		}
		linked, step = append(linked, next...), next
	}
	return linked, broken, nil
}

func label(s query.Span) string { return s.Service + ": " + s.Name + " (" + s.ID + ")" }

func oneRoot(t query.Trace, turn bool) Verdict {
	var faults []string
	roots := t.Roots()
	if len(roots) != 1 {
		faults = append(faults, fmt.Sprintf("%d roots, want 1", len(roots)))
		for _, s := range roots {
			faults = append(faults, label(s))
		}
	}
	note := ""
	if len(roots) > 0 {
		note = roots[0].Name
	}
	if turn && len(roots) == 1 && roots[0].Attributes[operation] != "invoke_agent" {
		faults = append(faults, label(roots[0])+" is the root, want invoke_agent")
	}
	return verdict(OneRoot, note, faults)
}

// faulty returns what fault says about each span, without "".
func faulty(t query.Trace, fault func(query.Span) string) (faults []string) {
	for _, s := range t.Spans {
		if text := fault(s); text != "" {
			faults = append(faults, label(s)+text)
		}
	}
	return faults
}

// byID returns the spans by their ids.
func byID(t query.Trace) map[string]query.Span {
	spans := map[string]query.Span{}
	for _, s := range t.Spans {
		spans[s.ID] = s
	}
	return spans
}

func noOrphans(t query.Trace) Verdict {
	spans := byID(t)
	return verdict(NoOrphans, fmt.Sprintf("%d spans", len(t.Spans)), faulty(t, func(s query.Span) string {
		if _, ok := spans[s.Parent]; ok || s.Parent == "" {
			return ""
		}
		return " has the parent " + s.Parent + ", which is not there"
	}))
}

// single removes copies of spans. A process that receives no acknowledgement of its
// export repeats it, which OTLP allows.
func single(t query.Trace) (query.Trace, int) {
	seen := map[string]query.Span{}
	out := query.Trace{ID: t.ID, Spans: make([]query.Span, 0, len(t.Spans))}
	for _, s := range t.Spans {
		if other, ok := seen[s.ID]; ok && same(s, other) {
			continue
		}
		seen[s.ID] = s
		out.Spans = append(out.Spans, s)
	}
	return out, len(t.Spans) - len(out.Spans)
}

func same(a, b query.Span) bool {
	return a.Parent == b.Parent && a.Service == b.Service && a.Name == b.Name && a.Kind == b.Kind &&
		a.Start.Equal(b.Start) && a.End.Equal(b.End) && a.Failed == b.Failed && a.Reason == b.Reason &&
		maps.Equal(a.Attributes, b.Attributes) && slices.Equal(a.Links, b.Links)
}

func uniqueIDs(t query.Trace, copies int) Verdict {
	note := ""
	if copies > 0 {
		note = fmt.Sprintf("%d copies", copies)
	}
	seen := map[string]string{}
	var faults []string
	for _, s := range t.Spans {
		if other, ok := seen[s.ID]; ok {
			faults = append(faults, label(s)+" has the id of "+other)
		}
		seen[s.ID] = s.Name
	}
	return verdict(UniqueIDs, note, faults)
}

func oneTurn(t query.Trace, turn string) Verdict {
	var faults []string
	if turn != "" && query.TurnTrace(turn) != t.ID {
		faults = append(faults, "the turn "+turn+" belongs into trace "+query.TurnTrace(turn))
	}
	for _, s := range t.Spans {
		if id := s.Attributes[turnID]; turn != "" && id != "" && id != turn {
			faults = append(faults, label(s)+" is of the turn "+id)
		}
	}
	return verdict(OneTurn, turn, faults)
}

func order(t query.Trace, skew time.Duration) Verdict {
	spans := byID(t)
	return verdict(Order, "", faulty(t, func(s query.Span) string {
		if p, ok := spans[s.Parent]; ok && s.Start.Before(p.Start.Add(-skew)) {
			return fmt.Sprintf(" begins %s before its parent %s", p.Start.Sub(s.Start), p.Name)
		}
		return ""
	}))
}

// idLike matches words of span names that look like ids: long hexadecimal numbers, UUIDs,
// and decimal numbers of four or more digits.
var idLike = regexp.MustCompile(`(?i)\b(0x)?[0-9a-f]{16,}\b|\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b|\b0x[0-9a-f]{6,}|(^|[^\w.-])\d{4,}\b`)

func names(t query.Trace) Verdict {
	distinct := map[string]bool{}
	faults := faulty(t, func(s query.Span) string {
		if distinct[s.Name] {
			return ""
		}
		distinct[s.Name] = true
		if idLike.MatchString(s.Name) {
			return " has an id in its name"
		}
		return ""
	})
	return verdict(Names, fmt.Sprintf("%d names", len(distinct)), faults)
}

func consumers(t query.Trace) Verdict {
	var faults []string
	n := 0
	for _, s := range t.Spans {
		if s.Kind != query.Consumer {
			continue
		}
		n++
		if len(s.Links) == 0 {
			faults = append(faults, label(s)+" links nothing")
		}
	}
	return verdict(Consumers, fmt.Sprintf("%d consumers", n), faults)
}
