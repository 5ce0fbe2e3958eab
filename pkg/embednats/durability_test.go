package embednats

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestSyncReachesJetStream(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		o        Options
		always   bool
		interval time.Duration
	}{
		{Options{SyncAlways: true}, true, 2 * time.Minute},
		{Options{}, false, 2 * time.Minute},
	} {
		tt.o.Dir = t.TempDir()
		s, err := Start(t.Context(), tt.o)
		if err != nil {
			t.Fatal(err)
		}
		got := s.Running().JetStreamConfig()
		if got.SyncAlways != tt.always || got.SyncInterval != tt.interval {
			t.Errorf("got always %v, interval %s, want %v, %s", got.SyncAlways, got.SyncInterval, tt.always, tt.interval)
		}
		s.Shutdown()
	}
}

// records counts log records by their level.
type records struct {
	slog.Handler
	mu   sync.Mutex
	seen map[slog.Level]int
}

func (r *records) Enabled(context.Context, slog.Level) bool { return true }

func (r *records) Handle(_ context.Context, rec slog.Record) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen[rec.Level]++
	return nil
}

func TestLogLevels(t *testing.T) {
	t.Parallel()
	r := &records{seen: map[slog.Level]int{}}
	s, err := Start(t.Context(), Options{Dir: t.TempDir(), Token: "x", Listen: ":0", Log: slog.New(r)})
	if err != nil {
		t.Fatal(err)
	}
	s.Running().Warnf("careful")
	s.Running().Errorf("oh")
	s.Shutdown()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen[slog.LevelInfo] == 0 || r.seen[slog.LevelDebug] == 0 {
		t.Errorf("got %v, want the server's notices at info and its details at debug", r.seen)
	}
	if r.seen[slog.LevelWarn] != 1 || r.seen[slog.LevelError] != 1 {
		t.Errorf("got %v, want one warning and one error", r.seen)
	}
}

// TestNothingRunsAfterShutdown is not parallel, because it checks the goroutines of the
// process.
func TestNothingRunsAfterShutdown(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	s, err := Start(t.Context(), Options{Dir: t.TempDir(), Listen: ":0", Token: "x"})
	if err != nil {
		t.Fatal(err)
	}
	s.Shutdown()
}
