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
)

// ingester is what ingestion needs of the store. It is safe for concurrent use.
type ingester interface {
	Behind(ctx context.Context, after string) (behind []string, last string, err error)
	Ingest(ctx context.Context, at int64, sessions ...string) (int, error)
	Touch(ctx context.Context, docs []int64, at int64) error
}

// ingestion makes memories of the turns that loop itself persists, after them and
// beside them: no turn waits for it.
//
// The end of a run says which session has something new and not what. Ends are gathered,
// because one transaction for several runs costs less than one for each. What is taken
// in is a session's turns in their order, from the first that is not in memory yet, in
// the transaction that says so. So an end may come twice, late, out of order, to two
// replicas, or never.
//
// What was gathered is lost with the process. The store says which sessions have turns
// that are not in memory: run asks it at the start, and again and again, because another
// replica may have gathered them and ended.
type ingestion struct {
	store ingester
	now   func() time.Time
	log   *slog.Logger
	sweep time.Duration // between two passes over all sessions
	more  chan struct{} // holds one: something was gathered

	mu       sync.Mutex
	gathered map[string]bool // sessions
	seen     map[int64]bool  // memories that were shown, by their places in the index

	failed map[string]time.Time // sessions that cannot be taken in, and since when; of run alone
}

const (
	gatherFor  = 400 * time.Millisecond // a memory is at most half a second behind its run
	sweepEvery = 20 * time.Second
	sweepPause = time.Second      // between two pages of a pass, after the first pass
	failedFor  = 10 * time.Minute // a session that cannot be taken in is left to its next end
	maxFailed  = 10_000
)

func newIngestion(store ingester, now func() time.Time, log *slog.Logger) *ingestion {
	return &ingestion{
		store: store, now: now, log: log, sweep: sweepEvery, more: make(chan struct{}, 1),
		gathered: map[string]bool{}, seen: map[int64]bool{}, failed: map[string]time.Time{},
	}
}

// ended notes that a session has something new. It returns at once.
func (i *ingestion) ended(session string) { i.gather(session) }

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

// shown notes that memories were shown, to be counted with the next transaction. It
// returns at once. A count is lost with the process, and with an error of the store.
func (i *ingestion) shown(docs []int64) {
	i.mu.Lock()
	for _, d := range docs {
		i.seen[d] = true
	}
	i.mu.Unlock()
	i.wake()
}

// count counts what was shown.
func (i *ingestion) count(ctx context.Context) {
	i.mu.Lock()
	docs := slices.Sorted(maps.Keys(i.seen))
	clear(i.seen)
	i.mu.Unlock()
	if len(docs) == 0 {
		return
	}
	if err := i.store.Touch(ctx, docs, i.now().UnixMicro()); err != nil && ctx.Err() == nil {
		i.log.DebugContext(ctx, "memories that were shown are not counted", "memories", len(docs), "err", err)
	}
}

// run takes in what is gathered, until ctx ends.
func (i *ingestion) run(ctx context.Context) error {
	due := time.NewTimer(0)
	defer due.Stop()
	after, first := "", true // of the pass over all sessions
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-i.more:
			wait := time.NewTimer(gatherFor)
			select {
			case <-ctx.Done(): // the next start finds what is left
				wait.Stop()
				return nil
			case <-wait.C:
			}
			i.take(ctx)
			i.count(ctx)
		case <-due.C:
			behind, last, err := i.store.Behind(ctx, after)
			switch {
			case ctx.Err() != nil:
				return nil
			case err != nil:
				i.log.WarnContext(ctx, "the turns that are not in memory cannot be looked for, trying again", "err", err)
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

// sound leaves out the sessions that could not be taken in a moment ago.
func (i *ingestion) sound(behind []string) []string {
	now := i.now()
	return slices.DeleteFunc(behind, func(s string) bool {
		since, failed := i.failed[s]
		return failed && now.Sub(since) < failedFor
	})
}

// take takes in what is gathered. What cannot be reached now stays gathered.
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
	for _, s := range sessions { // one of them must not keep the others
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
			i.log.ErrorContext(ctx, "turns cannot become memories", "session", s, "err", err)
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
