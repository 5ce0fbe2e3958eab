package mcp

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/engine"
)

// Offer is a tool of a connected server.
type Offer struct{ Server, Name, Does string }

// Offers returns the tools of the agent's servers that are connected now, in the order of
// the servers. It does not wait for connections.
func (m *Manager) Offers(ctx context.Context, a engine.Agent) ([]Offer, error) {
	servers, _, err := m.registry.list(a.ID)
	if err != nil {
		return nil, err
	}
	var all []Offer
	for _, s := range servers {
		m.mu.Lock()
		l := m.links[key{a.ID, s.Name}]
		made := l != nil && !l.made.IsZero()
		m.mu.Unlock()
		if made {
			for _, o := range m.offers(ctx, l) {
				all = append(all, Offer{Server: s.Name, Name: o.name, Does: o.description})
			}
		}
	}
	return all, nil
}

// Connect connects to all servers of an agent. It returns when each connection is ready
// or has failed, or when ctx ends.
func (m *Manager) Connect(ctx context.Context, a engine.Agent) {
	servers, _, err := m.registry.list(a.ID)
	if err != nil {
		return // Status reports the error
	}
	for _, l := range m.linksTo(ctx, a, servers) {
		_ = l.wait(ctx) // Status reports the error
	}
}

// Status returns the states of an agent's servers: those with a valid file, then those
// with an invalid one, each sorted by name. It makes no connections.
func (m *Manager) Status(a engine.Agent) ([]api.MCPServer, error) {
	out := []api.MCPServer{}
	servers, faults, err := m.registry.list(a.ID)
	for _, s := range servers {
		out = append(out, m.status(key{a.ID, s.Name}, s, a.Network))
	}
	for _, f := range faults {
		out = append(out, api.MCPServer{Name: f.name, State: api.ServerFailed, Error: f.reason, Tools: []string{}})
	}
	return out, err
}

func (m *Manager) status(k key, s Server, network bool) api.MCPServer {
	v := api.MCPServer{Name: s.Name, State: api.ServerIdle, Tools: []string{}}
	v.Address, _, _ = strings.Cut(s.URL.Reveal(), "?")
	v.Address = s.redact(v.Address)
	if s.Command != "" {
		v.Program = s.redact(strings.Join(append([]string{s.Command}, s.Args...), " "))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.links[k]
	r, resting := m.rests[k]
	switch {
	case l != nil && !l.made.IsZero():
		v.State = api.ServerConnected
		for _, o := range l.offers {
			v.Tools = append(v.Tools, o.name)
		}
		v.Refused = l.refused
	case resting:
		v.State, v.Error, v.RetryAt = api.ServerFailed, r.reason, r.until.UnixMicro()
	case s.URL != "" && !network:
		v.State, v.Error = api.ServerFailed, errNoNetwork.Error()
	case l != nil:
		v.State = api.ServerConnecting
	}
	return v
}

// Remove closes an agent's connections and deletes the files of its servers.
func (m *Manager) Remove(agent string) error {
	m.forget(agent, nil)
	if err := os.RemoveAll(filepath.Join(m.registry.dir, filepath.Base(agent))); err != nil {
		return fmt.Errorf("servers of %s: %w", agent, err)
	}
	return nil
}
