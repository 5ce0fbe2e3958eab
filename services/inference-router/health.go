package router

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"

	"github.com/anima-run/anima/services/inference-router/internal/health"
)

// routeHealth is the health of the routes, shared with the other replicas by keys of the
// coordination bucket. Attempts use the state in memory: only its changes are written, in
// the background, and a watch applies those of the others. If NATS does not answer, the
// state in memory decides, and a change that was not written is lost: the other replicas
// see the same failures, and a breaker that they keep open becomes half-open by itself.
type routeHealth struct {
	*health.Tracker
	bucket *bus.Bucket[api.RouteHealth]
	owner  string
	now    func() time.Time
	log    *slog.Logger

	mu      sync.Mutex
	changed []health.Route          // to be written
	causes  map[health.Route]string // why the attempts failed that led to the present states
	signal  chan struct{}           // of a change
}

func newRouteHealth(ctx context.Context, b *bus.Bus, openFor time.Duration, now func() time.Time, log *slog.Logger) (*routeHealth, error) {
	bucket, err := bus.OpenBucket[api.RouteHealth](ctx, b)
	if err != nil {
		return nil, err
	}
	return &routeHealth{
		Tracker: health.New(openFor), bucket: bucket, owner: b.Owner(), now: now, log: log,
		causes: map[health.Route]string{}, signal: make(chan struct{}, 1),
	}, nil
}

const (
	claimTimeout = time.Second      // how long a probe waits for the bucket
	storeTries   = 3                // writes of a change while other replicas write the same key
	keepHealth   = 10 * time.Minute // how long the server keeps a state after its times have passed
)

// begin admits an attempt on a route, which end has to end. It returns false if the
// breaker refuses it, or the provider asks not to be called yet. Only a half-open breaker
// takes round trips: its probe is claimed by compare-and-set, so that one replica makes
// it. The claim of a replica that crashed expires.
func (h *routeHealth) begin(ctx context.Context, r health.Route) (health.Permit, bool) {
	p, ok := h.Begin(r, h.now())
	if !ok || !p.Probe {
		return p, ok
	}
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	var err error
	for range storeTries {
		var e bus.Entry[api.RouteHealth]
		e, err = h.bucket.Get(ctx, api.HealthKey(r.Provider, r.Model))
		if err == nil && !h.mayProbe(r, e) {
			h.apply(e)
			return health.Permit{}, false
		}
		if err == nil || api.CodeOf(err) == api.NotFound {
			err = h.write(ctx, r, e.Revision)
		}
		if api.CodeOf(err) != api.Conflict {
			break
		}
	}
	switch {
	case api.CodeOf(err) == api.Conflict: // another replica has the probe, and the watch applies its claim
		return health.Permit{}, false
	case err != nil:
		h.log.WarnContext(ctx, "probe not claimed, probing without the other replicas", "provider", r.Provider, "model", r.Model, "err", err)
	}
	return p, true
}

// mayProbe reports whether a stored state allows this replica to probe a route whose
// breaker is half-open in memory. A stored state that is closed and was applied before is
// older than the one in memory.
func (h *routeHealth) mayProbe(r health.Route, e bus.Entry[api.RouteHealth]) bool {
	now := h.now().UnixMicro()
	if e.Value.OpenUntil == 0 {
		return e.Revision <= h.Revision(r)
	}
	return e.Value.OpenUntil <= now && (e.Value.ProbeUntil <= now || e.Value.By == h.owner)
}

// end applies the result of an attempt, and cause says why it failed, "" for no failure. It
// does nothing if the attempt has ended.
func (h *routeHealth) end(p *health.Permit, result health.Result, wait time.Duration, cause string) {
	now := h.now()
	if !h.End(p, result, wait, now) {
		return
	}
	s := h.State(p.Route)
	level := slog.LevelInfo
	if s.Phase(now) == health.Open {
		level = slog.LevelWarn
	}
	h.log.Log(context.Background(), level, "health of a model changed", "provider", p.Route.Provider, "model", p.Route.Model, "breaker", s.Phase(now).String(), "pause", max(0, s.NotBefore.Sub(now)))
	h.mu.Lock()
	defer h.mu.Unlock()
	h.changed = append(h.changed, p.Route)
	if result != health.Unknown {
		h.causes[p.Route] = cause
	}
	select {
	case h.signal <- struct{}{}:
	default: // run has a signal already
	}
}

// run writes the changes of this replica and applies those of the others until ctx ends.
func (h *routeHealth) run(ctx context.Context) error {
	var writer sync.WaitGroup
	defer writer.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	writer.Go(func() { h.share(ctx) })
	return h.bucket.Watch(ctx, api.HealthKeys, nil, func(e bus.Entry[api.RouteHealth]) error {
		if !e.Deleted { // a state without a key is not a closed one
			h.apply(e)
		}
		return nil
	})
}

