package treasury

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/failpoint"

	"github.com/anima-run/anima/services/treasury/internal/ledger"
)

const (
	// feedLinger is how long a commit waits for others that are published with it. Where
	// services are made to die it does not wait, so that each run of a scene passes
	// the same points, if not as often.
	feedLinger = 250 * time.Millisecond
	// feedSafety is how often the feed looks without being kicked: for what another
	// replica has committed and did not publish.
	feedSafety = 5 * time.Second
	feedAgain  = time.Second // after an error
	feedPage   = 256         // transactions of a message
	feedBytes  = 256 << 10   // of a message's transactions: NATS takes 1 MiB, of what it is configured for
	feedSteps  = 10 * time.Second
)

// ledgerFeed is what a feed reads of the books, and where it keeps how far it is.
type ledgerFeed interface {
	// Transactions lists those after a sequence number, in order.
	Transactions(ctx context.Context, agent string, after int64, limit int) ([]ledger.Transaction, error)
	// Cursor returns the last transaction that was published, and the sequence of the
	// message that it is in, 0 before the first.
	Cursor(ctx context.Context) (seq int64, message uint64, err error)
	// Advance sets the cursor, unless that is beyond seq.
	Advance(ctx context.Context, seq int64, message uint64) error
}

// ledgerStream is the subject of [api.PostedBatch] in its stream.
type ledgerStream interface {
	// Append stores a message after the last of its subject, or answers Conflict.
	Append(ctx context.Context, id string, m api.PostedBatch, last uint64) (uint64, error)
	// Last returns the last message and its sequence, or NotFound, which is no fact.
	Last(ctx context.Context) (api.PostedBatch, uint64, error)
}

// feed publishes the ledger, every transaction once and in order, whatever the number
// of replicas. A transaction that is visible has all before it visible too, because
// a number is given under a lock that lasts until the commit; the feed
// holds to that all the same, and stops at a gap.
//
// The stream orders the replicas: a message is stored only on top of the one that the
// cursor names. A feed that finds another there, its own from before it died or another
// replica's, moves the cursor behind it.
type feed struct {
	books  ledgerFeed
	stream ledgerStream
	log    *slog.Logger
	kick   chan struct{}
}

func newFeed(books ledgerFeed, stream ledgerStream, log *slog.Logger) *feed {
	return &feed{books: books, stream: stream, log: log, kick: make(chan struct{}, 1)}
}

// Kick says that something was committed. It never blocks.
func (f *feed) Kick() {
	select {
	case f.kick <- struct{}{}:
	default: // a kick is pending already
	}
}

// Run publishes until ctx ends, and returns nil. What is committed later is published
// at the next start.
func (f *feed) Run(ctx context.Context) error {
	failing := false
	for {
		wait := feedSafety
		err := f.pass(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			if !failing {
				f.log.WarnContext(ctx, "the ledger is not published, trying again", "err", err)
			}
			failing, wait = true, feedAgain
		case failing:
			f.log.InfoContext(ctx, "the ledger is published again")
			failing = false
		}
		if !f.rest(ctx, wait) {
			return nil
		}
	}
}

// rest waits for the next pass; false means that ctx ended.
func (f *feed) rest(ctx context.Context, wait time.Duration) bool {
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	case <-f.kick:
	}
	if failpoint.Enabled {
		return true
	}
	t.Reset(feedLinger)
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// pass publishes what there is.
func (f *feed) pass(ctx context.Context) error {
	for {
		more, err := f.step(ctx)
		if err != nil || !more {
			return err
		}
	}
}

// step publishes one message, and says whether there may be another. Dying between any
// two lines leaves the cursor where it was, and the stream refuses the message again.
func (f *feed) step(ctx context.Context) (more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, feedSteps)
	defer cancel()
	after, message, err := f.books.Cursor(ctx)
	if err != nil {
		return false, err
	}
	ts, err := f.books.Transactions(ctx, "", after, feedPage)
	if err != nil || len(ts) == 0 {
		return false, err
	}
	batch, err := batchOf(ts, after)
	if err != nil {
		return false, err
	}
	last := batch.Entries[len(batch.Entries)-1]
	// The hash makes an id that no other ledger has.
	id := fmt.Sprintf("posted/%d-%d/%s", batch.First, batch.Last, last.Hash)
	for range 3 {
		stored, err := f.stream.Append(ctx, id, batch, message)
		if err == nil {
			return len(batch.Entries) < len(ts) || len(ts) == feedPage, f.books.Advance(ctx, batch.Last, stored)
		}
		if api.CodeOf(err) != api.Conflict {
			return false, err
		}
		there, at, err := f.stream.Last(ctx)
		switch {
		case api.CodeOf(err) == api.NotFound:
			message = 0 // if that is not so, the stream refuses
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
				return true, f.books.Advance(ctx, there.Last, at)
			}
		}
		message = at
	}
	return false, api.Errorf(api.Unavailable, "the stream of the ledger stands elsewhere each time it is asked")
}

// ours says whether a message is a part of these books: its last transaction is there
// with the same hash, which is one over all before it.
func (f *feed) ours(ctx context.Context, b api.PostedBatch) (bool, error) {
	ts, err := f.books.Transactions(ctx, "", b.Last-1, 1)
	if err != nil || len(ts) == 0 || len(b.Entries) == 0 {
		return false, err
	}
	last := b.Entries[len(b.Entries)-1]
	return ts[0].Seq == b.Last && last.Seq == b.Last && ts[0].Hash.String() == last.Hash, nil
}

// batchOf makes a message of the first of ts that it has room for; they follow after.
func batchOf(ts []ledger.Transaction, after int64) (api.PostedBatch, error) {
	b := api.PostedBatch{First: after + 1, Last: after}
	size := 0
	for i := range ts {
		p := posted(&ts[i])
		if p.Seq != b.Last+1 {
			if i > 0 {
				break // what is before the gap is published
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
