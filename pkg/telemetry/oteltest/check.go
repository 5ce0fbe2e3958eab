package oteltest

import (
	"fmt"
	"regexp"
	"strings"

	"go.opentelemetry.io/otel/trace"
)

// Check returns the faults of one trace among spans; nil means that the trace is
// complete: it has exactly one root, every parent exists, no span was sent twice, no
// child starts before its parent, and no name contains an id. Call it with all received
// spans, after the last one.
func Check(spans []Span, traceID trace.TraceID) []string {
	var faults []string
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }

	byID := map[trace.SpanID]Span{}
	var mine []Span
	for _, s := range spans {
		if s.TraceID != traceID {
			continue
		}
		if _, twice := byID[s.SpanID]; twice {
			fault("%s: span %s was sent twice", title(s), s.SpanID)
			continue
		}
		byID[s.SpanID] = s
		mine = append(mine, s)
	}
	if len(mine) == 0 {
		return []string{fmt.Sprintf("trace %s: no spans among %d", traceID, len(spans))}
	}

	var roots []string
	for _, s := range mine {
		if !s.Parent.IsValid() {
			roots = append(roots, title(s))
		} else if parent, ok := byID[s.Parent]; !ok {
			fault("%s: orphan, its parent %s is missing", title(s), s.Parent)
		} else if s.Start.Before(parent.Start) {
			fault("%s: starts %v before its parent %s", title(s), parent.Start.Sub(s.Start), title(parent))
		}
		if id := idIn(s.Name); id != "" {
			fault("%s: the name holds an id, %s", title(s), id)
		}
	}
	if len(roots) != 1 {
		fault("trace %s: %d roots, want 1: %s", traceID, len(roots), strings.Join(roots, ", "))
	}
	return faults
}

func title(s Span) string { return fmt.Sprintf("%s %q", s.Service, s.Name) }

var (
	hexRun = regexp.MustCompile(`[0-9a-fA-F]{8,}`)
	date   = regexp.MustCompile(`^20[0-9]{2}[01][0-9][0-3][0-9]$`)
)

// idIn returns a part of a name that looks like an id: eight or more consecutive hex
// digits, such as the first part of a UUID. Words of the letters a to f without a digit,
// and the dates in names of models, are not ids.
func idIn(name string) string {
	for _, run := range hexRun.FindAllString(name, -1) {
		if strings.ContainsAny(run, "0123456789") && !date.MatchString(run) {
			return run
		}
	}
	return ""
}
