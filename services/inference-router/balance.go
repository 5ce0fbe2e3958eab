package router

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/anima-run/anima/pkg/config"

	"github.com/anima-run/anima/services/inference-router/internal/balance"
	"github.com/anima-run/anima/services/inference-router/internal/health"
	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// addEndpoints adds the endpoints of the setting to their providers, and makes the pools
// of all providers. An entry is provider=url|key; an empty url or key is that of the
// provider.
func addEndpoints(sources []*source, setting config.Secret) error {
	for i, entry := range splitEndpoints(setting) {
		// The messages do not quote the entry, which may have a key.
		name, rest, ok := strings.Cut(entry, "=")
		at, key, two := strings.Cut(rest, "|")
		if !ok || !two || name == "" {
			return fmt.Errorf("ANIMA_INFERENCE_ROUTER_ENDPOINTS: entry %d is not provider=url|key, like openai=https://host/v1|key", i+1)
		}
		s := byName(sources)[name]
		switch {
		case s == nil:
			return fmt.Errorf("ANIMA_INFERENCE_ROUTER_ENDPOINTS: entry %d: the provider %.40q is not configured", i+1, name)
		case len(s.endpoints) >= balance.Max-1:
			return fmt.Errorf("ANIMA_INFERENCE_ROUTER_ENDPOINTS: the provider %.40q has more than %d endpoints", name, balance.Max)
		}
		p, err := s.another(strings.TrimSpace(at), strings.TrimSpace(key))
		if err != nil {
			return fmt.Errorf("ANIMA_INFERENCE_ROUTER_ENDPOINTS: entry %d: %w", i+1, err)
		}
		s.endpoints = append(s.endpoints, p)
	}
	for _, s := range sources {
		s.endpoints = append([]provider.Provider{s.provider}, s.endpoints...)
		s.pool = balance.New(len(s.endpoints))
	}
	return nil
}

func splitEndpoints(setting config.Secret) []string {
	var all []string
	for entry := range strings.SplitSeq(setting.Reveal(), ",") {
		if entry = strings.TrimSpace(entry); entry != "" {
			all = append(all, entry)
		}
	}
	return all
}

// prefixBytes is how much of the beginning of a prompt is in its key: a part of the system
// prompt, which stays the same while the conversation grows.
const prefixBytes = 1 << 10

// promptKey returns the key by which a call prefers an endpoint: that of its agent and the
// beginning of its prompt. It is 0 if providers do not cache the prompt.
func (m *candidate) promptKey() uint64 {
	if m.ask.Estimate() < balance.CachedFrom {
		return 0
	}
	if m.ask.Raw != nil {
		return balance.Key(m.req.Agent, m.ask.Raw.Messages[:min(len(m.ask.Raw.Messages), prefixBytes)])
	}
	text := m.ask.Messages[0].Content
	return balance.Key(m.req.Agent, text[:min(len(text), prefixBytes)])
}

// beginEndpoint chooses the endpoint of an attempt, which [candidate.endEndpoint] has to
// end. It prefers endpoints that have not failed for the call.
func (m *candidate) beginEndpoint() int {
	p, key := m.source.pool, uint64(0)
	if p.Len() > 1 {
		key = m.promptKey()
	}
	i := p.Begin(key, m.tokens, m.tried, rand.Uint64(), m.h.now())
	if i < 0 {
		i = p.Begin(key, m.tokens, 0, rand.Uint64(), m.h.now())
	}
	return i
}

// endEndpoint applies the result of an attempt to its endpoint. A refusal because of the
// key or its limits is a failure of the endpoint, although the provider works.
func (a *attempt) endEndpoint() {
	result, _ := resultOf(a.res, a.err, a.took)
	r := map[health.Result]balance.Result{health.Answered: balance.Answered, health.Failed: balance.Failed}[result]
	switch provider.KindOf(a.err) {
	case provider.RateLimited, provider.Auth, provider.Quota:
		r = balance.Failed
	default:
	}
	a.m.source.pool.End(a.endpoint, a.tokens, a.first, r, a.m.h.now())
	if a.err == nil {
		return
	}
	a.origin.tried = a.origin.tried.With(a.endpoint)
	if kind := provider.KindOf(a.err); kind == provider.Auth || kind == provider.Quota {
		a.origin.refused = a.origin.refused.With(a.endpoint)
	}
}

// hasOther reports whether an endpoint is left that has not failed for the call.
func (m *candidate) hasOther() bool { return m.tried.Len() < m.source.pool.Len() }

// otherEndpoint has a failed attempt repeated at once at another endpoint of the provider,
// if one is left. It returns false if the failure is not of the endpoint, or if none is left,
// with the error that decides about the candidate: the latest one whose cause may pass,
// because the endpoint that had it is called again then, or else the given one.
func (c *callState) otherEndpoint(m *candidate, e *provider.Error) (again bool, decides *provider.Error) {
	switch e.Kind {
	case provider.RetrySame, provider.RateLimited, provider.Failover, provider.Stalled, provider.Unreachable, provider.Auth, provider.Quota:
	default:
		return false, e
	}
	lasting := !remedyOf(e).transient
	if !lasting {
		m.passing = e
	}
	if !m.hasOther() {
		if lasting && m.passing != nil {
			e = m.passing
		}
		m.tried, m.passing = m.refused, nil // a key that was refused is refused again
		return false, e
	}
	c.last = failureOf(e)
	if lasting && c.lasting == nil {
		c.lasting = c.last
	}
	m.retryFirst, m.notBefore = true, c.h.now()
	c.budgets.failing = append(c.budgets.failing, m.provider.Name())
	return true, e
}
