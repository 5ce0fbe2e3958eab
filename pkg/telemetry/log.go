package telemetry

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"go.opentelemetry.io/otel/trace"
)

// Config holds the settings of the log. The zero value logs JSON from level info.
type Config struct {
	Log       string `env:"log" oneof:"debug|info|warn|error" help:"minimum level to log"`
	LogFormat string `env:"log_format" oneof:"json|text" help:"format of the log lines"`
}

// NewLogger returns a logger that writes one line per record to w. A record that is
// logged with the context of a span has its trace_id and span_id, and the agent_id and
// turn_id of its baggage, at the top level of the line, regardless of the logger's
// groups. The logger is safe for concurrent use; it calls w.Write from one goroutine at a
// time.
func NewLogger(w io.Writer, cfg Config) (*slog.Logger, error) {
	var level slog.Level
	if cfg.Log != "" {
		if err := level.UnmarshalText([]byte(cfg.Log)); err != nil {
			return nil, fmt.Errorf("log level %q: want debug, info, warn or error", cfg.Log)
		}
	}
	opts := &slog.HandlerOptions{Level: level}
	switch strings.ToLower(cfg.LogFormat) {
	case "", "json":
		return slog.New(contextHandler{next: slog.NewJSONHandler(w, opts)}), nil
	case "text":
		return slog.New(contextHandler{next: slog.NewTextHandler(w, opts)}), nil
	}
	return nil, fmt.Errorf("log format %q: want json or text", cfg.LogFormat)
}

// contextHandler adds the ids of the context to each record.
type contextHandler struct {
	next slog.Handler
	// Attributes added to next would belong to its open group. So top is the handler
	// before the first group, and steps lead from it to next.
	top   slog.Handler
	steps []func(slog.Handler) slog.Handler
}

func (h contextHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.next.Enabled(ctx, level)
}

func (h contextHandler) Handle(ctx context.Context, r slog.Record) error {
	attrs := contextAttrs(ctx)
	if len(attrs) == 0 {
		return h.next.Handle(ctx, r)
	}
	if h.top == nil {
		r = r.Clone()
		r.AddAttrs(attrs...)
		return h.next.Handle(ctx, r)
	}
	next := h.top.WithAttrs(attrs)
	for _, step := range h.steps {
		next = step(next)
	}
	return next.Handle(ctx, r)
}

func contextAttrs(ctx context.Context) []slog.Attr {
	var attrs []slog.Attr
	if sc := trace.SpanContextFromContext(ctx); sc.IsValid() {
		attrs = append(attrs, slog.String("trace_id", sc.TraceID().String()), slog.String("span_id", sc.SpanID().String()))
	}
	agent, turn := Turn(ctx)
	if agent != "" {
		attrs = append(attrs, slog.String("agent_id", agent))
	}
	if turn != "" {
		attrs = append(attrs, slog.String("turn_id", turn))
	}
	return attrs
}

func (h contextHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	if len(attrs) == 0 {
		return h
	}
	return h.with(func(n slog.Handler) slog.Handler { return n.WithAttrs(attrs) })
}

func (h contextHandler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	if h.top == nil {
		h.top = h.next
	}
	return h.with(func(n slog.Handler) slog.Handler { return n.WithGroup(name) })
}

func (h contextHandler) with(step func(slog.Handler) slog.Handler) contextHandler {
	h.next = step(h.next)
	if h.top != nil {
		h.steps = append(h.steps[:len(h.steps):len(h.steps)], step)
	}
	return h
}
