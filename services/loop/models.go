package loop

import (
	"context"
	"sync"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
)

// modelsFor is how long the list of models is remembered: a registry changes when
// the router is configured anew.
const modelsFor = time.Minute

// modelsTimeout is how long a turn waits for the list: it can do without.
const modelsTimeout = 2 * time.Second

// models are the router's, remembered. While it is away the last answer stands.
type models struct {
	bus *bus.Bus
	now func() time.Time

	mu    sync.Mutex
	known []api.Model
	until time.Time
}

func (m *models) Models(ctx context.Context) ([]api.Model, error) {
	m.mu.Lock()
	known, fresh := m.known, m.now().Before(m.until)
	m.mu.Unlock()
	if fresh {
		return known, nil
	}
	ctx, cancel := context.WithTimeout(ctx, modelsTimeout)
	defer cancel()
	answer, err := bus.Call[api.Models](ctx, m.bus, api.ListModels{})
	if err != nil {
		if known != nil {
			return known, nil
		}
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known, m.until = answer.Models, m.now().Add(modelsFor)
	return m.known, nil
}
