//go:build linux

package telemetry_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/telemetry"
	"github.com/anima-run/anima/pkg/telemetry/oteltest"
)

const victimDir = "TELEMETRY_TEST_VICTIM_DIR"

// TestVictim is not a test: TestKilledProcessLosesNoSpan runs it as the process that it
// kills.
func TestVictim(t *testing.T) {
	dir := os.Getenv(victimDir)
	if dir == "" {
		return
	}
	e := open(t, telemetry.Options{Version: "1", Instance: "victim", Spool: dir, Lookup: env(
		"OTEL_EXPORTER_OTLP_ENDPOINT", os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT"), "OTEL_BSP_SCHEDULE_DELAY", "3600000")})
	p := start(t, e, "loop")
	tracer := p.TracerProvider().Tracer("loop")
	policy := start(t, e, "policy").TracerProvider()
	tracer2 := policy.Tracer("policy")

	_, sent := tracer.Start(t.Context(), "sent")
	sent.End()
	if err := e.ForceFlush(deadline(t)); err != nil {
		t.Fatal(err)
	}
	traceID, rootID := telemetry.DeriveIDs("turn", "1")
	ctx, _ := telemetry.StartRoot(t.Context(), tracer, "root", traceID, rootID) // sent by the process that resumes the work
	_, again := tracer.Start(ctx, "begun again")
	telemetry.Abandon(again)
	for _, turn := range []string{"2", "3"} { // their end is being stored
		traceID, rootID := telemetry.DeriveIDs("turn", turn)
		_, root := telemetry.StartRoot(t.Context(), tracer, "root of "+turn, traceID, rootID, trace.WithAttributes(telemetry.TurnID.String(turn)))
		telemetry.Ending(root, time.UnixMicro(7_000_000_000_000_000))
	}
	under, call := tracer.Start(ctx, "under way", trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attribute.String("a", "b")))
	_, sql := policy.Tracer("sql").Start(under, "SELECT 1", trace.WithSpanKind(trace.SpanKindClient))
	sql.End()
	_, done := tracer2.Start(under, "done", trace.WithLinks(trace.Link{SpanContext: sent.SpanContext()}), trace.WithAttributes(
		attribute.Int("n", -7), attribute.Bool("yes", true), attribute.Float64("f", .5), attribute.StringSlice("list", []string{"x", "y"}),
		attribute.String("long", strings.Repeat("x", 1000))))
	done.AddEvent("once", trace.WithAttributes(attribute.Int("zero", 0)))
	done.SetStatus(codes.Error, "why")
	done.End()
	_, large := tracer.Start(under, "large", trace.WithAttributes(attribute.String("long", strings.Repeat("x", 5000))))
	large.End()
	_ = call
	fmt.Println("VICTIM READY")
	select {}
}

func TestKilledProcessLosesNoSpan(t *testing.T) {
	t.Parallel()
	c, dir := oteltest.Receiver(t), t.TempDir()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestVictim$", "-test.v")
	cmd.Env = append(os.Environ(), victimDir+"="+dir, "OTEL_EXPORTER_OTLP_ENDPOINT="+c.Endpoint())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	scan := bufio.NewScanner(out)
	for scan.Scan() && !strings.Contains(scan.Text(), "VICTIM READY") {
	}
	// A running process keeps its own spool.
	other := open(t, telemetry.Options{Spool: dir, Lookup: c.Lookup})
	if err := other.Shutdown(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if n := len(c.Spans()); n != 1 {
		t.Errorf("%d spans arrived before the kill, want the one that was flushed", n)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // killed

	e := open(t, telemetry.Options{Spool: dir, Lookup: c.Lookup})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	resolving, stop := context.WithCancel(ctx)
	defer stop()
	resolved := make(chan error)
	tries := 0
	go func() {
		resolved <- telemetry.Resolve(resolving, start(t, e, "loop").TracerProvider(), func(_ context.Context, turn string, end time.Time) (bool, error) {
			if turn == "2" {
				return end.UnixMicro() == 7_000_000_000_000_000, nil
			}
			if tries++; tries == 1 {
				return false, errors.New("the store is unavailable")
			}
			stop() // this is the last pending root
			return false, nil
		})
	}()
	spans := c.Wait(ctx, func(all []oteltest.Span) bool { return len(all) >= 6 })
	if err := <-resolved; err != nil {
		t.Error(err)
	}
	if err := e.Shutdown(deadline(t)); err != nil {
		t.Error(err)
	}
	byName := map[string]oteltest.Span{}
	var names []string
	for _, s := range spans {
		byName[s.Name] = s
		names = append(names, s.Service+" "+s.Name+" "+s.Status)
	}
	slices.Sort(names)
	if d := cmp.Diff([]string{"loop large unset", "loop root of 2 unset", "loop sent unset", "loop under way error", "policy SELECT 1 unset", "policy done error"}, names); d != "" {
		t.Fatalf("what arrived (-want +got):\n%s", d)
	}
	call, done := byName["under way"], byName["done"]
	_, rootID := telemetry.DeriveIDs("turn", "1")
	if call.Parent != rootID || call.Kind != "client" || call.Reason != "the process ended before the span did" || call.End.Before(done.End) || call.Attributes["a"] != "b" || call.Attributes["error.type"] != "process_killed" {
		t.Errorf("the span that was under way: %+v", call)
	}
	if done.Parent != call.SpanID || done.Reason != "why" || len(done.Links) != 1 || done.Links[0].SpanID != byName["sent"].SpanID || !slices.Equal(done.Events, []string{"once"}) {
		t.Errorf("the span that had ended: %+v", done)
	}
	want := map[string]any{"n": int64(-7), "yes": true, "f": .5, "list": []any{"x", "y"}, "long": strings.Repeat("x", 1000)}
	if d := cmp.Diff(want, done.Attributes); d != "" {
		t.Errorf("its attributes (-want +got):\n%s", d)
	}
	if done.Resource["service.instance.id"] != "victim" || done.Resource["service.version"] != "1" {
		t.Errorf("its resource: %v", done.Resource)
	}
	isEmpty(t, dir)
}

// TestSpoolWaitsForTheCollector checks that unsent spans stay in the spool until a
// collector accepts them.
func TestSpoolWaitsForTheCollector(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	leave(t, dir, 1)
	c := oteltest.Receiver(t)
	open(t, telemetry.Options{Spool: dir, Lookup: c.Lookup})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	c.Wait(ctx, func(all []oteltest.Span) bool { return len(all) == 1 && all[0].Name == "one" })
}

// away is an environment whose collector cannot be reached.
var away = env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")

// leave leaves a file with n spans of 1 KB in a spool, as a process that ends without a
// collector does.
func leave(t *testing.T, dir string, n int) {
	t.Helper()
	own := t.TempDir()
	e := open(t, telemetry.Options{Spool: own, Lookup: away})
	tracer := start(t, e, "loop").TracerProvider().Tracer("x")
	for range n {
		_, span := tracer.Start(t.Context(), "one", trace.WithAttributes(attribute.String("long", strings.Repeat("x", 1000))))
		span.End()
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_ = e.Shutdown(ctx) // the context has ended, so no span is sent
	files, err := filepath.Glob(filepath.Join(own, "*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("the process has left %v (%v), want one file", files, err)
	}
	if err := os.Rename(files[0], filepath.Join(dir, filepath.Base(files[0]))); err != nil {
		t.Fatal(err)
	}
}

// TestFullSpoolIsSent checks that the spans of a file are sent that are too large for one
// request: collectors accept 4 MiB.
func TestFullSpoolIsSent(t *testing.T) {
	t.Parallel()
	dir, n := t.TempDir(), 5000
	leave(t, dir, n)
	c := oteltest.Receiver(t)
	e := open(t, telemetry.Options{Spool: dir, Lookup: c.Lookup})
	c.Wait(deadline(t), func(all []oteltest.Span) bool { return len(all) == n })
	if err := e.Shutdown(deadline(t)); err != nil {
		t.Error(err)
	}
	isEmpty(t, dir)
}

// TestSpoolIsReadFileByFile checks that a process that cannot send has one file in memory,
// and leaves the others to other processes.
func TestSpoolIsReadFileByFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	leave(t, dir, 1)
	leave(t, dir, 1)
	stuck, err := telemetry.Open(t.Context(), telemetry.Options{Spool: dir, Lookup: away})
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	t.Cleanup(func() { _ = stuck.Shutdown(ended) }) // it never sends
	c := oteltest.Receiver(t)
	open(t, telemetry.Options{Spool: dir, Lookup: c.Lookup})
	c.Wait(deadline(t), func(all []oteltest.Span) bool { return len(all) > 0 })
}

// isEmpty checks that no files remain in a folder.
func isEmpty(t *testing.T, dir string) {
	t.Helper()
	if files, _ := filepath.Glob(filepath.Join(dir, "*")); len(files) != 0 {
		t.Errorf("files remain: %v", files)
	}
}

func TestSpoolInUnusableFolder(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var log lines
	logger, err := telemetry.NewLogger(&log, telemetry.Config{})
	if err != nil {
		t.Fatal(err)
	}
	c := oteltest.Receiver(t)
	e := open(t, telemetry.Options{Spool: file, Lookup: c.Lookup, Log: logger})
	end(t.Context(), start(t, e, "loop").TracerProvider().Tracer("x"))
	if err := e.ForceFlush(deadline(t)); err != nil || len(c.Spans()) != 1 {
		t.Errorf("flush: %v, %d spans; want the span sent all the same", err, len(c.Spans()))
	}
	if log.count("spans are kept in memory only") != 1 {
		t.Error("the error was not logged")
	}
}

// TestSpoolIsDamaged checks that unreadable files are skipped without an error.
func TestSpoolIsDamaged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	name := filepath.Join(dir, "1.spans")
	if err := os.WriteFile(name, []byte("no spool"), 0o600); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(name, old, old); err != nil {
		t.Fatal(err)
	}
	c := oteltest.Receiver(t)
	e := open(t, telemetry.Options{Spool: dir, Lookup: c.Lookup})
	if err := e.Shutdown(deadline(t)); err != nil {
		t.Error(err)
	}
	isEmpty(t, dir)
}

// TestAbandonedAfterItsEnd abandons two roots after Ending: the one whose end is stored
// is sent.
func TestAbandonedAfterItsEnd(t *testing.T) {
	t.Parallel()
	c := oteltest.Receiver(t)
	p := start(t, open(t, telemetry.Options{Spool: t.TempDir(), Lookup: c.Lookup}), "loop")
	for _, turn := range []string{"1", "2"} {
		traceID, rootID := telemetry.DeriveIDs("turn", turn)
		_, root := telemetry.StartRoot(t.Context(), p.TracerProvider().Tracer("x"), turn, traceID, rootID, trace.WithAttributes(telemetry.TurnID.String(turn)))
		telemetry.Ending(root, time.Now())
		telemetry.Abandon(root)
	}
	ctx, cancel := context.WithCancel(deadline(t))
	err := telemetry.Resolve(ctx, p.TracerProvider(), func(_ context.Context, turn string, _ time.Time) (bool, error) {
		if turn == "2" {
			defer cancel()
		}
		return turn == "1", nil
	})
	if err != nil {
		t.Error(err)
	}
	if spans := c.Spans(); len(spans) != 1 || spans[0].Name != "1" {
		t.Errorf("got %d spans, want the root of the turn that did end", len(spans))
	}
}

// TestPendingRootsAreLoggedOnce checks that roots that cannot be resolved are logged once,
// whatever their number and the number of attempts.
func TestPendingRootsAreLoggedOnce(t *testing.T) {
	t.Parallel()
	var log lines
	logger, err := telemetry.NewLogger(&log, telemetry.Config{})
	if err != nil {
		t.Fatal(err)
	}
	c := oteltest.Receiver(t)
	p := start(t, open(t, telemetry.Options{Spool: t.TempDir(), Lookup: c.Lookup, Log: logger}), "loop")
	for _, turn := range []string{"1", "2", "3"} {
		traceID, rootID := telemetry.DeriveIDs("turn", turn)
		_, root := telemetry.StartRoot(t.Context(), p.TracerProvider().Tracer("x"), turn, traceID, rootID, trace.WithAttributes(telemetry.TurnID.String(turn)))
		telemetry.Ending(root, time.Now())
		telemetry.Abandon(root)
	}
	ctx, cancel := context.WithCancel(deadline(t))
	calls := 0
	err = telemetry.Resolve(ctx, p.TracerProvider(), func(context.Context, string, time.Time) (bool, error) {
		if calls++; calls <= 2 {
			return false, errors.New("the store is unavailable")
		}
		if calls == 5 { // the third one of the third round
			cancel()
		}
		return false, nil
	})
	if err != nil {
		t.Error(err)
	}
	if n := log.count("root spans of turns not sent"); n != 1 {
		t.Errorf("the outage was logged %d times, want once", n)
	}
}

// BenchmarkSpan measures the cost of starting and ending a span, and of sending it to a
// collector that discards it.
func BenchmarkSpan(b *testing.B) {
	for name, dir := range map[string]string{"memory": "", "spool": b.TempDir()} {
		b.Run(name, func(b *testing.B) {
			sink := oteltest.Sink(b)
			e, err := telemetry.Open(b.Context(), telemetry.Options{Spool: dir, Lookup: sink.Lookup})
			if err != nil {
				b.Fatal(err)
			}
			p, err := e.Start(b.Context(), "loop")
			if err != nil {
				b.Fatal(err)
			}
			tracer := p.TracerProvider().Tracer("x")
			ctx := telemetry.WithTurn(b.Context(), "lucky", "01a1fd64-6d11-7413-a4fd-2dd3fef657b7.1")
			opts := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
				attribute.String("rpc.system.name", "nats"), attribute.String("rpc.method", "anima.policy.req.evaluate.v1"))}
			b.ReportAllocs()
			for range b.N {
				_, span := tracer.Start(ctx, "call anima.policy.req.evaluate.v1", opts...)
				span.End()
			}
			if err := e.Shutdown(b.Context()); err != nil {
				b.Log(err) // dropped: spans ended faster than they could be sent
			}
		})
	}
}
