package tracesdk

import (
	"math"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/encoding/protowire"
)

// Field numbers of OTLP's messages. They are fixed by the protocol.
const (
	spanTraceID, spanID, spanTraceState, spanParent, spanName, spanKind protowire.Number = 1, 2, 3, 4, 5, 6
	spanStart, spanEnd, spanAttributes, spanEvents, spanLinks           protowire.Number = 7, 8, 9, 11, 13
	spanStatus, spanFlags                                               protowire.Number = 15, 16
)

// appendBaggage appends the members of the baggage that are not among the attributes.
func appendBaggage(b []byte, members [2]Member, attrs []attribute.KeyValue) []byte {
	for _, m := range members {
		if m.Value == "" || indexOf(attrs, m.Key) >= 0 {
			continue
		}
		b = appendMessage(b, spanAttributes, func(b []byte) []byte {
			b = appendText(b, 1, string(m.Key))
			return appendMessage(b, 2, func(b []byte) []byte { return appendText(b, 1, m.Value) })
		})
	}
	return b
}

func appendLink(b []byte, l trace.Link) []byte {
	return appendMessage(b, spanLinks, func(b []byte) []byte {
		traceID, id := l.SpanContext.TraceID(), l.SpanContext.SpanID()
		b = appendBytes(appendBytes(b, 1, traceID[:]), 2, id[:])
		b = appendAttributes(b, 4, l.Attributes)
		return appendFixed32(b, 6, flagsOf(l.SpanContext, l.SpanContext))
	})
}

func appendEvent(b []byte, e *event) []byte {
	return appendMessage(b, spanEvents, func(b []byte) []byte {
		return appendAttributes(appendText(appendTime(b, 1, e.at), 2, e.name), 3, e.attrs)
	})
}

// flagsOf returns the trace flags and, as OTLP requires, whether the parent or the linked
// span belongs to another process.
func flagsOf(sc, other trace.SpanContext) uint32 {
	const known, remote = 0x100, 0x200
	flags := uint32(sc.TraceFlags()) | known
	if other.IsRemote() {
		flags |= remote
	}
	return flags
}

func appendStatus(b []byte, st sdktrace.Status) []byte {
	return appendMessage(b, spanStatus, func(b []byte) []byte {
		if st.Description != "" {
			b = appendText(b, 2, st.Description)
		}
		code := uint64(2)
		if st.Code == codes.Ok {
			code = 1
		}
		return appendVarint(b, 3, code)
	})
}

// appendScope appends the fields of a scope.
func appendScope(b []byte, s instrumentation.Scope) []byte {
	b = appendText(b, 1, s.Name)
	if s.Version != "" {
		b = appendText(b, 2, s.Version)
	}
	return appendAttributes(b, 3, s.Attributes.ToSlice())
}

func appendAttributes(b []byte, field protowire.Number, attrs []attribute.KeyValue) []byte {
	for i := range attrs {
		kv := &attrs[i]
		b = appendMessage(b, field, func(b []byte) []byte {
			b = appendText(b, 1, string(kv.Key))
			return appendMessage(b, 2, func(b []byte) []byte { return appendValue(b, kv.Value) })
		})
	}
	return b
}

// appendValue appends the content of an AnyValue. A zero is written, too, because the
// field is part of a oneof.
func appendValue(b []byte, v attribute.Value) []byte {
	switch v.Type() {
	case attribute.STRING:
		return appendText(b, 1, v.AsString())
	case attribute.BOOL:
		return protowire.AppendVarint(protowire.AppendTag(b, 2, protowire.VarintType), protowire.EncodeBool(v.AsBool()))
	case attribute.INT64:
		return protowire.AppendVarint(protowire.AppendTag(b, 3, protowire.VarintType), uint64(v.AsInt64()))
	case attribute.FLOAT64:
		return protowire.AppendFixed64(protowire.AppendTag(b, 4, protowire.Fixed64Type), math.Float64bits(v.AsFloat64()))
	case attribute.STRINGSLICE:
		return appendList(b, v.AsStringSlice(), attribute.StringValue)
	case attribute.INT64SLICE:
		return appendList(b, v.AsInt64Slice(), attribute.Int64Value)
	case attribute.FLOAT64SLICE:
		return appendList(b, v.AsFloat64Slice(), attribute.Float64Value)
	case attribute.BOOLSLICE:
		return appendList(b, v.AsBoolSlice(), attribute.BoolValue)
	case attribute.EMPTY:
		return b
	default: // other types are not used
		return appendText(b, 1, v.String())
	}
}

func appendList[T any](b []byte, all []T, value func(T) attribute.Value) []byte {
	return appendMessage(b, 5, func(b []byte) []byte {
		for _, v := range all {
			b = appendMessage(b, 1, func(b []byte) []byte { return appendValue(b, value(v)) })
		}
		return b
	})
}

func appendBytes(b []byte, field protowire.Number, v []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), v)
}

func appendText(b []byte, field protowire.Number, v string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), v)
}

func appendVarint(b []byte, field protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), v)
}

func appendFixed32(b []byte, field protowire.Number, v uint32) []byte {
	return protowire.AppendFixed32(protowire.AppendTag(b, field, protowire.Fixed32Type), v)
}

func appendTime(b []byte, field protowire.Number, t time.Time) []byte {
	return protowire.AppendFixed64(protowire.AppendTag(b, field, protowire.Fixed64Type), uint64(max(0, t.UnixNano())))
}

// appendMessage appends the message that f encodes, prefixed by its length. One byte is
// reserved for the length; a message of 128 bytes or more is moved to make room.
func appendMessage(b []byte, field protowire.Number, f func([]byte) []byte) []byte {
	b = append(protowire.AppendTag(b, field, protowire.BytesType), 0)
	at := len(b)
	b = f(b)
	n := len(b) - at
	if n < 0x80 {
		b[at-1] = byte(n)
		return b
	}
	more := protowire.SizeVarint(uint64(n)) - 1
	for range more {
		b = append(b, 0)
	}
	copy(b[at+more:], b[at:at+n])
	protowire.AppendVarint(b[:at-1], uint64(n))
	return b
}
