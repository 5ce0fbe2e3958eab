package router

import (
	"context"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
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
	c, err := newCatalog(slog.New(slog.DiscardHandler), time.Now, []*source{{provider: lists{}, url: "http://lists/v1", local: true}})
	if err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	c.refreshIfMissing(gone, &provider.Error{Kind: provider.NoModel, Status: http.StatusNotFound})
	if faults := c.faults(); len(faults) > 0 || !c.usable() {
		t.Errorf("faults %q, usable %t; want the list", faults, c.usable())
	}
}
