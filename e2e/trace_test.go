package e2e

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/telemetry/oteltest"
)

// TestTrace checks that one trace is one turn: it has one root, no orphaned span and
// spans of all six services, and every link refers to an existing trace. Spans are
// exported over OTLP, in one process and in many.
func TestTrace(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(testing.TB, map[string]string) *world{"one process": oneProcess, "many processes": manyProcesses} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := oteltest.Receiver(t)
			w := begin(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": c.Endpoint(), "OTEL_BSP_SCHEDULE_DELAY": "100"})
			a, b := born(t, w, "Traced", api.Dollar), born(t, w, "Other", api.Dollar)
			work := send(t, w, a.ID, "work")
			sleep := send(t, w, a.ID, "sleep")
			tell := send(t, w, a.ID, "tell "+b.Address+" hello")
			woken := await(t, w, api.LoopEnd{Session: b.Mail}, func(api.LoopEnd) bool { return true })

			var traces []string
			for _, end := range []api.LoopEnd{work, sleep, tell, woken} {
				if !end.Success {
					t.Fatalf("run: %+v", end)
				}
				for _, turn := range turnsOf(t, w, end.Run) {
					traces = append(traces, turn.Trace)
				}
			}
			// Spans arrive in batches, that of the root among the last: wait until every
			// trace is complete, and report what is missing otherwise.
			ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
			defer cancel()
			var faults []string
			// The turn that sleeps and the turn that sends a message together use every
			// service.
			id, other := turnsOf(t, w, sleep.Run)[0].Trace, turnsOf(t, w, tell.Run)[0].Trace
			services := func(all []oteltest.Span) map[string]bool {
				seen := map[string]bool{}
				for _, s := range all {
					if s.TraceID.String() == id || s.TraceID.String() == other {
						seen[s.Service] = true
					}
				}
				return seen
			}
			whole := func(all []oteltest.Span) bool {
				faults = nil
				if len(services(all)) < len(names) {
					faults = append(faults, id+": a service is missing")
				}
				for _, id := range traces {
					for _, f := range oteltest.Check(all, traceID(t, id)) {
						faults = append(faults, id+": "+f)
					}
				}
				return len(faults) == 0
			}
			t.Cleanup(func() {
				for _, f := range faults {
					t.Log(f)
				}
			})
			spans := c.Wait(ctx, whole)
			seen := services(spans)
			for _, s := range spans {
				if s.TraceID.String() != id {
					continue
				}
				if !s.Parent.IsValid() && s.Name != "invoke_agent Traced" {
					t.Errorf("the root is %q", s.Name)
				}
			}
			for _, n := range names {
				if !seen[n] {
					t.Errorf("%s is not in the trace: %v", n, seen)
				}
			}
			// Every transaction of the turns is in the trace of one of them.
			for _, e := range call[api.Entries](t, w, api.ListEntries{Agent: a.ID}).Entries {
				if strings.HasPrefix(e.Kind, "hold") || strings.HasPrefix(e.Kind, "settle") {
					if !slices.Contains(traces, e.Trace) {
						t.Errorf("posting %s is in trace %q, which is no turn's", e.ID, e.Trace)
					}
				}
			}
		})
	}
}

func traceID(t testing.TB, hex string) trace.TraceID {
	t.Helper()
	id, err := trace.TraceIDFromHex(hex)
	if err != nil {
		t.Fatal(err)
	}
	return id
}
