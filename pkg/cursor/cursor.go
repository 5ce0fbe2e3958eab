// Package cursor applies the events of a stream to a database. The position of a
// reader, its cursor, is a row of the same database and advances in the transaction
// that applies the events. If a reader crashes, it continues from the cursor, so it
// neither loses an event nor commits one twice. The stream has no state of the reader:
// there is no durable, there are no acknowledgements, and the servers replicate nothing
// for it.
//
// Every replica of a service reads all events and shares the cursor. Applying an event
// again, or an older one later, must therefore change nothing; events with a number
// that increases with each change make this simple.
//
// It must not be used for work that only one replica should do; [bus.On] is for that.
//
// The migrations of a store with a reader must create this table:
//
//	create table cursors (
//	    name text   not null primary key,
//	    seq  bigint not null,
//	    at   bigint not null
//	);
package cursor

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/failpoint"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/wait"
)

const (
	// gather is the longest time that an event waits for others, to be applied with them
	// in one transaction.
	gather = 50 * time.Millisecond

	// buffer is the number of messages that are received while a batch is applied.
	buffer = 256
	// far is the number of messages without an event after which the cursor advances
	// over them. Up to that many are read again after a restart.
	far = 1024
	// patience is the deadline of a transaction, and of the requests to the stream.
	patience = 10 * time.Second
	// looks and between are the number of requests for the end of the stream and the
	// pause between them, if the stream seems to end before the cursor: the server that
	// answers may be behind (docs/adr/0011).
	looks, between = 5, 300 * time.Millisecond
	// longest is the longest pause after consecutive failures.
	longest = 5 * time.Second
)

// Reader applies the events of type M, past and future, to a database. All fields
// except Urgent are required.
type Reader[M api.Message] struct {
	DB  *sqldb.DB
	Bus *bus.Bus
	Log *slog.Logger
	// Name is the name of the cursor. It is unique among the readers of the database.
	Name string
	// Apply applies events, in the order of the stream, in tx. It may be called again
	// with the same events: see [sqldb.InTx]. If it returns a function, Run calls it
	// after the commit.
	Apply func(ctx context.Context, tx *sqldb.Tx, events []M) (committed func(context.Context), err error)
	// Urgent reports whether an event must be applied without waiting for others.
	Urgent func(M) bool
}

// place identifies a message of the stream. Two streams, one of which was created again
// or is an older copy, are unlikely to have the same place.
type place struct {
	seq int64
	at  int64 // time at which the stream stored it, Unix time in microseconds
}

func placeOf(m bus.Stored) place { return place{int64(m.Sequence), m.At.UnixMicro()} }

// errElsewhere is the error of a cursor that is not of this stream. The cursor has been
// reset.
var errElsewhere = errors.New("the stream does not have the message of the cursor")

// Run applies events until ctx ends, and then returns nil. After a failure it continues
// from the cursor, after a random pause that grows up to 5 s. If the stream does not
// have the message of the cursor, because the stream was lost or replaced by an older
// copy and the operator has accepted the loss (docs/adr/0012), Run resets the cursor
// and reads the complete stream again.
func (r *Reader[M]) Run(ctx context.Context) error {
	for try := 0; ctx.Err() == nil; try++ {
		moved, err := r.read(ctx)
		if moved {
			try = 0
		}
		if ctx.Err() != nil {
			break
		}
		r.Log.WarnContext(ctx, "reading failed, resuming from the cursor", "cursor", r.Name, "err", err)
		if errors.Is(err, errElsewhere) {
			continue
		}
		delay := min(100*time.Millisecond<<min(try, 10), longest)
		_ = wait.For(ctx, delay/2+rand.N(delay/2)) // the loop ends with ctx
	}
	return nil
}

