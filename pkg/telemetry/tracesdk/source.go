package tracesdk

import (
	"go.opentelemetry.io/otel/sdk/instrumentation"
	"go.opentelemetry.io/otel/sdk/resource"
)

// source is the resource and scope of the spans of one tracer, encoded for OTLP.
type source struct {
	resource, scope []byte // the fields of a Resource and of a Scope
	schema          string // schema URL of the resource

	resourceField []byte // the fields of ResourceSpans besides the spans
	scopeField    []byte // the fields of ScopeSpans besides the spans
	number        uint16 // in the spool; valid if spooled is set
	spooled       bool
}

// newSource encodes a resource and a scope, and stores them in the spool.
func (e *Exporter) newSource(r *resource.Resource, scope instrumentation.Scope) *source {
	s := &source{resource: appendAttributes(nil, 1, r.Attributes()), scope: appendScope(nil, scope), schema: r.SchemaURL()}
	s.resourceField = appendBytes(nil, 1, s.resource)
	if s.schema != "" {
		s.resourceField = appendText(s.resourceField, 3, s.schema)
	}
	s.scopeField = appendBytes(nil, 1, s.scope)
	if e.spool != nil {
		s.number, s.spooled = e.spool.register(s)
	}
	return s
}
