package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// Options are what [Open] needs to know about the process.
type Options struct {
	Version  string                           // of the build: service.version and anima_build_info
	Instance string                           // service.instance.id, such as the name of the pod; may be empty
	Lookup   func(name string) (string, bool) // the environment; nil is an empty one
	Log      *slog.Logger                     // hears when traces cannot be sent; nil discards
}

// Exporters are a process's ways out: the connection to the trace collector, if
// one is configured, and the metrics page. Its methods may be called
// concurrently.
type Exporters struct {
	opts        Options
	target      target
	sampler     sdktrace.Sampler
	genAILatest bool   // the newer GenAI names are wanted
	queue       *queue // nil when traces go nowhere
	process     *prometheus.Registry

	mu   sync.Mutex
	live []*Providers // started and not shut down
}

// Open reads the OTEL_ variables and gets ready to send. It does not wait for
// the collector, which may start later; the error is about what the variables
// say. The caller shuts the Exporters down after everything started from them.
func Open(ctx context.Context, opts Options) (*Exporters, error) {
	if opts.Lookup == nil {
		opts.Lookup = func(string) (string, bool) { return "", false }
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	optIn, _ := opts.Lookup("OTEL_SEMCONV_STABILITY_OPT_IN")
	e := &Exporters{opts: opts, genAILatest: slices.ContainsFunc(strings.Split(optIn, ","), func(v string) bool {
		return strings.TrimSpace(v) == OptInGenAILatest
	})}
	var err error
	if e.target, err = targetOf(opts.Lookup); err != nil {
		return nil, err
	}
	if e.sampler, err = samplerOf(opts.Lookup); err != nil {
		return nil, err
	}
	size, err := batchingOf(opts.Lookup)
	if err != nil {
		return nil, err
	}
	process, spans := newProcessRegistry(opts.Version)
	e.process = process
	if e.target == (target{}) {
		return e, nil
	}
	exporter, err := e.target.open(ctx)
	if err != nil {
		return nil, fmt.Errorf("open the trace exporter: %w", err)
	}
	e.queue = newQueue(exporter, size, opts.Log, spans)
	return e, nil
}

// Endpoint is the URL that traces are sent to; empty means that they are kept
// nowhere.
func (e *Exporters) Endpoint() string { return e.target.url }

// Handler serves the metrics of the process and of every service started from
// it, the latter with a label service; a second one of the same name gets a label
// replica as well. Clients that accept OpenMetrics are given exemplars.
func (e *Exporters) Handler() http.Handler {
	return promhttp.HandlerFor(prometheus.GathererFunc(e.gather), promhttp.HandlerOpts{
		ErrorLog:          slog.NewLogLogger(e.opts.Log.Handler(), slog.LevelError),
		ErrorHandling:     promhttp.ContinueOnError, // one bad instrument must not blind the operator
		EnableOpenMetrics: true,
	})
}

func (e *Exporters) gather() ([]*dto.MetricFamily, error) {
	e.mu.Lock()
	all := prometheus.Gatherers{e.process}
	for _, p := range e.live {
		all = append(all, p.registry)
	}
	e.mu.Unlock()
	return all.Gather()
}

// ForceFlush sends every span that has ended. The error says what was lost
// since the last flush, also for other reasons than this one.
func (e *Exporters) ForceFlush(ctx context.Context) error {
	if e.queue == nil {
		return nil
	}
	return e.queue.ForceFlush(ctx)
}

// Shutdown sends what is left, until ctx ends, and closes the connection. It is
// called once; spans that end afterwards are lost.
func (e *Exporters) Shutdown(ctx context.Context) error {
	if e.queue == nil {
		return nil
	}
	return e.queue.close(ctx)
}

// join makes p visible in Handler under a replica number that is free.
func (e *Exporters) join(p *Providers, register func(prometheus.Labels) error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	p.replica = 1
	for slices.ContainsFunc(e.live, func(o *Providers) bool { return o.service == p.service && o.replica == p.replica }) {
		p.replica++
	}
	labels := prometheus.Labels{"service": p.service}
	if p.replica > 1 {
		labels["replica"] = fmt.Sprint(p.replica)
	}
	if err := register(labels); err != nil {
		return err
	}
	e.live = append(e.live, p)
	return nil
}

// leave reports whether p was there.
func (e *Exporters) leave(p *Providers) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := len(e.live)
	e.live = slices.DeleteFunc(e.live, func(o *Providers) bool { return o == p })
	return len(e.live) < n
}
