package loop

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/failpoint"
	"github.com/anima-run/anima/pkg/wait"
)

// ingester is the store of ingestion. It is safe for concurrent use.
type ingester interface {
	Behind(ctx context.Context, after string) (behind []string, last string, err error)
	Ingest(ctx context.Context, at int64, sessions ...string) (int, error)
	Touch(ctx context.Context, docs []int64, at int64) error
}

// ingestion writes memories of the turns that loop persists. It runs concurrently with
// the turns, and no turn waits for it.
//
// The end of a run names the session that has new turns. gather collects the sessions
// for gatherFor, because one transaction for several runs costs less than one for each.
// Ingest reads the session's turns in order, from the first that is not ingested, and
// stores its position in the same transaction. Therefore an end may be repeated, late,
// out of order, received by two replicas, or lost.
//
// The collected sessions are in memory only. The store can list the sessions with turns
// that are not ingested: run reads that list at the start and then every sweepEvery,
// because another replica may have exited with collected sessions.
type ingestion struct {
	store ingester
	now   func() time.Time
	log   *slog.Logger
	sweep time.Duration // time between two passes over all sessions
	more  chan struct{} // capacity 1: something was collected

	mu       sync.Mutex
	gathered map[string]bool // sessions
	seen     map[int64]bool  // index ids of the memories that a recall returned

	failed map[string]time.Time // sessions that could not be ingested, with the time; used by run only
}

const (
	gatherFor  = 400 * time.Millisecond // a memory is stored at most half a second after its run
	sweepEvery = 20 * time.Second
	sweepPause = time.Second      // between two pages of a pass, after the first pass
	failedFor  = 10 * time.Minute // passes leave out a session for this time after a failure; the end of a run does not
	maxFailed  = 10_000
)

func newIngestion(store ingester, now func() time.Time, log *slog.Logger) *ingestion {
	return &ingestion{
		store: store, now: now, log: log, sweep: sweepEvery, more: make(chan struct{}, 1),
		gathered: map[string]bool{}, seen: map[int64]bool{}, failed: map[string]time.Time{},
	}
}

// gather records that sessions have new turns. It returns at once.
func (i *ingestion) gather(sessions ...string) {
	if len(sessions) == 0 {
		return
	}
	i.mu.Lock()
	for _, s := range sessions {
		i.gathered[s] = true
	}
	i.mu.Unlock()
	i.wake()
}

func (i *ingestion) wake() {
	select {
	case i.more <- struct{}{}:
	default:
	}
}

// shown records that a recall returned memories; the next transaction counts them. It
// returns at once. Counts are lost if the process exits or the store fails.
func (i *ingestion) shown(docs []int64) {
	i.mu.Lock()
	for _, d := range docs {
		i.seen[d] = true
	}
	i.mu.Unlock()
	i.wake()
}

// count stores the counts of the memories that were shown.
func (i *ingestion) count(ctx context.Context) {
	i.mu.Lock()
	docs := slices.Sorted(maps.Keys(i.seen))
	clear(i.seen)
	i.mu.Unlock()
	if len(docs) == 0 {
		return
	}
	if err := i.store.Touch(ctx, docs, i.now().UnixMicro()); err != nil && ctx.Err() == nil {
		i.log.DebugContext(ctx, "counts of recalled memories not stored", "memories", len(docs), "err", err)
	}
}

// run ingests the collected sessions until ctx ends.
func (i *ingestion) run(ctx context.Context) error {
	due := time.NewTimer(0)
	defer due.Stop()
	after, first := "", true // position and kind of the pass over all sessions
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-i.more:
			if wait.For(ctx, gatherFor) != nil { // the next start lists the remaining sessions
				return nil
			}
			i.take(ctx)
			i.count(ctx)
		case <-due.C:
			behind, last, err := i.store.Behind(ctx, after)
			switch {
			case ctx.Err() != nil:
				return nil
			case err != nil:
				i.log.WarnContext(ctx, "turns to ingest not listed, retrying", "err", err)
				due.Reset(min(i.sweep, sweepPause))
				continue
			}
			i.gather(i.sound(behind)...)
			switch after = last; {
			case after == "":
				first = false
				due.Reset(i.sweep)
			case first:
				due.Reset(0)
			default:
				due.Reset(sweepPause)
			}
		}
	}
}

// sound removes the sessions whose ingestion has failed less than failedFor ago.
func (i *ingestion) sound(behind []string) []string {
	now := i.now()
	return slices.DeleteFunc(behind, func(s string) bool {
		since, failed := i.failed[s]
		return failed && now.Sub(since) < failedFor
	})
}

// take ingests the collected sessions. If the store is unavailable, they remain
// collected.
func (i *ingestion) take(ctx context.Context) {
	i.mu.Lock()
	sessions := slices.Sorted(maps.Keys(i.gathered))
	clear(i.gathered)
	i.mu.Unlock()
	if len(sessions) == 0 {
		return
	}
	switch err := i.ingest(ctx, sessions...); {
	case err == nil || ctx.Err() != nil:
		return
	case api.CodeOf(err) == api.Unavailable:
		i.gather(sessions...)
		return
	}
	for _, s := range sessions { // one session that fails must not block the others
		switch err := i.ingest(ctx, s); {
		case ctx.Err() != nil:
			return
		case api.CodeOf(err) == api.Unavailable:
			i.gather(s)
		case err != nil:
			if len(i.failed) >= maxFailed {
				clear(i.failed)
			}
			i.failed[s] = i.now()
			i.log.ErrorContext(ctx, "ingestion of turns failed", "session", s, "err", err)
		}
	}
}

func (i *ingestion) ingest(ctx context.Context, sessions ...string) error {
	_, err := failpoint.Value(ctx, failpoint.LoopIngest, func(ctx context.Context) (int, error) {
		return i.store.Ingest(ctx, i.now().UnixMicro(), sessions...)
	})
	if err != nil {
		return err
	}
	for _, s := range sessions {
		delete(i.failed, s)
	}
	return nil
}
