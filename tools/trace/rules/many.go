package rules

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/anima-run/anima/tools/trace/query"
)

// Summary is the result of all rules for many traces.
type Summary struct {
	Traces   int       `json:"traces"`
	Turns    int       `json:"turns"`
	Spans    int       `json:"spans"`
	Services []string  `json:"services"`
	Verdicts []Verdict `json:"verdicts"`
	Failed   []string  `json:"failed,omitempty"` // traces that broke a rule
	Copies   int       `json:"copies,omitempty"` // spans that were exported more than once
}

// Expected holds the traces that must exist according to a source other than Jaeger.
type Expected struct {
	Turns   map[string]string // trace of each turn's row, by the turn's id
	Records map[string]string // trace of each other row, by the name of the row
}

// OK reports whether every trace complies with every rule.
func (s Summary) OK() bool {
	return !slices.ContainsFunc(s.Verdicts, func(v Verdict) bool { return !v.Pass })
}

// CheckAll checks many traces, those of turns and others. The rule about services applies
// to all traces together, not to each. No turn may be in two traces. Links are resolved
// among the given traces first, then by from.
func CheckAll(ctx context.Context, all []query.Trace, from Source, o Options) (Summary, error) {
	sum := Summary{Traces: len(all)}
	source := memory{from: from, known: map[string]query.Trace{}}
	for _, t := range all {
		source.known[t.ID] = t
	}
	faults := map[string][]string{}
	turns := map[string][]string{}
	want := o.Services
	o.Services, o.Depth = nil, 1 // each linked trace is checked separately
	for _, t := range all {
		r, err := Check(ctx, t, source, o)
		if err != nil {
			return sum, err
		}
		t, copies := single(t)
		sum.Copies += copies
		faults[NotSplit] = append(faults[NotSplit], strays(t)...)
		sum.Spans += r.Spans
		for _, s := range t.Services() {
			if !slices.Contains(sum.Services, s) {
				sum.Services = append(sum.Services, s)
			}
		}
		for _, s := range t.Spans {
			if id := s.Attributes[turnID]; id != "" && s.Attributes[operation] == "invoke_agent" && !slices.Contains(turns[id], t.ID) {
				turns[id] = append(turns[id], t.ID)
			}
		}
		if !r.OK() {
			sum.Failed = append(sum.Failed, t.ID)
		}
		for _, v := range r.Verdicts {
			for _, f := range v.Faults {
				faults[v.Rule] = append(faults[v.Rule], t.ID+" "+f)
			}
		}
	}
	sum.Turns = len(turns)
	slices.Sort(sum.Services)
	for id, in := range turns {
		if len(in) > 1 {
			faults[NotSplit] = append(faults[NotSplit], "the turn "+id+" is in the traces "+strings.Join(in, ", "))
		}
	}
	for _, s := range want {
		if !slices.Contains(sum.Services, s) {
			faults[Services] = append(faults[Services], "no span of "+s)
		}
	}
	if sum.Turns == 0 {
		faults[OneTurn] = append(faults[OneTurn], "there is no turn among the traces")
	}
	for _, rule := range []string{OneRoot, NoOrphans, UniqueIDs, OneTurn, NotSplit, Services, Links, Order, Names, Consumers} {
		note := ""
		switch rule {
		case OneTurn:
			note = fmt.Sprintf("%d turns", sum.Turns)
		case NoOrphans:
			note = fmt.Sprintf("%d spans", sum.Spans)
		case Services:
			note = strings.Join(sum.Services, " ")
		}
		if rule == UniqueIDs && sum.Copies > 0 {
			note = fmt.Sprintf("%d copies", sum.Copies)
		}
		slices.Sort(faults[rule])
		sum.Verdicts = append(sum.Verdicts, verdict(rule, note, faults[rule]))
	}
	return sum, nil
}

// strays returns the spans of a turn in a trace other than the turn's. It ignores traces
// of consumers, because the handling of a message may continue after the end of the turn
// that sent it.
func strays(t query.Trace) []string {
	roots := t.Roots()
	if len(roots) != 1 || roots[0].Kind == query.Consumer {
		return nil // no root or several roots are a fault already
	}
	var faults []string
	for _, s := range t.Spans {
		if id := s.Attributes[turnID]; id != "" && query.TurnTrace(id) != t.ID {
			faults = append(faults, t.ID+" "+label(s)+" is of the turn "+id+", whose trace is another")
		}
	}
	return faults
}

// Compare returns the verdicts on the expected traces: which are missing, or differ.
func Compare(ctx context.Context, all []query.Trace, from Source, want Expected) ([]Verdict, error) {
	source := memory{from: from, known: map[string]query.Trace{}}
	for _, t := range all {
		source.known[t.ID] = t
	}
	var turns, records []string
	for id, trace := range want.Turns {
		if derived := query.TurnTrace(id); trace != derived {
			turns = append(turns, "the row of the turn "+id+" names the trace "+trace+", want "+derived)
			continue
		}
		t, found, err := get(ctx, source, trace)
		if err != nil {
			return nil, err
		}
		t, _ = single(t)
		roots := 0
		for _, s := range t.Spans {
			if s.Parent == "" && s.ID == query.TurnRoot(id) && s.Attributes[turnID] == id {
				roots++
			}
		}
		switch {
		case !found:
			turns = append(turns, "the trace "+trace+" of the turn "+id+" is not there")
		case roots != 1:
			turns = append(turns, fmt.Sprintf("the trace %s of the turn %s has %d roots of the derived id, want 1", trace, id, roots))
		}
	}
	for row, trace := range want.Records {
		t, found, err := get(ctx, source, trace)
		if err != nil {
			return nil, err
		}
		if !found || len(t.Spans) == 0 {
			records = append(records, row+" names the trace "+trace+", which is not there")
		}
	}
	slices.Sort(turns)
	slices.Sort(records)
	return []Verdict{
		verdict(Turns, fmt.Sprintf("%d turns", len(want.Turns)), turns),
		verdict(Records, fmt.Sprintf("%d rows", len(want.Records)), records),
	}, nil
}

// memory is a Source that returns known traces without a request.
type memory struct {
	known map[string]query.Trace
	from  Source
}

func (m memory) Trace(ctx context.Context, id string) (query.Trace, error) {
	if t, ok := m.known[id]; ok {
		return t, nil
	}
	t, err := m.from.Trace(ctx, id)
	if err == nil {
		m.known[id] = t
	}
	return t, err
}

// get requests a trace; a missing trace is not an error.
func get(ctx context.Context, from Source, id string) (t query.Trace, found bool, err error) {
	t, err = from.Trace(ctx, id)
	if errors.Is(err, query.ErrNotFound) {
		return t, false, nil
	}
	return t, err == nil, err
}