// read applies events from the cursor on until an error. moved reports whether a batch
// was applied.
func (r *Reader[M]) read(ctx context.Context) (moved bool, err error) {
	from, there, err := r.begin(ctx)
	if err != nil {
		return false, err
	}
	ctx, stop := context.WithCancel(ctx)
	messages, followed := make(chan bus.Stored, buffer), make(chan error, 1)
	defer func() { // wait until Follow has returned
		stop()
		for range messages { //nolint:revive // the remaining messages are read again
		}
	}()
	go func() {
		defer close(messages)
		var zero M
		after := max(from.seq, 1) - 1 // the message of the cursor is read again, to compare it
		followed <- r.Bus.Follow(ctx, uint64(after), func(m bus.Stored) error {
			select {
			case messages <- m:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}, bus.EventSources(zero.Subject())...)
	}()
	b := batch[M]{Reader: r}
	late := time.NewTimer(gather)
	late.Stop()
	defer late.Stop()
	for {
		due := false
		select {
		case m, more := <-messages:
			if !more {
				return moved, <-followed
			}
			switch at := placeOf(m); {
			case there && at != from:
				return moved, r.reset(ctx, from)
			case at.seq <= from.seq:
				there = false
				continue
			}
			first := len(b.events) == 0
			b.take(ctx, m)
			if first && len(b.events) > 0 {
				late.Reset(gather)
			}
			due = b.full() || b.hurry && len(messages) == 0
		case <-late.C:
			due = true
		}
		if !due {
			continue
		}
		late.Stop()
		if err := b.apply(ctx); err != nil {
			return moved, err
		}
		moved = true
	}
}

// begin returns the cursor, and whether the stream must still have its message. If the
// stream ends before the cursor, it resets the cursor and returns errElsewhere.
func (r *Reader[M]) begin(ctx context.Context) (from place, there bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err = r.DB.QueryRowContext(ctx, `select seq, at from cursors where name = $1`, r.Name).Scan(&from.seq, &from.at)
	if errors.Is(err, sqldb.ErrNotFound) || err == nil && from.seq == 0 {
		return place{}, false, nil
	}
	if err != nil {
		return place{}, false, err
	}
	var zero M
	for look := 1; ; look++ {
		all, err := r.Bus.StreamHeights(ctx, []string{zero.Subject().Stream()})
		switch {
		case err != nil:
			return place{}, false, err
		case all[0].Last >= uint64(from.seq):
			return from, all[0].First <= uint64(from.seq), nil
		case look == looks:
			return place{}, false, r.reset(ctx, from)
		}
		_ = wait.For(ctx, between) // the next request returns the error of ctx
	}
}

// reset sets the cursor to the beginning of the stream, unless another replica has
// moved it. It always returns an error: errElsewhere, or that of the database.
func (r *Reader[M]) reset(ctx context.Context, from place) error {
	_, err := r.DB.ExecContext(ctx, `update cursors set seq = 0, at = 0 where name = $1 and seq = $2 and at = $3`, r.Name, from.seq, from.at)
	if err != nil {
		return err
	}
	return errElsewhere
}

// batch holds the events of one transaction.
type batch[M api.Message] struct {
	*Reader[M]

	events []M
	read   int // number of messages
	last   place
	hurry  bool
}

// take adds the events that a message announces. A message that cannot be decoded is
// logged and skipped, because a retry would fail as well.
func (b *batch[M]) take(ctx context.Context, m bus.Stored) {
	b.read++
	b.last = placeOf(m)
	events, err := bus.Announced[M](m)
	if err != nil {
		b.Log.ErrorContext(ctx, "message given up", "subject", m.Subject, "sequence", m.Sequence, "err", err)
		return
	}
	for _, e := range events {
		b.events = append(b.events, e)
		b.hurry = b.hurry || b.Urgent != nil && b.Urgent(e)
	}
}

func (b *batch[M]) full() bool {
	if len(b.events) == 0 {
		return b.read >= far
	}
	return b.read >= maxBatch
}

// apply commits the events of the batch with the place of its last message, and empties
// it.
func (b *batch[M]) apply(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var committed func(context.Context)
	commit := func(ctx context.Context) error {
		return sqldb.InTx(ctx, b.DB, func(tx *sqldb.Tx) (err error) {
			committed = nil
			if len(b.events) > 0 {
				if committed, err = b.Apply(ctx, tx, b.events); err != nil {
					return err
				}
			}
			// Another replica may have advanced the cursor further.
			tx.Queue(ctx, `insert into cursors (name, seq, at) values ($1, $2, $3)
				on conflict (name) do update set seq = excluded.seq, at = excluded.at where cursors.seq < excluded.seq`,
				b.Name, b.last.seq, b.last.at)
			return nil
		})
	}
	var err error
	if len(b.events) > 0 {
		err = failpoint.Do(ctx, failpoint.CursorApply, commit)
	} else {
		err = commit(ctx)
	}
	if err != nil {
		return err
	}
	b.events, b.read, b.hurry = b.events[:0], 0, false
	if committed != nil {
		committed(ctx)
	}
	return nil
}
