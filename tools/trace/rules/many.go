package rules

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/anima-run/anima/tools/trace/query"
)

// Summary is what all rules found in many traces.
type Summary struct {
	Traces   int       `json:"traces"`
	Turns    int       `json:"turns"`
	Spans    int       `json:"spans"`
	Services []string  `json:"services"`
	Verdicts []Verdict `json:"verdicts"`
	Failed   []string  `json:"failed,omitempty"` // traces that broke a rule
}

// OK says whether every rule is kept in every trace.
func (s Summary) OK() bool {
	return !slices.ContainsFunc(s.Verdicts, func(v Verdict) bool { return !v.Pass })
}

// CheckAll judges many traces, those of turns and those around them. Every trace
// by itself need not reach all services; together they must. No turn may be in two
// traces. Links are looked up among the traces first.
func CheckAll(ctx context.Context, all []query.Trace, from Source, o Options) (Summary, error) {
	sum := Summary{Traces: len(all)}
	source := memory{from: from, known: map[string]query.Trace{}}
	for _, t := range all {
		source.known[t.ID] = t
	}
	faults := map[string][]string{}
	turns := map[string][]string{}
	want := o.Services
	o.Services, o.Depth = nil, 1 // each linked trace is judged by itself
	for _, t := range all {
		r, err := Check(ctx, t, source, o)
		if err != nil {
			return sum, err
		}
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
		slices.Sort(faults[rule])
		sum.Verdicts = append(sum.Verdicts, verdict(rule, note, faults[rule]))
	}
	return sum, nil
}

// memory answers from what was fetched already.
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

// get asks the source; what is not there is no error.
func get(ctx context.Context, from Source, id string) (t query.Trace, found bool, err error) {
	t, err = from.Trace(ctx, id)
	if errors.Is(err, query.ErrNotFound) {
		return t, false, nil
	}
	return t, err == nil, err
}