// apply applies a state that another replica has stored.
func (h *routeHealth) apply(e bus.Entry[api.RouteHealth]) {
	r := health.Route{Provider: e.Value.Provider, Model: e.Value.Model}
	if e.Value.By == h.owner || !h.Apply(r, stateOf(e.Value), e.Revision) {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.causes[r] = e.Value.Cause
}

// cause returns why the attempt failed that led to the present state of a route, or "".
func (h *routeHealth) cause(r health.Route) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.causes[r]
}

// share writes the changes until ctx ends.
func (h *routeHealth) share(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.signal:
		}
		h.mu.Lock()
		routes := h.changed
		h.changed = nil
		h.mu.Unlock()
		for _, r := range routes {
			if err := h.store(ctx, r); err != nil && ctx.Err() == nil {
				h.log.WarnContext(ctx, "health of a model not shared with the other replicas", "provider", r.Provider, "model", r.Model, "err", err)
			}
		}
	}
}

// store writes the state of a route, after it has applied a newer one of another replica.
// It writes nothing if that is the same.
func (h *routeHealth) store(ctx context.Context, r health.Route) error {
	for try := 1; ; try++ {
		e, err := h.bucket.Get(ctx, api.HealthKey(r.Provider, r.Model))
		if err != nil && api.CodeOf(err) != api.NotFound {
			return err
		}
		if err == nil {
			h.apply(e)
		}
		if err == nil && h.value(r, e.Value.By) == e.Value {
			return nil
		}
		if err = h.write(ctx, r, e.Revision); api.CodeOf(err) != api.Conflict || try == storeTries {
			return err
		}
	}
}

// write stores the state of a route on top of a revision, 0 for none. Errors: Conflict if
// the key has another revision.
func (h *routeHealth) write(ctx context.Context, r health.Route, on uint64) (err error) {
	key, v := api.HealthKey(r.Provider, r.Model), h.value(r, h.owner)
	last := time.UnixMicro(max(v.OpenUntil, v.ProbeUntil, v.NotBefore))
	ttl := max(0, last.Sub(h.now())) + keepHealth
	if on == 0 {
		on, err = h.bucket.Create(ctx, key, v, ttl)
	} else {
		on, err = h.bucket.Update(ctx, key, v, on, ttl)
	}
	if err == nil {
		h.Stored(r, on)
	}
	return err
}

// value returns the state of a route as the replica by stores it.
func (h *routeHealth) value(r health.Route, by string) api.RouteHealth {
	s := h.State(r)
	return api.RouteHealth{
		Provider: r.Provider, Model: r.Model, OpenUntil: micros(s.OpenUntil), ProbeUntil: micros(s.ProbeUntil), NotBefore: micros(s.NotBefore),
		Cause: h.cause(r), By: by,
	}
}

func stateOf(v api.RouteHealth) health.State {
	return health.State{OpenUntil: timeOf(v.OpenUntil), ProbeUntil: timeOf(v.ProbeUntil), NotBefore: timeOf(v.NotBefore)}
}

// micros returns a time in Unix microseconds, 0 for none.
func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

func timeOf(micros int64) time.Time {
	if micros == 0 {
		return time.Time{}
	}
	return time.UnixMicro(micros)
}

// observe reports the breakers and the denied retries as metrics.
func (h *routeHealth) observe(p metric.MeterProvider) error {
	m := p.Meter("github.com/anima-run/anima/services/inference-router")
	breaker, err1 := m.Int64ObservableGauge("anima.inference.breaker", metric.WithDescription("State of the breaker of a model: 0 closed, 1 half-open, 2 open"))
	denied, err2 := m.Int64ObservableCounter("anima.inference.retries_denied", metric.WithDescription("Retries that the retry budget of a provider denied"))
	if err := errors.Join(err1, err2); err != nil {
		return fmt.Errorf("instrument: %w", err)
	}
	_, err := m.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		now := h.now()
		h.Each(func(r health.Route, s health.State) {
			o.ObserveInt64(breaker, int64(s.Phase(now)), metric.WithAttributes(semconv.GenAIProviderNameKey.String(r.Provider), semconv.GenAIRequestModel(r.Model)))
		})
		h.Denied(func(name string, n int64) {
			o.ObserveInt64(denied, n, metric.WithAttributes(semconv.GenAIProviderNameKey.String(name)))
		})
		return nil
	}, breaker, denied)
	return err
}
