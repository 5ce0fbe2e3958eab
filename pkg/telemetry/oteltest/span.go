package oteltest

import (
	"errors"
	"fmt"
	"strings"
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
		Kind:       strings.ToLower(strings.TrimPrefix(s.GetKind().String(), "SPAN_KIND_")),
		Attributes: attributes(s.GetAttributes()),
		Start:      at(s.GetStartTimeUnixNano()),
		End:        at(s.GetEndTimeUnixNano()),
		Status:     strings.ToLower(strings.TrimPrefix(s.GetStatus().GetCode().String(), "STATUS_CODE_")),
		Reason:     s.GetStatus().GetMessage(),
	}
	err := errors.Join(id(span.TraceID[:], s.GetTraceId()), id(span.SpanID[:], s.GetSpanId()))
	if parent := s.GetParentSpanId(); len(parent) > 0 {
		err = errors.Join(err, id(span.Parent[:], parent))
	}
	for _, e := range s.GetEvents() {
		span.Events = append(span.Events, e.GetName())
	}
	for _, l := range s.GetLinks() {
		link := Link{Attributes: attributes(l.GetAttributes())}
		err = errors.Join(err, id(link.TraceID[:], l.GetTraceId()), id(link.SpanID[:], l.GetSpanId()))
		span.Links = append(span.Links, link)
	}
	if err != nil {
		return Span{}, fmt.Errorf("span %q: %w", span.Name, err)
	}
	return span, nil
}

func id(to, from []byte) error {
	if len(from) != len(to) {
		return fmt.Errorf("an id of %d bytes, want %d", len(from), len(to))
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
