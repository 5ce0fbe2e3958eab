package telemetry_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/anima-run/anima/pkg/telemetry"
	"github.com/anima-run/anima/pkg/telemetry/oteltest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func env(pairs ...string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1], true
			}
		}
		return "", false
	}
}

func open(t *testing.T, opts telemetry.Options) *telemetry.Exporters {
	t.Helper()
	e, err := telemetry.Open(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	// The test's own context has ended when the cleanup runs.
	ctx := context.WithoutCancel(t.Context())
	t.Cleanup(func() { _ = e.Shutdown(ctx) })
	return e
}

func start(t *testing.T, e *telemetry.Exporters, service string) *telemetry.Providers {
	t.Helper()
	p, err := e.Start(t.Context(), service)
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.WithoutCancel(t.Context())
	t.Cleanup(func() {
		if err := p.Shutdown(ctx); err != nil {
			t.Errorf("shut down %s: %v", service, err)
		}
	})
	return p
}

func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestServicesShareOneExporter(t *testing.T) {
	t.Parallel()
	c := oteltest.Receiver(t)
	e := open(t, telemetry.Options{Version: "v1.2.3", Instance: "pod-7", Lookup: c.Lookup})
	if e.Endpoint() != c.Endpoint() {
		t.Errorf("endpoint = %q, want %q", e.Endpoint(), c.Endpoint())
	}
	loop, router := start(t, e, "loop"), start(t, e, "inference-router")

	ctx, turn := loop.TracerProvider().Tracer("loop").Start(telemetry.WithTurn(t.Context(), "a1", "t42"), "invoke_agent lucky",
		trace.WithAttributes(semconv.GenAIConversationID("s7")))
	carrier := propagation.MapCarrier{}
	telemetry.Propagator().Inject(ctx, carrier)

	remote := telemetry.Propagator().Extract(t.Context(), carrier)
	name, opts := telemetry.Chat("anthropic", "claude")
	_, chat := router.TracerProvider().Tracer("router").Start(remote, name, append(opts, trace.WithLinks(trace.Link{SpanContext: turn.SpanContext()}))...)
	chat.SetAttributes(attribute.Int64("automaton.cost.usd_micros", 8670), semconv.GenAIResponseFinishReasons("stop"))
	chat.AddEvent("first_chunk")
	telemetry.Fail(chat, "provider_error", "status 529")
	chat.End()
	turn.End()

	if err := router.Shutdown(t.Context()); err != nil { // the other service keeps running
		t.Fatal(err)
	}
	_, late := loop.TracerProvider().Tracer("loop").Start(ctx, "persist")
	late.End()
	if err := e.ForceFlush(t.Context()); err != nil {
		t.Fatal(err)
	}

	spans := c.Wait(deadline(t), func(s []oteltest.Span) bool { return len(s) == 3 })
	if faults := oteltest.Check(spans, turn.SpanContext().TraceID()); faults != nil {
		t.Errorf("the trace is not whole: %v", faults)
	}
	i := slices.IndexFunc(spans, func(s oteltest.Span) bool { return s.Name == "chat claude" })
	got := spans[i]
	if got.Service != "inference-router" || got.Resource["service.version"] != "v1.2.3" || got.Resource["service.instance.id"] != "pod-7" {
		t.Errorf("chat came from %q with %v, want inference-router v1.2.3 on pod-7", got.Service, got.Resource)
	}
	want := map[string]any{
		"gen_ai.operation.name": "chat", "gen_ai.provider.name": "anthropic", "gen_ai.request.model": "claude",
		"gen_ai.response.finish_reasons": []any{"stop"}, "automaton.cost.usd_micros": int64(8670),
		"automaton.agent.id": "a1", "automaton.turn.id": "t42", "error.type": "provider_error",
	}
	if d := cmp.Diff(want, got.Attributes); d != "" {
		t.Errorf("attributes of chat (-want +got):\n%s", d)
	}
	if got.Kind != "client" || got.Status != "error" || got.Reason != "status 529" || !slices.Equal(got.Events, []string{"first_chunk"}) {
		t.Errorf("chat is %q, %q (%q), with events %v", got.Kind, got.Status, got.Reason, got.Events)
	}
	if len(got.Links) != 1 || got.Links[0].SpanID != turn.SpanContext().SpanID() {
		t.Errorf("links of chat = %v, want one to the turn", got.Links)
	}
	i = slices.IndexFunc(spans, func(s oteltest.Span) bool { return s.Name == "invoke_agent lucky" })
	if root := spans[i]; root.Service != "loop" || root.Status != "unset" || root.Attributes["gen_ai.conversation.id"] != "s7" {
		t.Errorf("root = %+v, want an unset status and its conversation, from loop", root)
	}
}

func TestHTTPProtobuf(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ variable, path, want string }{
		{"OTEL_EXPORTER_OTLP_ENDPOINT", "/base", "/base/v1/traces"},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "/as/is", "/as/is"},
	} {
		t.Run(c.variable, func(t *testing.T) {
			t.Parallel()
			got := make(chan string, 1)
			server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				var req collector.ExportTraceServiceRequest
				if err == nil {
					err = proto.Unmarshal(body, &req)
				}
				if err != nil {
					t.Errorf("body: %v", err)
				}
				got <- r.URL.Path
			}))
			t.Cleanup(server.Close)
			e := open(t, telemetry.Options{Lookup: env(c.variable, server.URL+c.path, "OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")})
			_, span := start(t, e, "loop").TracerProvider().Tracer("x").Start(t.Context(), "one")
			span.End()
			if err := e.ForceFlush(deadline(t)); err != nil {
				t.Fatal(err)
			}
			if path := <-got; path != c.want {
				t.Errorf("sent to %q, want %q", path, c.want)
			}
		})
	}
}

