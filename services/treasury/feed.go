package treasury

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/wait"

	"github.com/anima-run/anima/services/treasury/internal/ledger"
)

const (
	// feedSafety is the interval between passes without a kick. Such a pass publishes
	// transactions that another replica has committed and not published.
	feedSafety = 5 * time.Second
	feedAgain  = time.Second // interval after an error
	feedPage   = 256         // most transactions in a message
	feedBytes  = 256 << 10   // bytes of a message's transactions: the limit of NATS is 1 MiB, as configured
	feedSteps  = 10 * time.Second
)

// ledgerFeed is the access of a feed to the ledger and to its own cursor.
type ledgerFeed interface {
	// Transactions lists the transactions after a sequence number, in order.
	Transactions(ctx context.Context, agent string, after int64, limit int) ([]ledger.Transaction, error)
	// Cursor returns the last published transaction and the stream sequence of its
	// message, 0 and 0 before the first.
	Cursor(ctx context.Context) (seq int64, message uint64, err error)
	// Advance sets the cursor, unless the cursor is beyond seq.
	Advance(ctx context.Context, seq int64, message uint64) error
}

// ledgerStream is the subject of [api.PostedBatch] in its stream.
type ledgerStream interface {
	// Append stores a message if last is the sequence of the last message of the subject;
	// otherwise the error is Conflict.
	Append(ctx context.Context, id string, m api.PostedBatch, last uint64) (uint64, error)
	// Last returns the last message and its sequence. NotFound may be stale, so it does
	// not prove that the subject is empty (ADR 11).
	Last(ctx context.Context) (api.PostedBatch, uint64, error)
}

// feed publishes each transaction of the ledger once and in order, with any number of
// replicas. Sequence numbers are assigned under a lock that is held until the commit, so
// when a transaction is visible, all earlier ones are visible too. The feed checks this
// and stops at a gap.
//
// The stream orders the replicas: a message is appended only if the message of the cursor
// is the last one. If another message is last, from another replica or from before a
// crash, and it belongs to this ledger, the feed advances the cursor to it.
type feed struct {
	store  ledgerFeed
	stream ledgerStream
	log    *slog.Logger
	kick   chan struct{}
}

func newFeed(store ledgerFeed, stream ledgerStream, log *slog.Logger) *feed {
	return &feed{store: store, stream: stream, log: log, kick: make(chan struct{}, 1)}
}

// Kick signals that a transaction was committed. It never blocks.
func (f *feed) Kick() {
	select {
	case f.kick <- struct{}{}:
	default: // a kick is pending
	}
}

// Run publishes until ctx ends, then returns nil. Transactions that are not published by
// then are published after the next start.
func (f *feed) Run(ctx context.Context) error {
	failing := false
	for ctx.Err() == nil {
		pause := feedSafety
		err := f.pass(ctx)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			if !failing {
				f.log.WarnContext(ctx, "ledger transactions not published, retrying", "err", err)
			}
			failing, pause = true, feedAgain
		case failing:
			f.log.InfoContext(ctx, "publishing of ledger transactions resumed")
			failing = false
		}
		f.rest(ctx, pause)
	}
	return nil
}

// rest waits for the next pass.
func (f *feed) rest(ctx context.Context, pause time.Duration) {
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	case <-f.kick:
		_ = wait.For(ctx, feedLinger) // Run checks ctx
	}
}

// pass publishes all transactions after the cursor.
func (f *feed) pass(ctx context.Context) error {
	for {
		more, err := f.step(ctx)
		if err != nil || !more {
			return err
		}
	}
}

// step publishes one message and reports whether there may be more to publish. A crash at
// any point leaves the cursor unchanged; the stream then refuses the repeated message.
func (f *feed) step(ctx context.Context) (more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, feedSteps)
	defer cancel()
	after, message, err := f.store.Cursor(ctx)
	if err != nil {
		return false, err
	}
	ts, err := f.store.Transactions(ctx, "", after, feedPage)
	if err != nil || len(ts) == 0 {
		return false, err
	}
	batch, err := batchOf(ts, after)
	if err != nil {
		return false, err
	}
	last := batch.Entries[len(batch.Entries)-1]
	// The hash makes the message id unique over all ledgers.
	id := fmt.Sprintf("posted/%d-%d/%s", batch.First, batch.Last, last.Hash)
	for range 3 {
		stored, err := f.stream.Append(ctx, id, batch, message)
		if err == nil {
			return len(batch.Entries) < len(ts) || len(ts) == feedPage, f.store.Advance(ctx, batch.Last, stored)
		}
		if api.CodeOf(err) != api.Conflict {
			return false, err
		}
		there, at, err := f.stream.Last(ctx)
		switch {
		case api.CodeOf(err) == api.NotFound:
			message = 0 // may be stale: the append then fails with a Conflict
			continue
		case err != nil:
			return false, err
		}
		if there.Last > after {
			ours, err := f.ours(ctx, there)
			if err != nil {
				return false, err
			}
			if ours {
				return true, f.store.Advance(ctx, there.Last, at)
			}
		}
		message = at
	}
	return false, api.Errorf(api.Unavailable, "append to the ledger stream failed 3 times: another message was last each time")
}

// ours reports whether a message belongs to this ledger: its last transaction is in the
// ledger with the same hash, which covers all earlier transactions.
func (f *feed) ours(ctx context.Context, b api.PostedBatch) (bool, error) {
	ts, err := f.store.Transactions(ctx, "", b.Last-1, 1)
	if err != nil || len(ts) == 0 || len(b.Entries) == 0 {
		return false, err
	}
	last := b.Entries[len(b.Entries)-1]
	return ts[0].Seq == b.Last && last.Seq == b.Last && ts[0].Hash.String() == last.Hash, nil
}

// batchOf returns a message of the first transactions of ts, up to feedBytes. after is
// the sequence number before the first of them.
func batchOf(ts []ledger.Transaction, after int64) (api.PostedBatch, error) {
	b := api.PostedBatch{First: after + 1, Last: after}
	size := 0
	for i := range ts {
		p := posted(&ts[i])
		if p.Seq != b.Last+1 {
			if i > 0 {
				break // publish the transactions before the gap
			}
			return b, fmt.Errorf("transaction %d is missing before %d", b.Last+1, p.Seq)
		}
		text, err := api.Encode(p)
		if err != nil {
			return b, err
		}
		if size += len(text); size > feedBytes && i > 0 {
			break
		}
		b.Entries, b.Last = append(b.Entries, p), p.Seq
	}
	return b, nil
}
