package telemetry

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"
)

const scope = "github.com/anima-run/anima/pkg/telemetry"

// NewTransport returns a RoundTripper for requests to hosts outside of the project:
// providers, paid resources, chain nodes, relays. It sends neither trace context nor
// baggage, and removes such headers from the request. It starts a span of kind client
// below the recorded span in the request's context; without one it starts none. The span
// ends when the body of the response has been read or closed. It contains the host and
// the status, never the URL, the headers or a body, which may contain secrets; therefore
// otelhttp, which sets url.full, is not used.
//
// A status of 400 or more is an error, except 402, with which a paid resource states its
// price. A nil base is http.DefaultTransport. The base must not add trace context itself.
func NewTransport(base http.RoundTripper) http.RoundTripper {
	if base == nil {
		base = http.DefaultTransport
	}
	return transport{base}
}

type transport struct{ base http.RoundTripper }

// contextHeaders are the headers that carry trace context or baggage.
var contextHeaders = []string{"traceparent", "tracestate", "baggage"}

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, span := startClient(r)
	r = withoutContext(ctx, r)
	if span == nil {
		return t.base.RoundTrip(r)
	}
	res, err := t.base.RoundTrip(r)
	if err != nil {
		failTransfer(ctx, span, err)
		span.End()
		return res, err
	}
	span.SetAttributes(semconv.HTTPResponseStatusCode(res.StatusCode), semconv.NetworkProtocolVersion(version(res.Proto, res.ProtoMajor)))
	if res.StatusCode >= 400 && res.StatusCode != http.StatusPaymentRequired {
		span.SetAttributes(semconv.ErrorTypeKey.String(strconv.Itoa(res.StatusCode)))
		span.SetStatus(codes.Error, "")
	}
	if res.Body == nil || res.Body == http.NoBody || res.StatusCode == http.StatusSwitchingProtocols {
		span.End()
		return res, nil
	}
	res.Body = spanBody{res.Body, func(err error) { // further calls do nothing, because the span has ended
		if err != nil {
			failTransfer(ctx, span, err)
		}
		span.End()
	}}
	return res, nil
}

// CloseIdleConnections is called by http.Client.
func (t transport) CloseIdleConnections() {
	if c, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// startClient starts the span of a request. It returns no span if the context has no
// recorded span.
func startClient(r *http.Request) (context.Context, trace.Span) {
	ctx := r.Context()
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return ctx, nil
	}
	resent := 0
	for from := r.Response; from != nil && from.Request != nil; from = from.Request.Response { // redirects
		resent++
	}
	name, method := methodOf(r.Method)
	attrs := []attribute.KeyValue{method, semconv.ServerAddress(r.URL.Hostname()), semconv.ServerPort(port(r.URL)), semconv.URLScheme(r.URL.Scheme)}
	if resent > 0 {
		attrs = append(attrs, semconv.HTTPRequestResendCount(resent))
	}
	// The provider of the parent keeps the name of the service.
	return parent.TracerProvider().Tracer(scope).Start(ctx, name, //nolint:spancheck // the caller ends it
		trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attrs...))
}

// withoutContext returns a copy of r with ctx, without trace context and baggage in its
// headers.
func withoutContext(ctx context.Context, r *http.Request) *http.Request {
	bare := r.WithContext(ctx)
	bare.Header = r.Header.Clone() // the caller's request must not change
	maps.DeleteFunc(bare.Header, func(key string, _ []string) bool {
		return slices.ContainsFunc(contextHeaders, func(h string) bool { return strings.EqualFold(h, key) })
	})
	return bare
}

// methodOf returns the method for a span's name and as an attribute. Methods that HTTP
// does not define become one, so that the set of names stays closed.
func methodOf(method string) (string, attribute.KeyValue) {
	switch method {
	case "":
		method = http.MethodGet
		fallthrough
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch,
		http.MethodDelete, http.MethodConnect, http.MethodOptions, http.MethodTrace:
		return method, semconv.HTTPRequestMethodKey.String(method)
	}
	return "HTTP", semconv.HTTPRequestMethodOther
}

func port(u *url.URL) int {
	if n, err := strconv.Atoi(u.Port()); err == nil {
		return n
	}
	if u.Scheme == "https" {
		return 443
	}
	return 80
}

// version returns the version of the protocol: 1.1, 2 or 3.
func version(proto string, major int) string {
	if major >= 2 {
		return strconv.Itoa(major)
	}
	return strings.TrimPrefix(proto, "HTTP/")
}

// failTransfer records, as one of a closed set of values, why the response is missing or
// incomplete. The error itself may contain the URL.
func failTransfer(ctx context.Context, span trace.Span, err error) {
	kind := "_OTHER"
	lookup, isLookup := errors.AsType[*net.DNSError](err)
	timeout, isNet := errors.AsType[net.Error](err)
	_, isTLS := errors.AsType[*tls.CertificateVerificationError](err)
	_, isOp := errors.AsType[*net.OpError](err)
	switch {
	case errors.Is(err, context.Canceled) || errors.Is(ctx.Err(), context.Canceled):
		kind = "canceled"
	case errors.Is(err, context.DeadlineExceeded) || isNet && timeout.Timeout():
		kind = "timeout"
	case isTLS:
		kind = "tls"
	case isLookup && lookup.IsNotFound:
		kind = "host_not_found"
	case isOp || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF):
		kind = "connection"
	}
	span.SetAttributes(semconv.ErrorTypeKey.String(kind))
	span.SetStatus(codes.Error, "")
}

// spanBody calls end when the body has been read, has failed or is closed.
type spanBody struct {
	io.ReadCloser
	end func(error)
}

func (b spanBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	switch {
	case errors.Is(err, io.EOF):
		b.end(nil)
	case err != nil:
		b.end(err)
	}
	return n, err
}

func (b spanBody) Close() error {
	err := b.ReadCloser.Close()
	b.end(nil) // an early close is not an error
	return err
}
