package router

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

// TestSlowCaller checks that a caller that does not receive its text delays only callers
// of the same call.
func TestSlowCaller(t *testing.T) {
	t.Parallel()
	var f callGroup
	stuck, release := make(chan struct{}), make(chan struct{})
	ask := func(id string, send func(api.Delta) error) (api.Completion, error) {
		return f.do(t.Context(), callRequest{Complete: api.Complete{ID: id, Agent: "lucky"}}, send, func(_ context.Context, tell func(api.Delta)) (api.Completion, error) {
			tell(api.Delta{Content: "text"})
			return api.Completion{Text: id}, nil
		})
	}
	silent := func(api.Delta) error { return nil }
	results := make(chan error, 2)
	go func() {
		_, err := ask("slow", func(api.Delta) error { close(stuck); <-release; return nil })
		results <- err
	}()
	<-stuck
	joining := make(chan struct{})
	go func() {
		close(joining)
		_, err := ask("slow", silent)
		results <- err
	}()
	<-joining
	for range 100 { // the second caller of the slow call waits for its turn in between
		runtime.Gosched()
		if c, err := ask("other", silent); err != nil || c.Text != "other" {
			t.Fatalf("another call: got %+v, %v", c, err)
		}
	}
	close(release)
	for range 2 {
		if err := <-results; err != nil {
			t.Errorf("a caller of the slow call: %v", err)
		}
	}
}

// TestPanickingFlight checks that a call that panics ends for all its callers, and that
// the next call with its id is made.
func TestPanickingFlight(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var f callGroup
	begun, joined, ended := make(chan struct{}), make(chan struct{}), make(chan any)
	ask := func(send func(api.Delta) error, call func()) (api.Completion, error) {
		return f.do(ctx, callRequest{Complete: api.Complete{ID: "c", Agent: "lucky"}}, send, func(context.Context, func(api.Delta)) (api.Completion, error) {
			call()
			return api.Completion{Text: "made"}, nil
		})
	}
	silent := func(api.Delta) error { return nil }
	go func() {
		defer func() { ended <- recover() }()
		_, _ = ask(silent, func() { close(begun); <-joined; panic("a bug") }) // it panics
	}()
	<-begun
	_, err := ask(func(api.Delta) error { close(joined); return nil }, func() { t.Error("the second caller made the call") })
	if !errors.Is(err, errNoReturn) {
		t.Errorf("the second caller: got %v, want %v", err, errNoReturn)
	}
	if <-ended == nil {
		t.Error("the first caller did not panic")
	}
	if c, err := ask(silent, func() {}); err != nil || c.Text != "made" {
		t.Errorf("the third caller: got %+v, %v, want a call of its own", c, err)
	}
}
