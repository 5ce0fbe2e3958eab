package telemetry

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"
)

const scope = "github.com/anima-run/anima/pkg/telemetry"

// Foreign returns a RoundTripper for requests to foreign hosts: providers, paid
// resources, chain nodes, relays. It sends neither trace context nor baggage, and removes
// such headers from the request. It starts a span of kind client below the recorded span
// in the request's context; without one it starts none. The span ends when the body of
// the answer has been read or closed. It contains the host and the status, never the URL,
// the headers or a body, which may contain secrets.
//
// A status of 400 or more is an error, except 402, with which a paid resource states its
// price. A nil base is http.DefaultTransport. The base must not add trace context itself.
func Foreign(base http.RoundTripper) http.RoundTripper {
	if base == nil {
		base = http.DefaultTransport
	}
	return foreign{base}
}

type foreign struct{ base http.RoundTripper }

// contextHeaders are the headers that carry trace context or baggage.
var contextHeaders = []string{"traceparent", "tracestate", "baggage"}

func (f foreign) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, span := startClient(r)
	r = stripped(ctx, r)
	if span == nil {
		return f.base.RoundTrip(r)
	}
	res, err := f.base.RoundTrip(r)
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
	var once sync.Once
	res.Body = &watchedBody{ReadCloser: res.Body, end: func(err error) {
		once.Do(func() {
			if err != nil {
				failTransfer(ctx, span, err)
			}
			span.End()
		})
	}}
	return res, nil
}

// CloseIdleConnections is called by http.Client.
func (f foreign) CloseIdleConnections() {
	if c, ok := f.base.(interface{ CloseIdleConnections() }); ok {
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

// stripped returns a copy of r with ctx, without trace context and baggage. It does not
// change the caller's request.
func stripped(ctx context.Context, r *http.Request) *http.Request {
	bare := r.WithContext(ctx)
	copied := false
	for key := range r.Header {
		for _, drop := range contextHeaders {
			if !strings.EqualFold(key, drop) {
				continue
			}
			if !copied {
				bare.Header, copied = r.Header.Clone(), true
			}
			delete(bare.Header, key)
		}
	}
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

// failTransfer records, as one of a closed set of values, why the answer is missing or
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

// watchedBody calls end when the body has been read, has failed or is closed.
type watchedBody struct {
	io.ReadCloser
	end func(error)
}

func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	switch {
	case errors.Is(err, io.EOF):
		b.end(nil)
	case err != nil:
		b.end(err)
	}
	return n, err
}

func (b *watchedBody) Close() error {
	err := b.ReadCloser.Close()
	b.end(nil) // an early close is not an error
	return err
}

// Inbound returns a handler for HTTP endpoints that untrusted clients can reach. Each
// request gets a span of kind server that is the root of a new trace. The client's trace
// context becomes a link, so that a client can neither add to existing traces nor decide
// what is sampled. The client's baggage is not read.
//
// The span is named by the method and by the pattern of the [http.ServeMux] that matches;
// next is that mux, or a handler that is registered with it. The path itself is left out:
// it contains ids and arbitrary text of the client.
func Inbound(p trace.TracerProvider, next http.Handler) http.Handler {
	tracer := p.Tracer(scope)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, method := methodOf(r.Method)
		scheme := "http"
		if r.TLS != nil {
			scheme = "https"
		}
		opts := []trace.SpanStartOption{
			trace.WithNewRoot(), trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(
				method, semconv.URLScheme(scheme), semconv.NetworkProtocolVersion(version(r.Proto, r.ProtoMajor))),
		}
		sender := propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
		if sc := trace.SpanContextFromContext(sender); sc.IsValid() && sc.IsRemote() {
			opts = append(opts, trace.WithLinks(trace.Link{SpanContext: sc.WithTraceState(trace.TraceState{})}))
		}
		ctx, span := tracer.Start(r.Context(), name, opts...)
		answer := &watchedWriter{ResponseWriter: w}
		r = r.WithContext(ctx)
		finished := false
		defer func() {
			if path := routeOf(r.Pattern); path != "" {
				span.SetName(name + " " + path)
				span.SetAttributes(semconv.HTTPRoute(path))
			}
			if !finished && answer.status == 0 { // it panicked; the panic continues
				answer.status = http.StatusInternalServerError
			}
			if answer.status == 0 {
				answer.status = http.StatusOK
			}
			span.SetAttributes(semconv.HTTPResponseStatusCode(answer.status))
			switch {
			case answer.status >= 500:
				span.SetAttributes(semconv.ErrorTypeKey.String(strconv.Itoa(answer.status)))
				span.SetStatus(codes.Error, "")
			case !finished:
				span.SetAttributes(semconv.ErrorTypeKey.String("panic"))
				span.SetStatus(codes.Error, "")
			}
			span.End()
		}()
		next.ServeHTTP(answer, r)
		finished = true
	})
}

// routeOf returns the path of a mux's pattern, which is [METHOD ][HOST]/[PATH].
func routeOf(pattern string) string {
	if _, rest, ok := strings.Cut(pattern, " "); ok {
		pattern = strings.TrimLeft(rest, " \t")
	}
	if i := strings.IndexByte(pattern, '/'); i >= 0 {
		return pattern[i:]
	}
	return ""
}

// watchedWriter records the status of the answer.
type watchedWriter struct {
	http.ResponseWriter
	status int // 0 until it is written
}

func (w *watchedWriter) WriteHeader(status int) {
	if w.status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) { // other 1xx statuses are informational
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *watchedWriter) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(p)
}

// FlushError is called by http.ResponseController.
func (w *watchedWriter) FlushError() error {
	err := http.NewResponseController(w.ResponseWriter).Flush()
	if err == nil && w.status == 0 {
		w.status = http.StatusOK
	}
	return err
}

// Flush implements http.Flusher for handlers that assert it.
func (w *watchedWriter) Flush() { _ = w.FlushError() }

// Unwrap gives http.ResponseController access to the other methods.
func (w *watchedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
