package bus

import (
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/api"
)

// names holds the span names and attributes of the messages of one subject. They are
// cached: creating them for each message costs as much as sending it.
type names struct {
	template               string
	call, publish, process string // span names

	caller, server, producer []trace.SpanStartOption
	consumer                 []attribute.KeyValue
	outcomes                 map[string]metric.MeasurementOption
}

type nameCache struct {
	mu   sync.RWMutex
	made map[api.Subject]*names // by subject without its key
}

// of returns the names of a subject. The number of contracts bounds the cache.
func (c *nameCache) of(s api.Subject) *names {
	s.Key, s.Keyed = "", false
	c.mu.RLock()
	n := c.made[s]
	c.mu.RUnlock()
	if n != nil {
		return n
	}
	n = newNames(s.Template())
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made == nil {
		c.made = map[api.Subject]*names{}
	}
	c.made[s] = n
	return n
}

func newNames(template string) *names {
	rpc := trace.WithAttributes(attribute.String("rpc.system.name", "nats"), attribute.String("rpc.method", template))
	n := &names{
		template: template, call: "call " + template, publish: "publish " + template, process: "process " + template,
		caller:   []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindClient), rpc},
		server:   []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindServer), rpc},
		producer: []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(messaging(template, "publish", "send")...)},
		consumer: messaging(template, "process", "process"),
		outcomes: map[string]metric.MeasurementOption{},
	}
	for _, code := range []api.Code{"ok", api.Invalid, api.NotFound, api.Conflict, api.Denied, api.Unavailable, api.Internal} {
		n.outcomes[string(code)] = metric.WithAttributeSet(attribute.NewSet(
			attribute.String("messaging.destination.template", template), attribute.String("outcome", string(code))))
	}
	return n
}

func messaging(template, name, kind string) []attribute.KeyValue {
	return []attribute.KeyValue{
		attribute.String("messaging.system", "nats"),
		attribute.String("messaging.operation.name", name),
		attribute.String("messaging.operation.type", kind),
		attribute.String("messaging.destination.template", template),
	}
}
