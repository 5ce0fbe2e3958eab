package router

import (
	"context"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
	"github.com/anima-run/anima/services/inference-router/internal/sqlstore"
)

// lists is a provider that lists one model. Models returns the error of its context.
type lists struct{ provider.Provider }

func (lists) Name() string { return "lists" }

func (lists) Models(ctx context.Context) ([]provider.Listed, error) {
	return []provider.Listed{{ID: "m"}}, ctx.Err()
}

// TestCanceledCallIsNoFaultOfAList checks that a call that is canceled while it reads the
// lists leaves no fault of a server.
func TestCanceledCallIsNoFaultOfAList(t *testing.T) {
	t.Parallel()
	store := sqlstore.New(sqldbtest.SQLite(t, sqlstore.Migrations()))
	c := newCatalog(slog.New(slog.DiscardHandler), time.Now, store, []*source{{provider: lists{}, url: "http://lists/v1", local: true}})
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	c.refreshIfMissing(gone, &provider.Error{Kind: provider.NoModel, Status: http.StatusNotFound})
	if faults := c.faults(); len(faults) > 0 || !c.usable() {
		t.Errorf("faults %q, usable %t; want the list", faults, c.usable())
	}
}
