package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"

	"github.com/anima-run/anima/pkg/telemetry/tracesdk"
)

// Options describe the process to [Open].
type Options struct {
	Version  string                           // version of the build: service.version and anima_build_info
	Instance string                           // service.instance.id, such as the name of the pod; may be empty
	Lookup   func(name string) (string, bool) // the environment; nil is an empty one
	Log      *slog.Logger                     // logs failures to send; nil discards them
	// Spool is a folder that keeps spans when the process is killed, until the next
	// process that opens it sends them. It is created if necessary, may be shared by
	// processes, and takes 16 MiB for each. "" keeps spans in memory only.
	Spool string
}

// Exporters are the outputs of a process's telemetry: the connections to the collectors
// of traces and of metrics, if they are configured, and the metrics page. The methods are
// safe for concurrent use.
type Exporters struct {
	settings

	opts    Options
	spans   *tracesdk.Exporter // nil: traces are not sent
	push    *push              // nil: metrics are not pushed
	process *prometheus.Registry

	mu        sync.Mutex
	providers []*Providers // started and not shut down
}

// Open reads the OTEL_ variables and opens the exporters. It does not wait for the
// collector, which may start later; an error describes an invalid variable or an exporter
// that cannot be created. The caller shuts the Exporters down after all Providers started
// from them.
func Open(ctx context.Context, opts Options) (*Exporters, error) {
	if opts.Lookup == nil {
		opts.Lookup = func(string) (string, bool) { return "", false }
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	settings, err := settingsOf(opts.Lookup)
	if err != nil {
		return nil, err
	}
	e := &Exporters{opts: opts, settings: settings, process: newProcessRegistry(opts.Version)}
	spans := tracesdk.NewMetrics(e.process)
	if e.metrics != (target{}) {
		exporter, err := e.metrics.openMetrics(ctx)
		if err != nil {
			return nil, fmt.Errorf("open the metric exporter: %w", err)
		}
		e.push = &push{Exporter: exporter, interval: e.interval, log: opts.Log}
	}
	if e.traces == (target{}) {
		return e, nil
	}
	client, err := e.traces.open(ctx)
	if err != nil {
		err = fmt.Errorf("open the trace exporter: %w", err)
		if e.push != nil {
			err = errors.Join(err, e.push.close(ctx))
		}
		return nil, err
	}
	e.spans = tracesdk.NewExporter(ctx, tracesdk.Options{
		Client: client, Log: opts.Log, Metrics: spans, Queue: e.queue, Batch: e.batch, Delay: e.delay, Spool: opts.Spool, Work: TurnID, Baggage: members,
	})
	return e, nil
}

// members returns the ids of [WithTurn] as attributes of spans.
func members(ctx context.Context) [2]tracesdk.Member {
	agent, turn := Turn(ctx)
	return [2]tracesdk.Member{{Key: AgentID, Value: agent}, {Key: TurnID, Value: turn}}
}

// Endpoint returns the URL that traces are sent to, "" if they are not sent.
func (e *Exporters) Endpoint() string { return e.traces.url }

// MetricsHandler returns a handler that serves the metrics of the process and of every
// service started from it. The latter have a label service; further replicas of the same
// service have a label replica as well. Clients that accept OpenMetrics get exemplars.
func (e *Exporters) MetricsHandler() http.Handler {
	return promhttp.HandlerFor(prometheus.GathererFunc(e.gather), promhttp.HandlerOpts{
		ErrorLog:          slog.NewLogLogger(e.opts.Log.Handler(), slog.LevelError),
		ErrorHandling:     promhttp.ContinueOnError, // an instrument with errors must not hide the others
		EnableOpenMetrics: true,
	})
}

func (e *Exporters) gather() ([]*dto.MetricFamily, error) {
	e.mu.Lock()
	all := prometheus.Gatherers{e.process}
	for _, p := range e.providers {
		all = append(all, p.registry)
	}
	e.mu.Unlock()
	return all.Gather()
}

// ForceFlush sends every span that has ended. The error is the last reason for which
// spans were lost since the previous flush, in this one or before.
func (e *Exporters) ForceFlush(ctx context.Context) error { return e.spans.ForceFlush(ctx) }

// Shutdown sends the queued spans until ctx ends, and closes the connections. It is
// called once; spans that end afterwards are lost.
func (e *Exporters) Shutdown(ctx context.Context) error {
	var err error
	if e.push != nil {
		err = e.push.close(ctx)
	}
	return errors.Join(err, e.spans.Shutdown(ctx))
}

// add adds p to the metrics page under the lowest free replica number.
func (e *Exporters) add(p *Providers, register func(prometheus.Labels) error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	p.replica = 1
	for slices.ContainsFunc(e.providers, func(o *Providers) bool { return o.service == p.service && o.replica == p.replica }) {
		p.replica++
	}
	labels := prometheus.Labels{"service": p.service}
	if p.replica > 1 {
		labels["replica"] = fmt.Sprint(p.replica)
	}
	if err := register(labels); err != nil {
		return err
	}
	e.providers = append(e.providers, p)
	return nil
}

// remove removes p from the metrics page and reports whether it was there.
func (e *Exporters) remove(p *Providers) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := len(e.providers)
	e.providers = slices.DeleteFunc(e.providers, func(o *Providers) bool { return o == p })
	return len(e.providers) < n
}
