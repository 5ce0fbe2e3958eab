package bus_test

import (
	"context"
	"maps"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/codes"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
)

func TestTraceCrossesTheBus(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	recorder := tracetest.NewSpanRecorder()
	provider := sdk.NewTracerProvider(sdk.WithSpanProcessor(recorder))
	b := newBus(t, connect(t, s), bus.Options{Tracer: provider})
	caller := newBus(t, connect(t, s), bus.Options{Service: "caller", Tracer: provider})
	inHandler := make(chan trace.SpanContext, 4)
	serve(t, b, patience,
		bus.Reply(func(ctx context.Context, _ api.GetAgent) (api.Agent, error) {
			inHandler <- trace.SpanContextFromContext(ctx)
			return api.Agent{}, api.Errorf(api.NotFound, "there is no agent lucky")
		}),
		bus.Stream(func(ctx context.Context, _ api.Complete, _ func(api.Delta) error) (api.Completion, error) {
			inHandler <- trace.SpanContextFromContext(ctx)
			return api.Completion{}, nil
		}),
		bus.On(func(ctx context.Context, _ api.AgentChanged) error {
			if sender := bus.MetaOf(ctx).Sender; !sender.IsValid() {
				t.Error("the handler does not know the sender's span")
			}
			inHandler <- trace.SpanContextFromContext(ctx)
			return nil
		}),
		bus.On(func(ctx context.Context, _ api.Run) error {
			inHandler <- trace.SpanContextFromContext(ctx)
			return nil
		}, bus.ConsumerOptions{NoSpan: true}),
	)
	ctx, root := provider.Tracer("test").Start(testContext(t), "root")
	defer root.End()
	mine := root.SpanContext().TraceID()

	_, err := getAgent(ctx, caller, "lucky")
	wantCode(t, err, api.NotFound, "")
	if sc := wait(t, inHandler, "the request"); sc.TraceID() != mine {
		t.Errorf("request: trace %v, want the caller's %v", sc.TraceID(), mine)
	}
	if _, err := ask(ctx, caller, "x", nil); err != nil {
		t.Fatal(err)
	}
	if sc := wait(t, inHandler, "the streamed request"); sc.TraceID() != mine {
		t.Errorf("stream: trace %v, want the caller's %v", sc.TraceID(), mine)
	}
	if err := caller.Publish(ctx, "1", changed("lucky", 1)); err != nil {
		t.Fatal(err)
	}
	event := wait(t, inHandler, "the event")
	if event.TraceID() == mine || !event.IsValid() {
		t.Errorf("event: trace %v, want a new one", event.TraceID())
	}
	if err := caller.Publish(ctx, "2", api.Run{Session: "s"}); err != nil {
		t.Fatal(err)
	}
	if sc := wait(t, inHandler, "the command"); sc.IsValid() {
		t.Errorf("command without a span: %v", sc)
	}

	spans := map[string]sdk.ReadOnlySpan{}
	for len(spans) < 7 { // the handlers' spans end after their work
		if err := pause(ctx); err != nil {
			t.Fatalf("%d spans ended", len(spans))
		}
		for _, s := range recorder.Ended() {
			spans[s.Name()] = s
		}
	}
	call, process := spans["call anima.loop.req.get_agent.v1"], spans["process anima.loop.req.get_agent.v1"]
	if process.Parent().SpanID() != call.SpanContext().SpanID() || call.Parent().SpanID() != root.SpanContext().SpanID() {
		t.Error("the request's spans are not root, call, process")
	}
	if call.SpanKind() != trace.SpanKindClient || process.SpanKind() != trace.SpanKindServer {
		t.Errorf("kinds %v and %v, want client and server", call.SpanKind(), process.SpanKind())
	}
	for _, s := range []sdk.ReadOnlySpan{call, process} { // the message may quote the request
		if got := s.Status(); got.Code != codes.Error || got.Description != "not_found" {
			t.Errorf("%s ended %+v, want an error with the code alone", s.Name(), got)
		}
	}
	published, handled := spans["publish anima.loop.evt.agent_state.v1"], spans["process anima.loop.evt.agent_state.v1"]
	if handled.Parent().IsValid() || len(handled.Links()) != 1 ||
		handled.Links()[0].SpanContext.SpanID() != published.SpanContext().SpanID() {
		t.Errorf("the event's span has parent %v and links %v, want none and the publisher", handled.Parent(), handled.Links())
	}
}

