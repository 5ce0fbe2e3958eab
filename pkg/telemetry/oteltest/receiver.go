// Package oteltest receives traces as a collector does, over OTLP and gRPC, and checks
// them. It is for tests only: received spans are kept in memory until the test ends.
package oteltest

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
)

// Collector is an OTLP trace receiver on its own port. Its methods are safe for
// concurrent use.
type Collector struct {
	collector.UnimplementedTraceServiceServer
	endpoint

	t testing.TB

	mu      sync.Mutex
	spans   []Span
	arrived chan struct{} // closed and replaced when spans arrive
}

// Receiver starts a collector on 127.0.0.1 that stops with the test.
func Receiver(t testing.TB) *Collector {
	t.Helper()
	c := &Collector{t: t, arrived: make(chan struct{})}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, c)
	c.endpoint = serve(t, server)
	return c
}

// endpoint is the URL of a collector.
type endpoint string

// serve runs a collector on 127.0.0.1 until the test ends.
func serve(t testing.TB, server *grpc.Server) endpoint {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Errorf("trace receiver: %v", err)
		}
	})
	return endpoint("http://" + l.Addr().String())
}

// Endpoint returns the value for OTEL_EXPORTER_OTLP_ENDPOINT.
func (e endpoint) Endpoint() string { return string(e) }

// Lookup is an environment that only contains this collector's endpoint.
func (e endpoint) Lookup(name string) (string, bool) {
	if name == "OTEL_EXPORTER_OTLP_ENDPOINT" {
		return string(e), true
	}
	return "", false
}

// Export stores the spans of a request. Exporters call it.
func (c *Collector) Export(_ context.Context, req *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	spans, err := decode(req)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.spans = append(c.spans, spans...)
	close(c.arrived)
	c.arrived = make(chan struct{})
	return &collector.ExportTraceServiceResponse{}, nil
}

// Spans returns the spans received so far, in the order of arrival.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.spans)
}

// Wait calls enough with the received spans, again whenever more arrive, and returns them
// when it returns true. If ctx ends first, the test fails, and Wait returns the spans
// received so far.
func (c *Collector) Wait(ctx context.Context, enough func([]Span) bool) []Span {
	c.t.Helper()
	for {
		c.mu.Lock()
		spans, arrived := slices.Clone(c.spans), c.arrived
		c.mu.Unlock()
		if enough(spans) {
			return spans
		}
		select {
		case <-arrived:
		case <-ctx.Done():
			c.t.Errorf("waited for spans until %v; %d arrived: %s", ctx.Err(), len(spans), strings.Join(names(spans), ", "))
			return spans
		}
	}
}

func names(spans []Span) []string {
	out := make([]string, len(spans))
	for i, s := range spans {
		out[i] = s.Service + " " + s.Name
	}
	return out
}
