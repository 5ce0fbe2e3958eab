package router

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/wait"

	"github.com/anima-run/anima/services/inference-router/internal/model"
	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// When the lists of models are read: at the start, then periodically, and more often
// while a server does not answer.
const (
	listEvery   = time.Minute
	listAgain   = 2 * time.Second
	listTimeout = 10 * time.Second
	listAtStart = 2 * time.Second // limit of the first read, which delays the start of the service
)

// catalog is the registry of models, built from the settings and the lists of the
// providers. It is safe for concurrent use.
type catalog struct {
	log      *slog.Logger
	now      func() time.Time
	sources  []*source
	registry atomic.Pointer[model.Registry]

	configured func(provider string) bool

	mu   sync.Mutex // held while the lists are read
	last time.Time  // start of the last read
}

// source is one provider with its models.
type source struct {
	provider provider.Provider
	url      string        // without secrets, for messages; empty: the provider has no list, static is used
	local    bool          // on this machine or in a private network, unless the settings override it: models without a price are free
	static   []model.Model // from the settings; all models of a simulated provider
	known    []model.Model // models with known list prices: those of OpenAI or Anthropic
	official bool          // the server is that of OpenAI or Anthropic: its known models are offered before it has listed them

	mu     sync.Mutex // guards the fields below
	listed []provider.Listed
	state  listState
	fault  error // of the last read; nil after a success
}

// listState is the state of a provider's list.
type listState int

const (
	listPending listState = iota // the server has not answered yet
	listNone                     // the server has no list of models
	listRead                     // the list was read
)

func newCatalog(log *slog.Logger, now func() time.Time, sources []*source) (*catalog, error) {
	c := &catalog{log: log, now: now, sources: sources}
	c.configured = func(name string) bool {
		return slices.ContainsFunc(sources, func(s *source) bool { return s.provider.Name() == name })
	}
	return c, c.build()
}

// Registry returns the models as of the last read.
func (c *catalog) Registry() *model.Registry { return c.registry.Load() }

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

// usable reports whether any model can be called.
func (c *catalog) usable() bool {
	return slices.ContainsFunc(c.Registry().All(), func(m model.Model) bool { return m.Unusable() == "" })
}

