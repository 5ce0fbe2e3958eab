package wait_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anima-run/anima/pkg/wait"
)

func TestFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if err := wait.For(t.Context(), time.Hour); err != nil || time.Since(began) != time.Hour {
			t.Errorf("got %v after %v, want no error after an hour", err, time.Since(began))
		}
		if err := wait.For(t.Context(), -time.Second); err != nil {
			t.Errorf("without a pause: got %v, want no error", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for _, d := range []time.Duration{time.Hour, time.Hour, 0} {
			if err := wait.For(ctx, d); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v in a minute: got %v, want %v", d, err, context.DeadlineExceeded)
			}
		}
	})
}

func TestEvery(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 65*time.Second)
		defer cancel()
		began, n := time.Now(), 0
		wait.Every(ctx, 10*time.Second, func() {
			if n++; time.Since(began) != time.Duration(n)*10*time.Second {
				t.Errorf("call %d after %v, want every 10 s", n, time.Since(began))
			}
		})
		if n != 6 {
			t.Errorf("got %d calls in 65 s, want 6", n)
		}
	})
}
