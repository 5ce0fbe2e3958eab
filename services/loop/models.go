package loop

import (
	"context"
	"sync"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
)

// modelsFor is the time for which the list of models is cached. The list changes when
// the router is configured.
const modelsFor = time.Minute

// modelsTimeout limits the wait of a turn for the list, which it can do without. After
// a failure the next request follows after modelsAgain.
const (
	modelsTimeout = 2 * time.Second
	modelsAgain   = 5 * time.Second
)

// models caches the router's models. While the router is unavailable it returns the
// last list, also together with an error.
type models struct {
	bus *bus.Bus
	now func() time.Time

	mu    sync.Mutex
	known []api.Model
	until time.Time
}

// Models implements engine.Models.
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
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		m.until = m.now().Add(modelsAgain)
		return m.known, err
	}
	m.known, m.until = answer.Models, m.now().Add(modelsFor)
	return m.known, nil
}
