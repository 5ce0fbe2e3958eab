package telemetry

import (
	"net/http"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"
)

// NewHandler returns a handler for HTTP endpoints that untrusted clients can reach. Each
// request gets a span of kind server that is the root of a new trace. The client's trace
// context becomes a link, so that a client can neither add to existing traces nor decide
// what is sampled. The client's baggage is not read.
//
// The span is named by the method and by the pattern of the [http.ServeMux] that matches;
// next is that mux, or a handler that is registered with it. The path, the query and the
// headers are left out: they contain ids and arbitrary text of the client. Therefore
// otelhttp, which sets url.path and user_agent.original, is not used.
func NewHandler(p trace.TracerProvider, next http.Handler) http.Handler {
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
		res := &statusWriter{ResponseWriter: w}
		r = r.WithContext(ctx)
		finished := false
		defer func() {
			if path := routeOf(r.Pattern); path != "" {
				span.SetName(name + " " + path)
				span.SetAttributes(semconv.HTTPRoute(path))
			}
			if !finished && res.status == 0 { // it panicked; the panic continues
				res.status = http.StatusInternalServerError
			}
			if res.status == 0 {
				res.status = http.StatusOK
			}
			span.SetAttributes(semconv.HTTPResponseStatusCode(res.status))
			switch {
			case res.status >= 500:
				span.SetAttributes(semconv.ErrorTypeKey.String(strconv.Itoa(res.status)))
				span.SetStatus(codes.Error, "")
			case !finished:
				span.SetAttributes(semconv.ErrorTypeKey.String("panic"))
				span.SetStatus(codes.Error, "")
			}
			span.End()
		}()
		next.ServeHTTP(res, r)
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

// statusWriter records the status of the response.
type statusWriter struct {
	http.ResponseWriter
	status int // 0 until it is written
}

func (w *statusWriter) WriteHeader(status int) {
	if w.status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) { // other 1xx statuses are informational
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *statusWriter) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(p)
}

// FlushError is called by http.ResponseController.
func (w *statusWriter) FlushError() error {
	err := http.NewResponseController(w.ResponseWriter).Flush()
	if err == nil && w.status == 0 {
		w.status = http.StatusOK
	}
	return err
}

// Flush implements http.Flusher for handlers that assert it.
func (w *statusWriter) Flush() { _ = w.FlushError() }

// Unwrap gives http.ResponseController access to the other methods.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
