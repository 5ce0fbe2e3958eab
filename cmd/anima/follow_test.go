package main

import (
	"errors"
	"testing"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
)

// writerFunc calls a function for each write.
type writerFunc func()

func (f writerFunc) Write(p []byte) (int, error) {
	f()
	return len(p), nil
}

// TestEndIsLast checks that a live piece which arrives while the end of the run is being
// shown is not shown after it.
func TestEndIsLast(t *testing.T) {
	t.Parallel()
	writes := 0
	w := &watcher{message: &api.SendMessage{}, run: "r", session: "s"}
	w.view = (&app{cli: cli{Output: outputJSON}}).viewer(writerFunc(func() {
		writes++
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.end == nil {
			t.Error("the end is shown before the watcher stops to show pieces")
		}
	}))
	end := api.LoopEnd{Run: "r", Session: "s", Success: true}
	data, err := api.Encode(end)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.event(bus.Stored{Subject: end.Subject().String(), Data: data}); !errors.Is(err, errRunEnded) {
		t.Errorf("got %v, want %v", err, errRunEnded)
	}
	w.piece(liveOf(t, api.Thinking{Run: "r", Session: "s"}))
	if writes != 1 {
		t.Errorf("%d lines were written, want 1", writes)
	}
}
