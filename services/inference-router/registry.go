package router

import (
	"context"
	"fmt"
	"slices"

	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"

	"github.com/anima-run/anima/services/inference-router/internal/model"
	"github.com/anima-run/anima/services/inference-router/internal/provider"
	"github.com/anima-run/anima/services/inference-router/internal/registry"
)

// open reads the stored registry, after it has stored the baseline of this release, and the
// lists of the providers.
func (c *catalog) open(ctx context.Context, b *bus.Bus) error {
	var err error
	if c.bucket, err = bus.OpenBucket[api.RegistryChange](ctx, b); err != nil {
		return err
	}
	c.owner = b.Owner()
	baseline := slices.Concat(model.Baseline(), model.Claude(), model.Groq())
	if _, _, err := c.store.ChangeRegistry(ctx, func(s registry.State) (registry.Changes, error) {
		return registry.Seed(s, baseline, c.now().UnixMicro()), nil
	}); err != nil {
		return err
	}
	if err := c.load(ctx); err != nil {
		return err
	}
	c.refresh(ctx, listAtStart)
	return nil
}

// load reads the stored registry and uses it.
func (c *catalog) load(ctx context.Context) error {
	c.swapping.Lock()
	defer c.swapping.Unlock()
	state, err := c.store.Registry(ctx)
	if err != nil {
		return err
	}
	next, err := c.build(state)
	if err != nil {
		return err
	}
	c.current.Store(next)
	select {
	case c.swapped <- struct{}{}:
	default: // run has a signal already
	}
	return nil
}

// loadIfChanged is load if the store has another registry than the one in use, or if a price
// has begun to apply.
func (c *catalog) loadIfChanged(ctx context.Context) error {
	now := c.current.Load()
	generation, err := c.store.Generation(ctx)
	if err != nil || generation == now.stored.Generation && (now.next == 0 || now.next > c.now().UnixMicro()) {
		return err
	}
	return c.load(ctx)
}

// change stores a change of the registry, uses it in this process and announces it to the
// other replicas. A crash after the change leaves it unannounced: the others find it within
// listEvery.
func (c *catalog) change(ctx context.Context, plan func(registry.State) (registry.Changes, error)) error {
	generation, changed, err := c.store.ChangeRegistry(ctx, plan)
	if err != nil || !changed {
		return err
	}
	if err := c.load(ctx); err != nil || c.bucket == nil {
		return err
	}
	note := api.RegistryChange{Generation: generation, By: c.owner}
	if _, _, err := c.bucket.Take(ctx, api.RegistryKey, note, 0, func(api.RegistryChange) bool { return true }); err != nil {
		c.log.WarnContext(ctx, "change of the models not announced, the other replicas find it within a minute", "err", err)
	}
	return nil
}

// watch reads the stored registry whenever another replica announces a change, until ctx
// ends. The value is only a signal: after an outage the watch may repeat an old one.
func (c *catalog) watch(ctx context.Context) error {
	err := c.bucket.Watch(ctx, api.RegistryKey, nil, func(e bus.Entry[api.RegistryChange]) error {
		if e.Deleted || e.Value.By == c.owner {
			return nil
		}
		if err := c.loadIfChanged(ctx); err != nil && ctx.Err() == nil {
			c.log.WarnContext(ctx, "registry of models not read, the previous one stays in use", "err", err)
		}
		return nil
	})
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// storeList stores the list of a provider, if it differs from the stored one.
func (c *catalog) storeList(ctx context.Context, s *source, state registry.ListState, list []provider.Listed) error {
	name, now := s.provider.Name(), c.now().UnixMicro()
	var done registry.Refreshed
	plan := func(stored registry.State) (changes registry.Changes, err error) {
		if state == registry.ListNone {
			return registry.NoList(stored, name, s.url, now), nil
		}
		changes, done = registry.Refresh(stored, name, s.url, list, now)
		return changes, nil
	}
	// The state in use mostly shows that there is nothing to change, without a transaction.
	if used := c.current.Load(); used.stored.Generation > 0 {
		if changes, err := plan(used.stored); err == nil && changes.Empty() {
			c.warn(ctx, s, done)
			return nil
		}
	}
	err := c.change(ctx, plan)
	if err == nil {
		c.warn(ctx, s, done)
	}
	return err
}

// warn writes what a list has changed to the log. A price of 0 that is not used is written
// once, although the list has it at each read.
func (c *catalog) warn(ctx context.Context, s *source, done registry.Refreshed) {
	for _, id := range done.Vanished {
		c.log.WarnContext(ctx, "model vanished from the list of its provider, it is not used any more", "model", id, "url", s.url)
	}
	for _, id := range done.Back {
		c.log.InfoContext(ctx, "model is listed again", "model", id, "url", s.url)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range done.Free {
		if !s.warned[id] {
			c.log.WarnContext(ctx, "the list gives the price 0 for a model that was paid, its last price stays", "model", id, "url", s.url)
		}
	}
	s.warned = map[string]bool{}
	for _, id := range done.Free {
		s.warned[id] = true
	}
}

// vanished returns how many models have vanished from the lists of their providers, by
// provider.
func (c *catalog) vanished() map[string]int64 {
	n := map[string]int64{}
	for _, s := range c.sources {
		n[s.provider.Name()] = 0
	}
	for _, m := range c.all() {
		if m.Vanished != 0 {
			n[m.Provider]++
		}
	}
	return n
}

// observe reports the vanished models as a metric, from which the alert follows.
func (c *catalog) observe(t *instruments) error {
	_, err := t.meter.Int64ObservableGauge("anima.inference.models_vanished", metric.WithDescription("Models that vanished from the list of their provider and are not used"),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			for name, n := range c.vanished() {
				o.Observe(n, metric.WithAttributes(semconv.GenAIProviderNameKey.String(name)))
			}
			return nil
		}))
	if err != nil {
		return fmt.Errorf("instrument: %w", err)
	}
	return nil
}
