package telemetry

import (
	"context"
	"errors"
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
	// Spool is a folder in which spans outlive a process that is killed, until the
	// next one that opens it sends them; it is made if need be, may be shared by
	// processes, and takes 16 MiB for each. "" keeps spans in memory only.
	Spool string
}

// Exporters are a process's ways out: the connections to the collectors of traces
// and of metrics, if they are configured, and the metrics page. Its methods may be
// called concurrently.
type Exporters struct {
	opts        Options
	target      target
	sampler     sdktrace.Sampler
	genAILatest bool   // the newer GenAI names are wanted
	queue       *queue // nil when traces go nowhere
	heir        *heir  // nil when nobody left anything
	push        *push  // nil when metrics are only fetched
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
	metrics, err := metricTargetOf(opts.Lookup)
	if err != nil {
		return nil, err
	}
	interval, err := intervalOf(opts.Lookup)
	if err != nil {
		return nil, err
	}
	process, spans := newProcessRegistry(opts.Version)
	e.process = process
	if metrics != (target{}) {
		exporter, err := metrics.openMetrics(ctx)
		if err != nil {
			return nil, fmt.Errorf("open the metric exporter: %w", err)
		}
		e.push = &push{Exporter: exporter, interval: interval, log: opts.Log}
	}
	if e.target == (target{}) {
		return e, nil
	}
	client, err := e.target.open(ctx)
	if err != nil {
		err = fmt.Errorf("open the trace exporter: %w", err)
		if e.push != nil {
			err = errors.Join(err, e.push.close(ctx))
		}
		return nil, err
	}
	spool, left := e.openSpool(ctx)
	e.queue = newQueue(client, size, spool, opts.Log, spans)
	if len(left) > 0 {
		e.heir = inherit(client, left, opts.Log, e.queue.doubts.sent)
		for _, l := range left {
			e.queue.doubts.add(l.doubts...)
		}
	}
	return e, nil
}

// openSpool opens the spool if one is wanted. Traces are worth less than the service:
// without it, it goes on.
func (e *Exporters) openSpool(ctx context.Context) (*spool, []left) {
	if e.opts.Spool == "" {
		return nil, nil
	}
	s, all, damaged, err := openSpool(e.opts.Spool)
	if err != nil {
		e.opts.Log.WarnContext(ctx, "spans are kept in memory only: those not sent are lost if the process is killed", "folder", e.opts.Spool, "err", err)
	}
	if damaged > 0 {
		e.opts.Log.WarnContext(ctx, "some of the spans that a process left cannot be read", "spans", damaged)
	}
	return s, all
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
	var errs []error
	if e.push != nil {
		errs = append(errs, e.push.close(ctx))
	}
	if e.heir != nil {
		e.heir.close(ctx)
	}
	if e.queue != nil {
		errs = append(errs, e.queue.close(ctx))
	}
	return errors.Join(errs...)
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
