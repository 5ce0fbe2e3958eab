package loop

import (
	"context"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/bus"
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
