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

// A turn can do without the list: it waits so long for it, and when it came in vain
// the turns after it ask again only after a while.
const (
	modelsTimeout = 2 * time.Second
	modelsAgain   = 5 * time.Second
)

// models are the router's, remembered. While it is away the last answer stands, also
// beside the error.
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
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		m.until = m.now().Add(modelsAgain)
		return m.known, err
	}
	m.known, m.until = answer.Models, m.now().Add(modelsFor)
	return m.known, nil
}
