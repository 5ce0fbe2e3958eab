package tracesdk

import (
	"go.opentelemetry.io/otel/sdk/instrumentation"
	"go.opentelemetry.io/otel/sdk/resource"
)

// source is the resource and scope of spans. There is one for each service and package.
type source struct {
	resource *resource.Resource
	scope    instrumentation.Scope

	resourceField []byte // encoded for OTLP: the fields of ResourceSpans besides the spans
	scopeField    []byte // encoded for OTLP: the fields of ScopeSpans besides the spans
	number        uint16 // in the spool; valid if spooled is set
	spooled       bool
}

type sourceKey struct {
	resource *resource.Resource
	scope    string // the name is enough: the scopes in use have no version or attributes
}

// source returns the source of a resource and a scope.
func (e *Exporter) source(r *resource.Resource, scope instrumentation.Scope) *source {
	key := sourceKey{r, scope.Name}
	e.sourcesMu.RLock()
	s := e.sources[key]
	e.sourcesMu.RUnlock()
	if s != nil {
		return s
	}
	e.sourcesMu.Lock()
	defer e.sourcesMu.Unlock()
	if s := e.sources[key]; s != nil {
		return s
	}
	s = &source{resource: r, scope: scope}
	s.resourceField = appendMessage(nil, 1, func(b []byte) []byte { return appendResource(b, r) })
	if url := r.SchemaURL(); url != "" {
		s.resourceField = appendText(s.resourceField, 3, url)
	}
	s.scopeField = appendMessage(nil, 1, func(b []byte) []byte { return appendScope(b, scope) })
	if e.spool != nil {
		s.number, s.spooled = e.spool.register(s)
	}
	e.sources[key] = s
	return s
}
