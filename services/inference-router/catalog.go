package router

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"

	"github.com/anima-run/anima/services/inference-router/internal/balance"
	"github.com/anima-run/anima/services/inference-router/internal/model"
	"github.com/anima-run/anima/services/inference-router/internal/provider"
	"github.com/anima-run/anima/services/inference-router/internal/registry"
)

// When the lists of models are read: at the start, then periodically, and more often
// while a server does not answer.
const (
	listEvery   = time.Minute
	listAgain   = 2 * time.Second
	priceAgain  = time.Second // least pause, if the next price applies by now and the store cannot be read
	listTimeout = 10 * time.Second
	listAtStart = 2 * time.Second // limit of the first read, which delays the start of the service
)

// catalog is the registry of models in use: the rows of the store, joined with the settings
// of this process. A call reads it without a lock. It is safe for concurrent use.
type catalog struct {
	log     *slog.Logger
	now     func() time.Time
	sources []*source
	store   modelStore
	owner   string // of this process, in announcements
	bucket  *bus.Bucket[api.RegistryChange]

	current atomic.Pointer[models]

	mu   sync.Mutex // held while the lists are read
	last time.Time  // start of the last read

	swapping sync.Mutex    // held while current is replaced
	swapped  chan struct{} // signals run that current was replaced
}

// modelStore is the part of the store that the catalog uses.
type modelStore interface {
	Registry(ctx context.Context) (registry.State, error)
	Generation(ctx context.Context) (int64, error)
	ChangeRegistry(ctx context.Context, plan func(registry.State) (registry.Changes, error)) (generation int64, changed bool, err error)
	PriceHistory(ctx context.Context, provider, id string) ([]registry.Price, error)
}

// models is one state of the catalog. It is immutable.
type models struct {
	*model.Registry
	stored registry.State
	unused []model.Model // models that are shown and never selected
	next   int64         // time at which the next price applies, Unix microseconds; 0: none is set
}

// source is one provider with its models.
type source struct {
	provider  provider.Provider
	url       string                                           // without secrets, for messages; empty: the provider has no list, static is used
	local     bool                                             // on this machine or in a private network, unless the settings override it: models without a price are free
	static    []model.Model                                    // from the settings, or of the script of the simulated provider
	endpoints []provider.Provider                              // the provider and its other addresses and keys
	pool      *balance.Pool                                    // of the endpoints
	another   func(url, key string) (provider.Provider, error) // returns an endpoint of the provider; an empty url or key is that of the provider
	official  bool                                             // the server is that of OpenAI or Anthropic: its baseline models are offered before it has listed them

	mu     sync.Mutex      // guards the fields below
	fault  error           // of the last read; nil after a success
	warned map[string]bool // models for which the list gives the price 0 and that were written to the log
}

func newCatalog(log *slog.Logger, now func() time.Time, store modelStore, sources []*source) *catalog {
	c := &catalog{log: log, now: now, store: store, sources: sources, swapped: make(chan struct{}, 1)}
	empty, _ := model.NewRegistry()
	c.current.Store(&models{Registry: empty})
	return c
}

// configured reports whether a provider is configured.
func (c *catalog) configured(name string) bool {
	return slices.ContainsFunc(c.sources, func(s *source) bool { return s.provider.Name() == name })
}

// Registry returns the models in use.
func (c *catalog) Registry() *model.Registry { return c.current.Load().Registry }

// faults returns, for each provider whose list could not be read, its URL and the error.
func (c *catalog) faults() []string {
	var all []string
	for _, s := range c.sources {
		s.mu.Lock()
		if s.fault != nil {
			all = append(all, s.url+": "+s.fault.Error())
		}
		s.mu.Unlock()
	}
	return all
}

// exists reports whether a name may be that of a model or of a class of models. For one that
// is not, it reads the lists again, at most every [listAgain]. While the list of a provider
// cannot be read, any name may be one of it.
func (c *catalog) exists(ctx context.Context, id string) bool {
	if c.names(id) {
		return true
	}
	c.mu.Lock()
	recent := c.now().Sub(c.last) < listAgain
	c.mu.Unlock()
	if recent {
		return false
	}
	c.refreshFor(ctx)
	return c.names(id)
}

