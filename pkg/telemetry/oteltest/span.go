package oteltest

import (
	"fmt"
	"time"

	"go.opentelemetry.io/otel/trace"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
)

// Span is a span as the collector received it.
type Span struct {
	Service    string // service.name of the resource
	Resource   map[string]any
	Name       string
	Kind       string // internal, server, client, producer, consumer
	TraceID    trace.TraceID
	SpanID     trace.SpanID
	Parent     trace.SpanID   // zero for a root
	Attributes map[string]any // string, bool, int64, float64 or []any of these
	Events     []string       // names
	Links      []Link
	Start, End time.Time
	Status     string // unset, ok, error
	Reason     string // description of an error status
}

// Link points to a span of this or another trace.
type Link struct {
	TraceID    trace.TraceID
	SpanID     trace.SpanID
	Attributes map[string]any
}

func decode(req *collector.ExportTraceServiceRequest) ([]Span, error) {
	var spans []Span
	for _, rs := range req.GetResourceSpans() {
		resource := attributes(rs.GetResource().GetAttributes())
		service, _ := resource["service.name"].(string)
		for _, ss := range rs.GetScopeSpans() {
			for _, s := range ss.GetSpans() {
				span, err := decodeSpan(s)
				if err != nil {
					return nil, err
				}
				span.Service, span.Resource = service, resource
				spans = append(spans, span)
			}
		}
	}
	return spans, nil
}

func decodeSpan(s *otlp.Span) (Span, error) {
	span := Span{
		Name:       s.GetName(),
		Kind:       kinds[s.GetKind()],
		Attributes: attributes(s.GetAttributes()),
		Start:      at(s.GetStartTimeUnixNano()),
		End:        at(s.GetEndTimeUnixNano()),
		Status:     statuses[s.GetStatus().GetCode()],
		Reason:     s.GetStatus().GetMessage(),
	}
	if err := id(span.TraceID[:], s.GetTraceId()); err != nil {
		return Span{}, fmt.Errorf("span %q: trace id: %w", span.Name, err)
	}
	if err := id(span.SpanID[:], s.GetSpanId()); err != nil {
		return Span{}, fmt.Errorf("span %q: span id: %w", span.Name, err)
	}
	if parent := s.GetParentSpanId(); len(parent) > 0 {
		if err := id(span.Parent[:], parent); err != nil {
			return Span{}, fmt.Errorf("span %q: parent id: %w", span.Name, err)
		}
	}
	for _, e := range s.GetEvents() {
		span.Events = append(span.Events, e.GetName())
	}
	for _, l := range s.GetLinks() {
		link := Link{Attributes: attributes(l.GetAttributes())}
		if err := id(link.TraceID[:], l.GetTraceId()); err != nil {
			return Span{}, fmt.Errorf("span %q: link: trace id: %w", span.Name, err)
		}
		if err := id(link.SpanID[:], l.GetSpanId()); err != nil {
			return Span{}, fmt.Errorf("span %q: link: span id: %w", span.Name, err)
		}
		span.Links = append(span.Links, link)
	}
	return span, nil
}

var kinds = map[otlp.Span_SpanKind]string{
	otlp.Span_SPAN_KIND_INTERNAL: "internal",
	otlp.Span_SPAN_KIND_SERVER:   "server",
	otlp.Span_SPAN_KIND_CLIENT:   "client",
	otlp.Span_SPAN_KIND_PRODUCER: "producer",
	otlp.Span_SPAN_KIND_CONSUMER: "consumer",
}

var statuses = map[otlp.Status_StatusCode]string{
	otlp.Status_STATUS_CODE_UNSET: "unset",
	otlp.Status_STATUS_CODE_OK:    "ok",
	otlp.Status_STATUS_CODE_ERROR: "error",
}

func id(to, from []byte) error {
	if len(from) != len(to) {
		return fmt.Errorf("%d bytes, want %d", len(from), len(to))
	}
	copy(to, from)
	return nil
}

func at(nanos uint64) time.Time {
	return time.Unix(int64(nanos/1e9), int64(nanos%1e9))
}

func attributes(kvs []*common.KeyValue) map[string]any {
	m := make(map[string]any, len(kvs))
	for _, kv := range kvs {
		m[kv.GetKey()] = value(kv.GetValue())
	}
	return m
}

func value(v *common.AnyValue) any {
	switch v := v.GetValue().(type) {
	case *common.AnyValue_StringValue:
		return v.StringValue
	case *common.AnyValue_BoolValue:
		return v.BoolValue
	case *common.AnyValue_IntValue:
		return v.IntValue
	case *common.AnyValue_DoubleValue:
		return v.DoubleValue
	case *common.AnyValue_BytesValue:
		return v.BytesValue
	case *common.AnyValue_ArrayValue:
		list := []any{}
		for _, item := range v.ArrayValue.GetValues() {
			list = append(list, value(item))
		}
		return list
	case *common.AnyValue_KvlistValue:
		return attributes(v.KvlistValue.GetValues())
	}
	return nil
}
