package telemetry_test

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/telemetry"
)

// lines is a log that may be read while it is written.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) count(msg string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), msg)
}

func end(ctx context.Context, tracer trace.Tracer) {
	_, span := tracer.Start(ctx, "one")
	span.End()
}

func TestOutageIsLoggedOnceAndCounted(t *testing.T) {
	t.Parallel()
	var log lines
	logger, err := telemetry.NewLogger(&log, telemetry.Config{})
	if err != nil {
		t.Fatal(err)
	}
	status := make(chan int, 3)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(<-status)
	}))
	t.Cleanup(server.Close)
	e := open(t, telemetry.Options{
		Lookup: env("OTEL_EXPORTER_OTLP_ENDPOINT", server.URL, "OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"), Log: logger,
	})
	tracer := start(t, e, "loop").TracerProvider().Tracer("x")

	for _, code := range []int{http.StatusBadRequest, http.StatusForbidden} {
		status <- code
		end(t.Context(), tracer)
		if err := e.ForceFlush(deadline(t)); err == nil {
			t.Errorf("flush after status %d: got no error, want the loss", code)
		}
	}
	status <- http.StatusOK
	end(t.Context(), tracer)
	if err := e.ForceFlush(deadline(t)); err != nil {
		t.Errorf("flush after recovery: %v", err)
	}
	if down, up := log.count("traces not sent"), log.count("trace export resumed"); down != 1 || up != 1 {
		t.Errorf("the outage was logged %d times and its end %d times, want once each", down, up)
	}
	page := scrape(t, e)
	for _, want := range []string{
		`anima_telemetry_spans_total{outcome="failed"} 2.0`,
		`anima_telemetry_spans_total{outcome="sent"} 1.0`,
		`anima_telemetry_spans_total{outcome="dropped"} 0.0`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %s:\n%s", want, page)
		}
	}
}

func TestFullQueueDropsAndLogs(t *testing.T) {
	t.Parallel()
	busy, release := make(chan struct{}, 8), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		busy <- struct{}{}
		<-release
	}))
	t.Cleanup(server.Close)
	var log lines
	logger, err := telemetry.NewLogger(&log, telemetry.Config{})
	if err != nil {
		t.Fatal(err)
	}
	e := open(t, telemetry.Options{Log: logger, Lookup: env(
		"OTEL_EXPORTER_OTLP_ENDPOINT", server.URL, "OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf",
		"OTEL_BSP_MAX_QUEUE_SIZE", "2", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1",
	)})
	tracer := start(t, e, "loop").TracerProvider().Tracer("x")
	end(t.Context(), tracer)
	<-busy // the collector has received the first and does not answer
	for range 4 {
		end(t.Context(), tracer)
	}
	page := scrape(t, e)
	for _, want := range []string{
		`anima_telemetry_spans_total{outcome="dropped"} 3.0`,
		`otel_sdk_processor_span_processed_total{error_type="queue_full"} 3.0`,
		`otel_sdk_processor_span_processed_total{error_type=""} 2.0`,
		`otel_sdk_processor_span_queue_size 2.0`,
		`otel_sdk_processor_span_queue_capacity 2.0`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("want 3 of 5 spans dropped by a queue of 2, the page has no %s:\n%s", want, page)
		}
	}
	if n := log.count("spans are dropped"); n != 1 {
		t.Errorf("dropping was logged %d times, want once", n)
	}
	close(release)
	if err := e.ForceFlush(deadline(t)); err == nil || !strings.Contains(err.Error(), "OTEL_BSP_MAX_QUEUE_SIZE") {
		t.Errorf("flush = %v, want it to say what to raise", err)
	}
	page = scrape(t, e)
	for _, want := range []string{
		`anima_telemetry_spans_total{outcome="sent"} 2.0`,
		`otel_sdk_exporter_span_exported_total{error_type=""} 2.0`,
		`otel_sdk_processor_span_queue_size 0.0`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("want the other 2 sent, the page has no %s:\n%s", want, page)
		}
	}
	if n := log.count("spans are no longer dropped"); n != 1 {
		t.Errorf("the end of dropping was logged %d times, want once", n)
	}
}

// TestShutdownEndsWithItsContext checks that a collector that cannot be reached, or that
// never answers, does not keep a process from stopping. goleak verifies that no goroutine
// is left.
func TestShutdownEndsWithItsContext(t *testing.T) {
	t.Parallel()
	silent, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0") // accepts connections and never answers
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	for _, protocol := range []string{"grpc", "http/protobuf"} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			e := open(t, telemetry.Options{Lookup: env(
				"OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+silent.Addr().String(), "OTEL_EXPORTER_OTLP_PROTOCOL", protocol,
			)})
			end(t.Context(), start(t, e, "loop").TracerProvider().Tracer("x"))
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if err := e.Shutdown(ctx); err == nil {
				t.Error("shutdown lost a span without an error")
			}
		})
	}
}