func (c *catalog) names(id string) bool {
	now := c.current.Load()
	return model.IsClass(id) || now.Find(id) != nil || len(c.faults()) > 0 ||
		slices.ContainsFunc(now.unused, func(m model.Model) bool { return m.ID == id })
}

// usable reports whether any model can be called.
func (c *catalog) usable() bool {
	return slices.ContainsFunc(c.Registry().All(), func(m model.Model) bool { return m.Unusable() == "" && c.configured(m.Provider) })
}

// run reads the lists periodically until ctx ends. It also reads the store, so that a change
// that another replica could not announce is used within listEvery, and swaps the models when
// the next price applies.
func (c *catalog) run(ctx context.Context) error {
	read := c.now()
	for {
		every := listEvery
		if len(c.faults()) > 0 || !c.usable() {
			every = listAgain
		}
		pause := every - c.now().Sub(read)
		if next := c.current.Load().next; next > 0 {
			pause = min(pause, max(priceAgain, time.UnixMicro(next).Sub(c.now())))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-c.swapped: // another price may be the next one
			continue
		case <-time.After(pause):
		}
		if c.now().Sub(read) >= every {
			c.refresh(ctx, listTimeout)
			read = c.now()
		}
		if err := c.loadIfChanged(ctx); err != nil && ctx.Err() == nil {
			c.log.WarnContext(ctx, "registry of models not read, the previous one stays in use", "err", err)
		}
	}
}

// refreshIfMissing reads the lists when a provider reports that a model does not exist,
// so that the next attempt chooses among the existing models.
func (c *catalog) refreshIfMissing(ctx context.Context, err error) {
	if e, ok := errors.AsType[*provider.Error](err); ok && e.Status == http.StatusNotFound {
		c.refreshFor(ctx)
	}
}

// refreshFor is refresh on behalf of a call. It ignores the cancellation of the call,
// which would be recorded as a fault of each server.
func (c *catalog) refreshFor(ctx context.Context) {
	c.refresh(context.WithoutCancel(ctx), listAtStart)
}

// refresh reads all lists and stores what has changed. Concurrent callers share a read that
// begins after their request.
func (c *catalog) refresh(ctx context.Context, timeout time.Duration) {
	asked := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last.After(asked) {
		return
	}
	c.last = c.now()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var reads sync.WaitGroup
	for _, s := range c.sources {
		if s.url != "" {
			reads.Go(func() { c.read(ctx, s) })
		}
	}
	reads.Wait()
}

// read reads the list of one provider and stores it. A failure keeps the previous list,
// because a server that is unreachable for a short time still has its models. A server whose
// list was read has one: a proxy answers 404 while the server behind it is replaced.
func (c *catalog) read(ctx context.Context, s *source) {
	listed, err := s.provider.Models(ctx)
	state := registry.ListRead
	if hasNoList(err) && c.current.Load().stored.List(s.provider.Name(), s.url) != registry.ListRead {
		state, err = registry.ListNone, nil
	}
	if err == nil {
		err = c.storeList(ctx, s, state, listed)
	}
	s.mu.Lock()
	before := s.fault
	s.fault = err
	s.mu.Unlock()
	switch {
	case err != nil && (before == nil || before.Error() != err.Error()):
		c.log.WarnContext(ctx, "list of models not read, retrying", "url", s.url, "err", err)
	case err == nil && before != nil:
		c.log.InfoContext(ctx, "list of models read", "url", s.url, "models", len(listed))
	}
}

// hasNoList reports whether a server answered that it has no list of models.
func hasNoList(err error) bool {
	e, ok := errors.AsType[*provider.Error](err)
	return ok && (e.Status == http.StatusNotFound || e.Status == http.StatusMethodNotAllowed || e.Status == http.StatusNotImplemented)
}