func TestWithoutEndpointIDsExist(t *testing.T) {
	t.Parallel()
	for name, lookup := range map[string]func(string) (string, bool){
		"nothing set":     nil,
		"empty":           env("OTEL_EXPORTER_OTLP_ENDPOINT", ""),
		"disabled":        env("OTEL_SDK_DISABLED", "true", "OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1"),
		"exporter is off": env("OTEL_TRACES_EXPORTER", "none", "OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := open(t, telemetry.Options{Lookup: lookup})
			if got := e.Endpoint(); got != "" {
				t.Errorf("endpoint = %q, want none", got)
			}
			_, span := start(t, e, "loop").TracerProvider().Tracer("x").Start(t.Context(), "one")
			span.End()
			if sc := span.SpanContext(); !sc.IsValid() || !sc.IsSampled() {
				t.Errorf("span context = %v, want a valid one that is sampled", sc)
			}
			if err := e.ForceFlush(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestOpenNamesTheVariable(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, value string }{
		{"OTEL_EXPORTER_OTLP_ENDPOINT", "localhost:4317"},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "ftp://user:hunter2@host"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://user:hunter2@host:port"},
		{"OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"},
		{"OTEL_TRACES_EXPORTER", "zipkin"},
		{"OTEL_SDK_DISABLED", "perhaps"},
		{"OTEL_BSP_MAX_QUEUE_SIZE", "0"},
		{"OTEL_BSP_SCHEDULE_DELAY", "1s"},
	} {
		_, err := telemetry.Open(t.Context(), telemetry.Options{Lookup: env(c.name, c.value)})
		if err == nil || !strings.HasPrefix(err.Error(), c.name) || !strings.Contains(err.Error(), "want ") || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s=%s: got %v, want a fault that names the variable and what is accepted, without secrets", c.name, c.value, err)
		}
	}
}

func TestPropagatorDropsForeignBaggage(t *testing.T) {
	t.Parallel()
	b, err := baggage.Parse("automaton.agent.id=a1,automaton.turn.id=" + strings.Repeat("x", 129) + ",user.email=me@example.com")
	if err != nil {
		t.Fatal(err)
	}
	carrier := propagation.MapCarrier{}
	telemetry.Propagator().Inject(baggage.ContextWithBaggage(t.Context(), b), carrier)
	if got, want := carrier.Get("baggage"), "automaton.agent.id=a1"; got != want {
		t.Errorf("sent baggage %q, want %q", got, want)
	}
	ctx := telemetry.Propagator().Extract(t.Context(), propagation.MapCarrier{"baggage": b.String()})
	if agent, turn := telemetry.Turn(ctx); agent != "a1" || turn != "" || baggage.FromContext(ctx).Len() > 0 {
		t.Errorf("received agent %q, turn %q and %v, want the agent a1", agent, turn, baggage.FromContext(ctx))
	}
}

func TestBaggageIsW3C(t *testing.T) {
	t.Parallel()
	for _, ids := range [][2]string{{"a2", "t2"}, {"", "t"}, {"a", ""}, {"", ""}, {"100%, \"ok\"; \\ =é", "01a1fd64-6d11.1"}} {
		carrier := propagation.MapCarrier{}
		telemetry.Propagator().Inject(telemetry.WithTurn(t.Context(), ids[0], ids[1]), carrier)
		b, err := baggage.Parse(carrier.Get("baggage"))
		if err != nil || b.Member("automaton.agent.id").Value() != ids[0] || b.Member("automaton.turn.id").Value() != ids[1] {
			t.Errorf("%q is written as %q, which others read as %v, %v", ids, carrier.Get("baggage"), b, err)
		}
		for _, header := range []string{carrier.Get("baggage"), b.String()} { // as this package writes it, and as another library does
			agent, turn := telemetry.Turn(telemetry.Propagator().Extract(t.Context(), propagation.MapCarrier{"baggage": header}))
			if agent != ids[0] || turn != ids[1] {
				t.Errorf("%q is read back as %q, %q", header, agent, turn)
			}
		}
	}
	for _, header := range []string{",,", "=", "automaton.turn.id=%zz", "automaton.turn.id", "automaton.turn.id=%ff"} {
		if agent, turn := telemetry.Turn(telemetry.Propagator().Extract(t.Context(), propagation.MapCarrier{"baggage": header})); agent != "" || turn != "" {
			t.Errorf("%q is read as %q, %q, want nothing", header, agent, turn)
		}
	}
	if agent, turn := telemetry.Turn(telemetry.WithTurn(telemetry.WithTurn(t.Context(), "a", "t"), "", "u")); agent != "" || turn != "u" {
		t.Errorf("got %q, %q, want what was given last", agent, turn)
	}
}