// run reads the lists periodically until ctx ends. The lists are not stored: the next
// start reads them again.
func (c *catalog) run(ctx context.Context) error {
	for {
		pause := listEvery
		if len(c.faults()) > 0 || !c.usable() {
			pause = listAgain
		}
		if wait.For(ctx, pause) != nil {
			return nil
		}
		c.refresh(ctx, listTimeout)
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

// refresh reads all lists and rebuilds the registry. Concurrent callers share a read that
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
	if err := c.build(); err != nil {
		c.log.ErrorContext(ctx, "the list of models cannot be used", "err", err)
	}
}

// read reads the list of one provider. A failure after a successful read keeps the
// previous list, because a server that is unreachable for a short time still has its
// models.
func (c *catalog) read(ctx context.Context, s *source) {
	listed, err := s.provider.Models(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.fault
	e, _ := errors.AsType[*provider.Error](err)
	switch {
	case err == nil:
		s.listed, s.state, s.fault = listed, listRead, nil
	case e != nil && (e.Status == http.StatusNotFound || e.Status == http.StatusMethodNotAllowed || e.Status == http.StatusNotImplemented):
		s.listed, s.state, s.fault = nil, listNone, nil
	default:
		s.fault = err
	}
	switch {
	case s.fault != nil && (before == nil || before.Error() != s.fault.Error()):
		c.log.WarnContext(ctx, "list of models not read, retrying", "url", s.url, "err", s.fault)
	case s.fault == nil && before != nil:
		c.log.InfoContext(ctx, "list of models read", "url", s.url, "models", len(s.listed))
	}
}

// build builds the registry from the settings and the lists. Of two models with the same
// id it uses that of the first provider.
func (c *catalog) build() error {
	var all []model.Model
	seen := map[string]bool{}
	for _, s := range c.sources {
		for _, m := range s.models() {
			if !seen[m.ID] {
				seen[m.ID] = true
				all = append(all, m)
			}
		}
	}
	registry, err := model.NewRegistry(all...)
	if err != nil {
		return err
	}
	c.registry.Store(registry)
	return nil
}

// models returns the models of the provider, those of the settings first.
func (s *source) models() []model.Model {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.state == listRead:
		return s.fromList()
	case len(s.static) > 0 && !s.official:
		return s.static
	case s.official || s.state == listNone:
		return append(s.known[:len(s.known):len(s.known)], s.static...)
	}
	return nil
}

// fromList joins the list with the settings. A model that is not listed is marked as
// absent.
func (s *source) fromList() []model.Model {
	listed := map[string]provider.Listed{}
	for _, l := range s.listed {
		listed[l.ID] = l
	}
	absent := s.url + " does not list it"
	var out []model.Model
	seen := map[string]bool{}
	set := false // a model of the settings is listed
	for _, m := range s.static {
		l, ok := listed[m.ID]
		if !ok {
			l, ok = listed[m.ID+":latest"] // Ollama's full name of the model
		}
		if ok {
			m.ID, set = l.ID, true
			m.Tools = !l.NoTools
			m.Vision = m.Vision || l.Vision
		} else {
			m.Absent = absent
		}
		seen[m.ID] = true
		out = append(out, m)
	}
	for _, m := range s.known {
		isVersion := func(l provider.Listed) bool { return undated(l.ID) == m.ID }
		if !s.official || seen[m.ID] || listed[m.ID].ID != "" {
			continue
		}
		if !slices.ContainsFunc(s.listed, isVersion) {
			m.Absent = absent
		}
		seen[m.ID] = true
		out = append(out, m)
	}
	for _, l := range s.listed {
		if !seen[l.ID] {
			out = append(out, s.fromListed(l))
		}
	}
	if s.local && !set {
		chooseDefault(out)
	}
	return out
}

// fromListed returns a listed model that the settings do not name.
func (s *source) fromListed(l provider.Listed) model.Model {
	for _, m := range s.known {
		if l.Priced {
			break
		}
		if m.ID == l.ID {
			return m
		}
		if m.ID == undated(l.ID) { // the model without a date is the fallback
			m.ID, m.Fallback = l.ID, false
			return m
		}
	}
	m := model.Model{
		ID: l.ID, Provider: s.provider.Name(), InputPrice: l.InputPrice, OutputPrice: l.OutputPrice, Known: l.Priced,
		ContextWindow: l.ContextWindow, MaxOutput: maxOutput(l), Tools: !l.NoTools, Vision: l.Vision, TierMinimum: api.TierCritical,
	}
	switch {
	case l.NotChat:
		m.Absent = "it is not made for conversations"
	case l.Remote != "" && !l.Priced:
		m.Absent = "price unknown: it runs at " + l.Remote + "; " + priceHint
	case !l.Priced && s.local:
		m.Known = true
	case !l.Priced:
		m.Absent = "price unknown: " + s.url + " does not give it; " + priceHint
	}
	return m
}

// undated returns a model id without the date of its version, as in
// claude-haiku-4-5-20251001.
func undated(id string) string {
	at := strings.LastIndexByte(id, '-')
	if at < 0 || len(id)-at != len("-20251001") || strings.Trim(id[at+1:], "0123456789") != "" {
		return id
	}
	return id[:at]
}

const priceHint = "set it in ANIMA_INFERENCE_ROUTER_MODELS"

// maxOutput returns the output limit of a listed model, at most a quarter of its window;
// the rest is for the prompt.
func maxOutput(l provider.Listed) int64 {
	most := int64(4096)
	if l.MaxOutput > 0 {
		most = l.MaxOutput
	}
	if l.ContextWindow > 0 {
		most = min(most, l.ContextWindow/4)
	}
	return max(1, most)
}

// chooseDefault marks one free model as the fallback for agents that request no model:
// the first one that takes tools, else the first one. With more than one, a local server
// would load one model after another.
func chooseDefault(models []model.Model) {
	best := -1
	for i, m := range models {
		if m.Unusable() == "" && m.Free() && (best < 0 || m.Tools && !models[best].Tools) {
			best = i
		}
	}
	if best >= 0 {
		models[best].Fallback = true
	}
}
