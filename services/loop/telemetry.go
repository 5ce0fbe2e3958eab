package loop

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/catalog"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/telemetry"

	"github.com/anima-run/anima/services/loop/internal/engine"
)

// instruments holds the metrics of the service. It implements engine.Observer.
type instruments struct {
	turns, tools metric.Int64Counter
	turnS, toolS metric.Float64Histogram
	context      metric.Int64Histogram
	running      metric.Int64UpDownCounter
}

func newInstruments(p metric.MeterProvider) (*instruments, error) {
	m := p.Meter("github.com/anima-run/anima/services/loop")
	var t instruments
	var errs [6]error
	buckets := metric.WithExplicitBucketBoundaries(.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120)
	t.turns, errs[0] = m.Int64Counter("anima.loop.turns", metric.WithDescription("Turns by outcome"))
	t.tools, errs[1] = m.Int64Counter("anima.loop.tool.calls", metric.WithDescription("Tool calls by tool and outcome; other: tools of MCP servers, and names of no tool"))
	t.turnS, errs[2] = m.Float64Histogram("anima.loop.turn.duration", metric.WithUnit("s"), metric.WithDescription("Duration of a turn, including model calls"), buckets)
	t.toolS, errs[3] = m.Float64Histogram("anima.loop.tool.duration", metric.WithUnit("s"), metric.WithDescription("Time of a tool call"), buckets)
	t.context, errs[4] = m.Int64Histogram("anima.loop.context.tokens", metric.WithDescription("Estimated tokens of a prompt"),
		metric.WithExplicitBucketBoundaries(500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 90_000, 128_000))
	t.running, errs[5] = m.Int64UpDownCounter("anima.loop.running", metric.WithDescription("Runs being executed"))
	for _, err := range errs {
		if err != nil {
			return nil, fmt.Errorf("instrument: %w", err)
		}
	}
	return &t, nil
}

func (t *instruments) Turn(ctx context.Context, outcome string, d time.Duration) {
	set := metric.WithAttributes(attribute.String("outcome", outcome))
	t.turns.Add(ctx, 1, set)
	t.turnS.Record(ctx, d.Seconds(), set)
}

// otherTool is the attribute tool of all tools that are not in the catalogue. An agent
// installs MCP servers, whose tools have names of their own, and a model calls tools that
// do not exist: the number of such names has no limit, and each would be a time series.
const otherTool = "other"

// Tool implements engine.Observer.
func (t *instruments) Tool(ctx context.Context, name string, o api.Outcome, d time.Duration) {
	if _, ok := catalog.Named(name); !ok {
		name = otherTool
	}
	set := metric.WithAttributes(attribute.String("tool", name), attribute.String("outcome", string(o)))
	t.tools.Add(ctx, 1, set)
	t.toolS.Record(ctx, d.Seconds(), set)
}

func (t *instruments) Context(ctx context.Context, tokens int64) { t.context.Record(ctx, tokens) }

// recovered marks a turn that a previous owner may have started.
var recovered = attribute.Bool("anima.turn.recovered", true)

// rootSpan returns the function that starts the root span of a turn. Its ids derive
// from the turn, so all owners of the turn are in one trace. The span that started the
// run is linked, because it may have ended before.
//
// The root of a turn that a previous owner may have started begins at that owner's
// start, so that no span of the turn is older than its root.
func rootSpan(p trace.TracerProvider) func(context.Context, api.Run, engine.Agent, string, *engine.Past) (context.Context, trace.Span) {
	tracer := p.Tracer("github.com/anima-run/anima/services/loop")
	return func(ctx context.Context, cmd api.Run, a engine.Agent, id string, past *engine.Past) (context.Context, trace.Span) {
		traceID, spanID := telemetry.DeriveIDs("turn", id)
		opts := []trace.SpanStartOption{trace.WithAttributes(
			attribute.String("gen_ai.operation.name", "invoke_agent"), attribute.String("gen_ai.agent.name", a.Name),
			attribute.String("gen_ai.agent.id", a.ID), attribute.String("gen_ai.conversation.id", cmd.Session),
			attribute.String("automaton.turn.id", id), attribute.String("anima.run.id", cmd.Run), attribute.String("anima.run.kind", string(cmd.Kind)),
		)}
		meta := bus.MetaOf(ctx)
		if meta.Sender.IsValid() {
			opts = append(opts, trace.WithLinks(trace.Link{SpanContext: meta.Sender}))
		}
		if meta.Delivered > 1 {
			opts = append(opts, trace.WithAttributes(attribute.Int("messaging.nats.delivery_count", meta.Delivered)))
		}
		switch {
		case past == nil:
		case !past.Began.IsZero():
			opts = append(opts, trace.WithTimestamp(past.Began), trace.WithAttributes(recovered))
		case meta.Delivered > 1: // the replica that received it before left no journal entry
			began := meta.At
			if past.Before.After(began) {
				began = past.Before
			}
			opts = append(opts, trace.WithTimestamp(began), trace.WithAttributes(recovered))
		}
		ctx = telemetry.WithTurn(ctx, a.ID, id) // spans and log lines below ctx have the ids of the agent and the turn
		return telemetry.StartRoot(ctx, tracer, "invoke_agent "+a.Name, traceID, spanID, opts...)
	}
}

// rootEnding records a turn's root span before the turn is persisted, because a process
// that crashes during PERSIST cannot tell whether it was persisted. See
// [telemetry.Resolve].
func rootEnding(ctx context.Context, at int64) {
	telemetry.Ending(trace.SpanFromContext(ctx), time.UnixMicro(at))
}

// turnEnded reports whether a turn was persisted with this end.
func (h *handlers) turnEnded(ctx context.Context, id string, end time.Time) (bool, error) {
	t, err := h.store.Turn(ctx, id)
	if api.CodeOf(err) == api.NotFound {
		return false, nil
	}
	return err == nil && t.EndedAt == end.UnixMicro(), err
}
