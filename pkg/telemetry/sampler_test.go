package telemetry_test

import (
	"strings"
	"testing"

	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/telemetry"
)

func TestSampling(t *testing.T) {
	t.Parallel()
	parent := func(flags trace.TraceFlags) trace.SpanContext {
		return trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}, TraceFlags: flags, Remote: true})
	}
	const kept, dropped = true, false
	for _, c := range []struct {
		name, sampler, arg          string
		root, below, belowUnsampled bool
	}{
		{"default", "", "", kept, kept, dropped},
		{"default by name", "parentbased_always_on", "", kept, kept, dropped},
		{"everything", "always_on", "", kept, kept, kept},
		{"nothing", "always_off", "", dropped, dropped, dropped},
		{"only what others keep", "parentbased_always_off", "", dropped, kept, dropped},
		{"none of the roots", "parentbased_traceidratio", "0", dropped, kept, dropped},
		{"a part without a size", "traceidratio", "", kept, kept, kept},
		{"a part of nothing", "traceidratio", "0.0", dropped, dropped, dropped},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			e := open(t, telemetry.Options{Lookup: env("OTEL_TRACES_SAMPLER", c.sampler, "OTEL_TRACES_SAMPLER_ARG", c.arg)})
			tracer := start(t, e, "loop").TracerProvider().Tracer("x")
			_, root := tracer.Start(t.Context(), "root")
			_, below := tracer.Start(trace.ContextWithRemoteSpanContext(t.Context(), parent(trace.FlagsSampled)), "below")
			unsampled := trace.ContextWithRemoteSpanContext(t.Context(), parent(0))
			_, belowUnsampled := tracer.Start(unsampled, "below unsampled")
			for what, s := range map[string]struct {
				span trace.Span
				want bool
			}{"root": {root, c.root}, "below a kept one": {below, c.below}, "below a dropped one": {belowUnsampled, c.belowUnsampled}} {
				if got := s.span.SpanContext().IsSampled(); got != s.want {
					t.Errorf("%s: sampled %v, want %v", what, got, s.want)
				}
				s.span.End()
			}
			// A turn is sampled independently of the sender's decision.
			traceID, spanID := telemetry.DeriveIDs("turn", "r1", "0")
			_, turn := telemetry.StartRoot(unsampled, tracer, "invoke_agent lucky", traceID, spanID)
			if got := turn.SpanContext().IsSampled(); got != c.root {
				t.Errorf("turn: sampled %v, want %v", got, c.root)
			}
			turn.End()
		})
	}
}

func TestSamplerFaults(t *testing.T) {
	t.Parallel()
	for name, lookup := range map[string]func(string) (string, bool){
		"OTEL_TRACES_SAMPLER=":     env("OTEL_TRACES_SAMPLER", "jaeger_remote"),
		"OTEL_TRACES_SAMPLER_ARG=": env("OTEL_TRACES_SAMPLER", "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG", "NaN"),
	} {
		_, err := telemetry.Open(t.Context(), telemetry.Options{Lookup: lookup})
		if err == nil || !strings.HasPrefix(err.Error(), name) || !strings.Contains(err.Error(), "want ") {
			t.Errorf("got %v, want a fault that begins with %s and says what is accepted", err, name)
		}
	}
}
