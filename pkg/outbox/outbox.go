// Package outbox commits state and its announcement together: the message is a
// row of the transaction that it announces, and is published afterwards until
// the stream has it. A service that dies in between publishes it when it is back;
// the stream drops what it has already, by the message's id.
//
// It must not be used for messages that need an answer, nor know what a message
// means.
package outbox

import (
	"context"
	"fmt"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"
)

// Add puts m into the transaction that it announces. Publishing it is the work of
// a [Relay], which the caller kicks after the commit. The id makes m one message
// however often it is published; adding the same id twice before it is published
// is adding it once.
//
// The row keeps the trace of ctx, and the agent and the turn that its baggage
// names, so that whoever publishes it, also after a crash, continues both.
//
// Messages of one subject are published in the order in which they were added,
// if the transactions that add them exclude each other, as those that change the
// same row before they add do.
func Add(ctx context.Context, tx *sqldb.Tx, id string, m api.Message) error {
	s := m.Subject()
	if s.Stream() == "" {
		return fmt.Errorf("outbox: class %s of %s is not kept in a stream", s.Class, s.Template())
	}
	if s.Keyed && !api.ValidKey(s.Key) {
		return api.Errorf(api.Invalid, "%q cannot be the key of %s", s.Key, s.Template())
	}
	if id == "" {
		return fmt.Errorf("outbox: %s without an id", s.Template())
	}
	payload, err := api.Encode(m)
	if err != nil {
		return err
	}
	tx.Queue(ctx, `insert into outbox (id, subject, payload, traceparent) values ($1, $2, $3, $4) on conflict (id) do nothing`,
		id, s.String(), string(payload), traceOf(ctx))
	return nil
}

// Seen records a message id in the transaction that handles the message, and
// says whether it was there already: then the handling is to be left out. It
// remembers for [Memory], longer than any stream delivers an event. Ids are
// shared by all readers of a store: one with several readers of the same message
// puts the reader's name before the id.
func Seen(ctx context.Context, tx *sqldb.Tx, id string) (bool, error) {
	res, err := tx.ExecContext(ctx, `insert into inbox (id) values ($1) on conflict (id) do nothing`, id)
	if err != nil {
		return false, fmt.Errorf("inbox: %w", err)
	}
	n, err := res.RowsAffected()
	if err != nil {
		return false, fmt.Errorf("inbox: %w", err)
	}
	return n == 0, nil
}
