package query

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The parts of OTLP's JSON that are read. It encodes 64-bit numbers as strings.
type (
	envelope struct {
		Result *export     `json:"result"`
		Error  *apiFailure `json:"error"`
	}
	apiFailure struct {
		Message string `json:"message"`
	}
	export struct {
		ResourceSpans []struct {
			Resource   struct{ Attributes []keyValue }
			ScopeSpans []struct{ Spans []span }
		}
	}
	span struct {
		TraceID, SpanID, ParentSpanID      string
		Name                               string
		Kind                               kind
		StartTimeUnixNano, EndTimeUnixNano nanos
		Attributes                         []keyValue
		Links                              []struct{ TraceID, SpanID string }
		Events                             []struct {
			TimeUnixNano nanos
			Name         string
		}
		Status struct {
			Code    statusCode
			Message string
		}
	}
	keyValue struct {
		Key   string
		Value map[string]json.RawMessage
	}
)

// Decode decodes answers of Jaeger: one or more documents with OTLP traces in the field
// "result". The traces are in the order of their first spans.
func Decode(r io.Reader) ([]Trace, error) {
	byID := map[string]*Trace{}
	dec := json.NewDecoder(r)
	for {
		var e envelope
		err := dec.Decode(&e)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("not an answer of Jaeger's API v3: %w", err)
		}
		if e.Error != nil {
			return nil, fmt.Errorf("an error of Jaeger: %s", e.Error.Message)
		}
		if e.Result == nil {
			return nil, errors.New("not an answer of Jaeger's API v3: it has no result")
		}
		for _, rs := range e.Result.ResourceSpans {
			service := ""
			for _, a := range rs.Resource.Attributes {
				if a.Key == "service.name" {
					service = a.text()
				}
			}
			for _, ss := range rs.ScopeSpans {
				for _, s := range ss.Spans {
					id := strings.ToLower(s.TraceID)
					if byID[id] == nil {
						byID[id] = &Trace{ID: id}
					}
					byID[id].Spans = append(byID[id].Spans, s.span(service))
				}
			}
		}
	}
	all := make([]Trace, 0, len(byID))
	for _, t := range byID {
		slices.SortStableFunc(t.Spans, byStart)
		all = append(all, *t)
	}
	slices.SortFunc(all, func(a, b Trace) int {
		return cmp.Or(a.Spans[0].Start.Compare(b.Spans[0].Start), cmp.Compare(a.ID, b.ID))
	})
	return all, nil
}

func byStart(a, b Span) int { return cmp.Or(a.Start.Compare(b.Start), cmp.Compare(a.ID, b.ID)) }

func (s span) span(service string) Span {
	out := Span{
		TraceID: strings.ToLower(s.TraceID), ID: strings.ToLower(s.SpanID), Parent: strings.ToLower(s.ParentSpanID),
		Service: service, Name: s.Name, Kind: Kind(s.Kind), Start: s.StartTimeUnixNano.time(), End: s.EndTimeUnixNano.time(),
		Attributes: map[string]string{}, Failed: s.Status.Code == 2, Reason: s.Status.Message,
	}
	for _, a := range s.Attributes {
		out.Attributes[a.Key] = a.text()
	}
	for _, l := range s.Links {
		out.Links = append(out.Links, Link{strings.ToLower(l.TraceID), strings.ToLower(l.SpanID)})
	}
	for _, e := range s.Events {
		out.Events = append(out.Events, Event{Name: e.Name, At: e.TimeUnixNano.time()})
	}
	return out
}

// text returns the value in readable form.
func (a keyValue) text() string {
	for _, raw := range a.Value { // the map has one entry
		var s string
		if json.Unmarshal(raw, &s) == nil {
			return s
		}
		return string(raw)
	}
	return ""
}

// nanos is a time in nanoseconds since 1970, encoded as a string or number.
type nanos int64

func (n *nanos) UnmarshalJSON(data []byte) error {
	v, err := strconv.ParseInt(strings.Trim(string(data), `"`), 10, 64)
	*n = nanos(v)
	return err
}

func (n nanos) time() time.Time { return time.Unix(0, int64(n)).UTC() }

// kind is encoded as a number or name, and so is statusCode.
type kind Kind

func (k *kind) UnmarshalJSON(data []byte) error {
	n, err := enum(data, "SPAN_KIND_UNSPECIFIED", "SPAN_KIND_INTERNAL", "SPAN_KIND_SERVER", "SPAN_KIND_CLIENT", "SPAN_KIND_PRODUCER", "SPAN_KIND_CONSUMER")
	*k = kind(n)
	return err
}

type statusCode int

func (c *statusCode) UnmarshalJSON(data []byte) error {
	n, err := enum(data, "STATUS_CODE_UNSET", "STATUS_CODE_OK", "STATUS_CODE_ERROR")
	*c = statusCode(n)
	return err
}

func enum(data []byte, names ...string) (int, error) {
	var n int
	if json.Unmarshal(data, &n) == nil {
		return n, nil
	}
	var s string
	if err := json.Unmarshal(data, &s); err != nil {
		return 0, err
	}
	if n = slices.Index(names, s); n < 0 {
		return 0, fmt.Errorf("%q is not one of %v", s, names)
	}
	return n, nil
}
