// Package cursor reads the events of a stream into a database. How far a reader is, its
// cursor, is a row of the same database and advances in the transaction that applies
// what was read, so an event is neither lost nor applied twice however the reader ends.
// The stream keeps no state for it: no durable, no acknowledgement, nothing that servers
// replicate.
//
// Every replica of a service reads every event. Applying an event again, or an old one
// late, must therefore change nothing; events that carry a number of what they change
// make that simple.
//
// It must not be used for work that one replica is to take from the others: that is
// what [bus.On] is for.
//
// A store that has a reader has the table in its migrations:
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
)

const (
	// Gather is how long an event waits for others to be applied with it, at most.
	Gather = 50 * time.Millisecond
	// Most is how many messages are applied in one transaction, at most.
	Most = 256

	// far is how many messages without an event the cursor may be behind: they are read
	// again after a start.
	far = 1024
	// patience bounds a transaction and a question to the stream.
	patience = 10 * time.Second
	// looks and between say for how long a stream that ends before the cursor is asked
	// again: the server that answers may be behind (docs/adr/0011).
	looks, between = 5, 300 * time.Millisecond
	// longest is the pause after failures in a row.
	longest = 5 * time.Second
)

// gathers says whether events wait for others. Where services are made to die they do
// not: each play of a scene passes the same points.
const gathers = !failpoint.Enabled

// Reader applies the events of kind M, past and coming, to a database. All fields but
// Urgent are required.
type Reader[M api.Message] struct {
	DB  *sqldb.DB
	Bus *bus.Bus
	Log *slog.Logger
	// Name is the cursor's, one for each reader of the database.
	Name string
	// Apply applies events, in the order of the stream. It may be called again with the
	// same ones: see [sqldb.InTx]. What it returns is called after the commit, unless it
	// is nil.
	Apply func(ctx context.Context, tx *sqldb.Tx, events []M) (committed func(context.Context), err error)
	// Urgent says that an event must not wait for others.
	Urgent func(M) bool
}

// place is a message of the stream: two streams, one of which was made anew or comes
// from an older copy, seldom have the same message at the same sequence.
type place struct {
	seq int64
	at  int64 // when the stream took it, in Unix µs
}

func placeOf(m bus.Stored) place { return place{int64(m.Sequence), m.At.UnixMicro()} }

// errElsewhere means that the stream is not the one that the cursor is of.
var errElsewhere = errors.New("the stream does not have what was read of it")

// Run reads until ctx ends, and returns nil. After a failure it goes on from the cursor.
// One that is no place of the stream, because that was lost or replaced by an older
// copy and the loss was accepted (docs/adr/0012), is given up: all that the stream has
// is read again.
func (r *Reader[M]) Run(ctx context.Context) error {
	for try := 0; ctx.Err() == nil; try++ {
		moved, err := r.read(ctx)
		if moved {
			try = 0
		}
		if ctx.Err() != nil {
			break
		}
		r.Log.WarnContext(ctx, "reading is interrupted, going on from the cursor", "cursor", r.Name, "err", err)
		if errors.Is(err, errElsewhere) {
			continue
		}
		wait := min(100*time.Millisecond<<min(try, 10), longest)
		pause(ctx, wait/2+rand.N(wait/2))
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// read reads on from the cursor until something fails. moved says that it has advanced.
func (r *Reader[M]) read(ctx context.Context) (moved bool, err error) {
	from, there, err := r.begin(ctx)
	if err != nil {
		return false, err
	}
	ctx, stop := context.WithCancel(ctx)
	messages, followed := make(chan bus.Stored, Most), make(chan error, 1)
	defer func() { // followed is waited for, also when this fails
		stop()
		for range messages { //nolint:revive // what is left is read again
		}
	}()
	go func() {
		defer close(messages)
		var zero M
		after := max(from.seq, 1) - 1 // the message of the cursor comes once more, to be compared
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
	late := time.NewTimer(Gather)
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
				late.Reset(Gather)
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

// begin returns where to read on, and whether the stream has to have that message.
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
		pause(ctx, between)
	}
}

// reset puts the cursor to the begin of the stream, unless another replica has moved
// it. It never returns nil.
func (r *Reader[M]) reset(ctx context.Context, from place) error {
	_, err := r.DB.ExecContext(ctx, `update cursors set seq = 0, at = 0 where name = $1 and seq = $2 and at = $3`, r.Name, from.seq, from.at)
	if err != nil {
		return err
	}
	return errElsewhere
}

// batch is what is applied in one transaction.
type batch[M api.Message] struct {
	*Reader[M]

	events []M
	read   int // messages
	last   place
	hurry  bool
}

// take adds what a message announces. One that cannot be decoded announces nothing:
// it would be no better the next time.
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
	return b.read >= Most || !gathers
}

// apply commits the batch with its place, and empties it.
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
			// Another replica may be further.
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
