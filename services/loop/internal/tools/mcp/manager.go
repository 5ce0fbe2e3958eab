package mcp

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/wait"

	"github.com/anima-run/anima/services/loop/internal/engine"
)

// Manager holds the connections of all agents of this process. A connection is made when
// it is first needed and shared by the runs of the agent. Manager has no state that must
// survive a crash: servers are stored in files, and lost connections are made again. It
// is safe for concurrent use.
type Manager struct {
	cfg      Config
	registry registry

	mu    sync.Mutex
	links map[key]*link
	rests map[key]rest // servers that failed, with the time of the next attempt
	ended bool
	work  sync.WaitGroup // counts all goroutines of the manager
}

type key struct{ agent, server string }

// rest is the backoff state of a server that failed.
type rest struct {
	server Server // as it was then; a changed server is tried at once
	until  time.Time
	count  int
	reason string
}

// Limits of the backoff of a server that fails.
const (
	firstRest = 5 * time.Second
	longRest  = 5 * time.Minute
)

// New returns a manager. Run closes unused connections; Close closes all of them.
func New(cfg Config) *Manager {
	return &Manager{
		cfg: cfg.withDefaults(), registry: registry{dir: cfg.Dir, out: cfg.Outbound},
		links: map[key]*link{}, rests: map[key]rest{},
	}
}

// Run closes connections that were not used for Config.Idle, until ctx ends. It returns
// nil.
func (m *Manager) Run(ctx context.Context) error {
	wait.Every(ctx, max(m.cfg.Idle/4, time.Second), m.sweep)
	return nil
}

// sweep retires connections that have no calls and were not used for Config.Idle.
func (m *Manager) sweep() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range m.links {
		if !l.made.IsZero() && l.calls == 0 && m.cfg.Now().Sub(l.used) >= m.cfg.Idle {
			m.retire(l)
		}
	}
	for k, r := range m.rests {
		if m.cfg.Now().Sub(r.until) > longRest {
			delete(m.rests, k)
		}
	}
}

// Close cancels all calls, closes all connections and waits for them. No connection is
// made afterwards.
func (m *Manager) Close() {
	m.mu.Lock()
	for _, l := range m.links {
		m.retire(l)
	}
	m.ended = true
	m.mu.Unlock()
	m.work.Wait()
}

// Tools implements [engine.Toolbox]: it returns the tools that the agent's definition
// grants and its servers offer, sorted by name. It waits for servers that are not
// connected yet, for a limited time, and omits the tools of servers that are not
// available.
func (m *Manager) Tools(ctx context.Context, a engine.Agent) []engine.Tool {
	if !slices.ContainsFunc(a.Tools, func(t string) bool { return strings.HasPrefix(t, api.MCPPrefix) }) {
		return nil
	}
	servers, faults, err := m.registry.list(a.ID)
	if err != nil {
		m.cfg.Log.WarnContext(ctx, "an agent's MCP servers cannot be read", "agent", a.ID, "err", err)
		return nil
	}
	for _, f := range faults {
		m.failed(ctx, key{a.ID, f.name}, Server{}, errors.New(f.reason))
	}
	m.forget(a.ID, servers)
	wait, cancel := context.WithTimeout(ctx, m.cfg.Wait)
	defer cancel()
	var tools []engine.Tool
	seen := map[string]bool{}
	for _, l := range m.linksTo(ctx, a, servers) {
		if l.wait(wait) != nil {
			continue
		}
		for _, o := range m.offers(wait, l) {
			if !api.Grants(a.Tools, o.name) || len(tools) == MaxTools || seen[o.name] {
				continue // of tools with the same name, that of the first server is used
			}
			seen[o.name] = true
			tools = append(tools, o.tool(m.cfg, func(ctx context.Context, c engine.Call) (engine.Output, error) {
				return m.call(ctx, c, l.key.server, o)
			}))
		}
	}
	slices.SortFunc(tools, func(x, y engine.Tool) int { return cmp.Compare(x.Name, y.Name) })
	return tools
}

// linksTo returns the connections to servers, except those that are not attempted now.
func (m *Manager) linksTo(ctx context.Context, a engine.Agent, servers []Server) []*link {
	var links []*link
	for _, s := range servers {
		if l, err := m.link(ctx, a, s); err == nil {
			links = append(links, l)
		}
	}
	return links
}

// forget retires an agent's connections to servers that are not in the list.
func (m *Manager) forget(agent string, servers []Server) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k, l := range m.links {
		if k.agent == agent && !slices.ContainsFunc(servers, func(s Server) bool { return s.Name == k.server }) {
			m.retire(l)
		}
	}
}
