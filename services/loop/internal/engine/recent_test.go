package engine_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/services/loop/internal/engine/enginetest"
)

// TestConversationIsRemembered tests that an engine with a cached conversation sends
// the same prompts as engines that read the conversation for each run, and reads it
// only after another owner has worked on the session.
func TestConversationIsRemembered(t *testing.T) {
	t.Parallel()
	errDied := errors.New("died")
	for name, tt := range map[string]struct {
		window  int64
		size    int
		compact bool
	}{
		"long":      {200_000, 40, false}, // more turns than a prompt shows
		"compacted": {16_000, 3000, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const n, other, dead = 45, 20, 25 // numbers of runs
			w, plain := long(tt.window, tt.size), long(tt.window, tt.size)
			read := 0
			e, ev := w.Engine()
			counted := enginetest.With(t.Context(), func(ctx context.Context, port string, do func() error) error {
				if port == "conversation" {
					read++
				}
				return enginetest.Open(ctx, port, do)
			})
			crash := func(ctx context.Context, port string, do func() error) error {
				if port == "persist" {
					return errDied
				}
				return enginetest.Open(ctx, port, do)
			}
			want := 0
			for i := 1; i <= n; i++ {
				cmd := nthRun(i)
				var err error
				switch i {
				case other: // executed by another replica
					err = w.Run(t.Context(), enginetest.Open, cmd)
				case dead: // crashes at PERSIST, and the run is not resumed
					if err = w.Run(t.Context(), crash, cmd); errors.Is(err, errDied) {
						err = nil
					}
				default:
					err = e.Run(counted, cmd, ev)
				}
				if err != nil {
					t.Fatal(err)
				}
				gate := enginetest.Open
				if i == dead {
					gate = crash
				}
				if err := plain.Run(t.Context(), gate, cmd); err != nil && !errors.Is(err, errDied) {
					t.Fatal(err)
				}
				switch i {
				case 1, other + 1, dead + 1:
					want++
				}
				if read != want {
					t.Fatalf("after run %d the conversation was read %d times, want %d", i, read, want)
				}
			}
			if diff := cmp.Diff(plain.Router.Requests(), w.Router.Requests()); diff != "" {
				t.Errorf("the model was asked otherwise (-read anew +remembered):\n%s", diff)
			}
			if got := len(compactions(w)) > 0; got != tt.compact {
				t.Errorf("%d compactions", len(compactions(w)))
			}
		})
	}
}
