package host

import (
	"net/http"

	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/telemetry"
)

// Routes registers HTTP routes, in the patterns of [http.ServeMux].
type Routes interface {
	// Handle adds a route for the operator: requests without the token are refused.
	Handle(pattern string, h http.HandlerFunc)
	// HandleAs is Handle for a route of another protocol: refuse writes the answer to a
	// request without the token, with the given status.
	HandleAs(pattern string, refuse func(w http.ResponseWriter, status int, err error), h http.HandlerFunc)
	// Keyed is HandleAs for a route that also the holders of API keys with a scope may use.
	// [CallerOf] tells the handler who sent the request.
	Keyed(pattern string, scope api.Scope, refuse func(w http.ResponseWriter, status int, err error), h http.HandlerFunc)
	// Public adds a route that does its own authentication, or needs none. Its requests
	// share a part of the process's memory, see [Occupy], and of the data folder's disk.
	Public(pattern string, h http.HandlerFunc)
}

// serviceRoutes are the routes of one service: its handlers run in a span of the service.
type serviceRoutes struct {
	edge    *edge
	tracers trace.TracerProvider
	keys    *keyring
}

func (r serviceRoutes) Public(pattern string, h http.HandlerFunc) {
	r.edge.Public(pattern, r.edge.boundStrangers(telemetry.NewHandler(r.tracers, h)))
}

func (r serviceRoutes) Handle(pattern string, h http.HandlerFunc) {
	r.edge.Handle(pattern, telemetry.NewHandler(r.tracers, h).ServeHTTP)
}

func (r serviceRoutes) HandleAs(pattern string, refuse func(http.ResponseWriter, int, error), h http.HandlerFunc) {
	r.edge.HandleAs(pattern, refuse, telemetry.NewHandler(r.tracers, h).ServeHTTP)
}

// Keyed checks the key within the span of the request, because it may ask social.
func (r serviceRoutes) Keyed(pattern string, scope api.Scope, refuse func(http.ResponseWriter, int, error), h http.HandlerFunc) {
	r.edge.Public(pattern, telemetry.NewHandler(r.tracers, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var caller Caller
		if r.edge.authorize(req) != nil {
			var err error
			if caller, err = r.keys.caller(req.Context(), Credential(req), scope); err != nil {
				status := StatusOf(err)
				if status == http.StatusForbidden && api.ReasonOf(err) != api.ReasonScope {
					status = http.StatusUnauthorized
				}
				SetRetryAfter(w, status, err)
				refuse(w, status, err)
				return
			}
		}
		h(w, withCaller(req, caller))
	})).ServeHTTP)
}
