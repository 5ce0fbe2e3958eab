package telemetry

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// GenAI records the metrics of the GenAI conventions, and returns the attributes whose
// names changed, under the names that the process has chosen: those of v1.41, or the
// newer ones (see [OptInGenAILatest]). It is safe for concurrent use.
type GenAI struct {
	latest bool

	duration, firstChunk, tool metric.Float64Histogram // tool is nil in v1.41
	tokens                     metric.Int64Histogram   // v1.41: by gen_ai.token.type
	input, output              metric.Int64Histogram   // newer names: of one call
	sums                       []usageCounter          // newer names
}

type usageCounter struct {
	metric.Int64Counter
	of    func(Usage) int64
	total bool // record zeros, too
}

// Usage is the number of tokens that a call to a model used. Input includes CacheRead and
// CacheWritten, Output includes Reasoning; these parts are zero if the provider does not
// report them.
type Usage struct {
	Input, Output, CacheRead, CacheWritten, Reasoning int64
}

// Call describes one call to a model for the metrics. All values but Duration and Usage
// must come from closed sets.
type Call struct {
	Operation     string // such as OperationChat
	Provider      string
	Model         string        // requested model
	ResponseModel string        // model that answered; empty: unknown
	ErrorType     string        // empty: the call succeeded
	Duration      time.Duration // of the whole call
	FirstChunk    time.Duration // until the first chunk; 0: not streamed
	Usage         Usage         // recorded if the call succeeded
}

// NewGenAI creates the instruments. With a meter provider that is not from [Providers] it
// uses the names of v1.41.
func NewGenAI(p metric.MeterProvider) (*GenAI, error) {
	ours, _ := p.(meterProvider)
	g := &GenAI{latest: ours.genAILatest}
	m := p.Meter(scope)
	var errs []error
	seconds := func(name, what string) metric.Float64Histogram {
		h, err := m.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(what))
		errs = append(errs, err)
		return h
	}
	tokens := func(name, what string) metric.Int64Histogram {
		h, err := m.Int64Histogram(name, metric.WithUnit("{token}"), metric.WithDescription(what))
		errs = append(errs, err)
		return h
	}
	sum := func(name, what string, total bool, of func(Usage) int64) {
		c, err := m.Int64Counter(name, metric.WithUnit("{token}"), metric.WithDescription(what))
		errs = append(errs, err)
		g.sums = append(g.sums, usageCounter{c, of, total})
	}
	if g.latest {
		g.duration = seconds(MetricInferenceDuration, "Time of a call to a model")
		g.firstChunk = seconds(MetricInferenceFirstChunk, "Time until the answer began")
		g.tool = seconds(MetricExecuteToolDuration, "Time of a tool call")
		g.input = tokens(MetricInferenceCallInput, "Tokens that a call read")
		g.output = tokens(MetricInferenceCallOutput, "Tokens that a call wrote")
		sum(MetricInferenceInputTokens, "Tokens read", true, func(u Usage) int64 { return u.Input })
		sum(MetricInferenceOutputTokens, "Tokens written", true, func(u Usage) int64 { return u.Output })
		sum(MetricInferenceCacheReadTokens, "Tokens read from the provider's cache", false, func(u Usage) int64 { return u.CacheRead })
		sum(MetricInferenceCacheWriteTokens, "Tokens put into the provider's cache", false, func(u Usage) int64 { return u.CacheWritten })
		sum(MetricInferenceReasoningTokens, "Tokens written for reasoning", false, func(u Usage) int64 { return u.Reasoning })
	} else {
		g.duration = seconds(MetricOperationDuration, "Time of a call to a model")
		g.firstChunk = seconds(MetricTimeToFirstChunk, "Time until the answer began")
		g.tokens = tokens(MetricTokenUsage, "Tokens of a call to a model")
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("instruments of GenAI: %w", err)
	}
	return g, nil
}

// Call records one call, with the span in ctx as its exemplar.
func (g *GenAI) Call(ctx context.Context, c Call) {
	attrs := make([]attribute.KeyValue, 0, 6)
	attrs = append(attrs, GenAIOperationName.String(c.Operation), GenAIProviderName.String(c.Provider), GenAIRequestModel.String(c.Model))
	if c.ResponseModel != "" {
		attrs = append(attrs, GenAIResponseModel.String(c.ResponseModel))
	}
	who := attribute.NewSet(attrs...)
	if c.ErrorType != "" {
		g.duration.Record(ctx, c.Duration.Seconds(), metric.WithAttributes(append(attrs, ErrorType.String(c.ErrorType))...))
		return
	}
	g.duration.Record(ctx, c.Duration.Seconds(), metric.WithAttributeSet(who))
	if c.FirstChunk > 0 {
		g.firstChunk.Record(ctx, c.FirstChunk.Seconds(), metric.WithAttributeSet(who))
	}
	if !g.latest {
		g.tokens.Record(ctx, c.Usage.Input, metric.WithAttributes(append(attrs, GenAITokenType.String("input"))...))
		g.tokens.Record(ctx, c.Usage.Output, metric.WithAttributes(append(attrs, GenAITokenType.String("output"))...))
		return
	}
	g.input.Record(ctx, c.Usage.Input, metric.WithAttributeSet(who))
	g.output.Record(ctx, c.Usage.Output, metric.WithAttributeSet(who))
	text := metric.WithAttributes(append(attrs, GenAITokenModality.String("text"))...)
	for _, s := range g.sums {
		if n := s.of(c.Usage); n > 0 || s.total {
			s.Add(ctx, n, text)
		}
	}
}

// Tool records one tool call; errType is empty if it succeeded. With the names of v1.41
// it does nothing, because they have no metric for it.
func (g *GenAI) Tool(ctx context.Context, tool, errType string, d time.Duration) {
	if g.tool == nil {
		return
	}
	attrs := []attribute.KeyValue{GenAIOperationName.String(OperationExecuteTool), GenAIToolName.String(tool)}
	if errType != "" {
		attrs = append(attrs, ErrorType.String(errType))
	}
	g.tool.Record(ctx, d.Seconds(), metric.WithAttributes(attrs...))
}

// Usage returns the attributes of a chat span. Parts that are zero are left out.
func (g *GenAI) Usage(u Usage) []attribute.KeyValue {
	attrs := []attribute.KeyValue{GenAIUsageInputTokens.Int64(u.Input), GenAIUsageOutputTokens.Int64(u.Output)}
	written := GenAIUsageCacheWrittenTokens
	if g.latest {
		written = GenAIUsageCacheWriteTokens
	}
	for key, n := range map[attribute.Key]int64{GenAIUsageCacheReadTokens: u.CacheRead, written: u.CacheWritten, GenAIUsageReasoningTokens: u.Reasoning} {
		if n > 0 {
			attrs = append(attrs, key.Int64(n))
		}
	}
	return attrs
}
