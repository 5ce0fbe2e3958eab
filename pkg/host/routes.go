package host

import (
	"net/http"

	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/telemetry"
)

// Routes registers HTTP routes, in the patterns of [http.ServeMux].
type Routes interface {
	// Handle adds a route for the operator: requests without the token are refused.
	Handle(pattern string, h http.HandlerFunc)
	// HandleAs is Handle for a route of another protocol: refuse writes the answer to a
	// request without the token, with the given status.
	HandleAs(pattern string, refuse func(w http.ResponseWriter, status int, err error), h http.HandlerFunc)
	// Public adds a route that does its own authentication, or needs none.
	Public(pattern string, h http.HandlerFunc)
}

// serviceRoutes are the routes of one service: its handlers run in a span of the service.
type serviceRoutes struct {
	edge    *edge
	tracers trace.TracerProvider
}

func (r serviceRoutes) Public(pattern string, h http.HandlerFunc) {
	r.edge.Public(pattern, telemetry.NewHandler(r.tracers, h).ServeHTTP)
}

func (r serviceRoutes) Handle(pattern string, h http.HandlerFunc) {
	r.edge.Handle(pattern, telemetry.NewHandler(r.tracers, h).ServeHTTP)
}

func (r serviceRoutes) HandleAs(pattern string, refuse func(http.ResponseWriter, int, error), h http.HandlerFunc) {
	r.edge.HandleAs(pattern, refuse, telemetry.NewHandler(r.tracers, h).ServeHTTP)
}