// TestTraceHeaderIsTheStandards checks that the header is written in lower case and read
// in any case.
func TestTraceHeaderIsTheStandards(t *testing.T) {
	t.Parallel()
	b, s := one(t)
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	ctx := bus.WithTraceParent(testContext(t), parent)
	if got := bus.TraceParent(ctx); got != parent {
		t.Errorf("traceparent %q, want %q", got, parent)
	}
	if got := bus.TraceParent(t.Context()); got != "" {
		t.Errorf("traceparent without a span: %q", got)
	}
	if err := b.Publish(ctx, "1", changed("lucky", 1)); err != nil {
		t.Fatal(err)
	}
	st, err := raw(t, s).Stream(ctx, "LOOP_EVT")
	if err != nil {
		t.Fatal(err)
	}
	m, err := st.GetMsg(ctx, 1)
	if err != nil {
		t.Fatal(err)
	}
	if got := m.Header["traceparent"]; len(got) != 1 || got[0] != parent {
		t.Errorf("headers %v, want traceparent in lower case", m.Header)
	}
	foreign := nats.NewMsg(changed("lucky", 2).Subject().String())
	foreign.Header["Traceparent"] = []string{parent}
	foreign.Data = []byte(`{}`)
	if _, err := raw(t, s).PublishMsg(ctx, foreign); err != nil {
		t.Fatal(err)
	}
	last, err := b.Last(ctx, changed("lucky", 2).Subject())
	if err != nil || last.Sender.TraceID().String() != "0af7651916cd43dd8448eb211c80319c" {
		t.Errorf("sender %v, %v", last.Sender, err)
	}
}

// TestCountersBeginAtZero checks that the counters exist before the first message that they
// count. Alerts ask whether a counter has increased, and a series that begins with 1 has not.
func TestCountersBeginAtZero(t *testing.T) {
	t.Parallel()
	reader := sdkmetric.NewManualReader()
	newBus(t, connect(t, startServer(t)), bus.Options{Meter: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))})
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	got := map[string]int64{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if sum, ok := m.Data.(metricdata.Sum[int64]); ok && len(sum.DataPoints) == 1 {
				got[m.Name] = sum.DataPoints[0].Value
			}
		}
	}
	if want := map[string]int64{"anima.bus.redeliveries": 0, "anima.bus.given_up": 0}; !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestServeLeavesNothingBehind is not parallel: it compares the goroutines before and
// after.
func TestServeLeavesNothingBehind(t *testing.T) {
	s := startServer(t)
	nc := connect(t, s)
	serveOnce := func() {
		b, err := bus.New(nc, bus.Options{Service: "loop"})
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Ensure(testContext(t)); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		err = b.Serve(ctx, patience, func() {
			for n := range int64(10) {
				publish(t, b, changed("lucky", n))
				if _, err := getAgent(ctx, b, "x"); err != nil {
					t.Error(err)
				}
				if _, err := ask(ctx, b, "x", func(api.Delta) error { return nil }); err != nil {
					t.Error(err)
				}
			}
			cancel()
		},
			bus.On(func(context.Context, api.AgentChanged) error { return nil }),
			bus.On(func(context.Context, api.Run) error { return nil }, bus.ConsumerOptions{Workers: 4, InOrder: true}),
			bus.Reply(func(context.Context, api.GetAgent) (api.Agent, error) { return api.Agent{}, nil }),
			bus.Stream(func(_ context.Context, _ api.Complete, send func(api.Delta) error) (api.Completion, error) {
				return api.Completion{}, send(api.Delta{Content: "x"})
			}),
			bus.Go(func(ctx context.Context) error { <-ctx.Done(); return nil }),
		)
		if err != nil {
			t.Fatal(err)
		}
		b.Close()
	}
	serveOnce() // the server creates the durables and keeps goroutines for them
	before := goleak.IgnoreCurrent()
	serveOnce()
	goleak.VerifyNone(t, before)
	// One is left: nats.go's subscription for replies. Drained ones are removed a little
	// later.
	subscriptions(t, nc, 1)
}

// subscriptions waits until a connection has no more than most subscriptions.
func subscriptions(t *testing.T, nc *bus.Conn, most int) {
	t.Helper()
	for ctx := testContext(t); nc.NATS().NumSubscriptions() > most; {
		select {
		case <-ctx.Done():
			t.Fatalf("%d subscriptions are left", nc.NATS().NumSubscriptions())
		case <-time.After(5 * time.Millisecond):
		}
	}
}
