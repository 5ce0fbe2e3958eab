package loop

import (
	"context"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/outbox"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"

	"github.com/anima-run/anima/services/loop/internal/agent"
	"github.com/anima-run/anima/services/loop/internal/sqlstore"
)

// Serve is serve, for the tests outside of the package.
var Serve = serve

// serve serves routes until the test ends.
func serve(t *testing.T, b *bus.Bus, routes ...bus.Route) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- b.Serve(ctx, time.Second, func() { close(ready) }, routes...) }()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// onStore returns handlers with a store of their own, which call the services on b.
func onStore(t *testing.T, b *bus.Bus) *handlers {
	t.Helper()
	db, log := sqldbtest.SQLite(t, sqlstore.Migrations()), apptest.Log(t)
	return &handlers{store: sqlstore.New(db, t.TempDir()), clients: newClients(b, time.Now), relay: outbox.NewRelay(db, b, log), now: time.Now, log: log}
}

// apply stores an agent of whose definition only the name and the autonomy matter.
func (h *handlers) apply(t *testing.T, name string, autonomous bool) {
	t.Helper()
	def := agent.Definition{Name: name, Autonomy: autonomous, Limits: agent.DefaultLimits(), Sandbox: agent.DefaultSandbox(), Body: "Be useful."}
	if _, err := h.store.Apply(t.Context(), def, name, "0xAD", "source", 1); err != nil {
		t.Fatal(err)
	}
}
