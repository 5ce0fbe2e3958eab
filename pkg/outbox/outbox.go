// Package outbox publishes the messages that announce state changes. A message is
// stored as a row in the transaction of its state change, and a [Relay] publishes it
// afterwards until the stream acknowledges it. If the service crashes in between, the
// message is published after the restart. Messages are published at least once; the
// stream drops a repeated message by its id, within the duplicate window of
// [api.Streams].
//
// It must not be used for messages that need an answer, and must not depend on the
// content of messages.
package outbox

import (
	"context"
	"fmt"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"
)

// Add stores m in tx, the transaction of the state change that m announces. A [Relay]
// publishes it; the caller has to call [Relay.Wake] after the commit. The id identifies
// m when it is published repeatedly. Adding an id again before it is published changes
// nothing.
//
// The row contains the trace of ctx and the agent and the turn of its baggage, so that
// the publish span belongs to both, also after a crash.
//
// Messages of one subject are published in the order in which they were added if the
// transactions that add them exclude each other, for example because they change the
// same row before they call Add.
//
// Errors: Invalid, if the key of the subject is not valid; without a code, if the class
// of m is not stored in a stream, if id is empty or if m cannot be encoded.
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
