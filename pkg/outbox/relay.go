package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/failpoint"
	"github.com/anima-run/anima/pkg/sqldb"
)

const (
	// pollInterval is the interval in which a relay reads the outbox without a wake. It finds
	// rows of a replica that crashed after the commit.
	pollInterval = 5 * time.Second
	// retryPause is the pause before a failed publish or deletion is retried.
	retryPause = time.Second
	// batchRows is the number of rows that are read together. They are published before they
	// are deleted together.
	batchRows = 256
	// maxPublished is the maximum number of published rows that are not deleted. Each is a
	// parameter of the statements that read and delete; SQLite accepts 32,766 parameters,
	// Postgres 65,535. It is a power of four: see [list].
	maxPublished = 4096
	// linger is the time that published rows of SQLite wait so that several are deleted
	// together. Each deletion is a durable write. On other databases rows are deleted at
	// once, because other replicas would publish waiting rows again.
	linger = 100 * time.Millisecond
	// maxLogPause is the longest pause between two log lines about the same outage.
	maxLogPause = 5 * time.Minute
	// sqlTimeout is the deadline of each access to the database.
	sqlTimeout = 10 * time.Second
)

// Relay publishes the rows of an outbox in the order in which they were added, and then
// deletes them. Several replicas may publish the same row; the stream drops the
// repetitions by their id.
type Relay struct {
	db   *sqldb.DB
	bus  *bus.Bus
	log  *slog.Logger
	wake chan struct{}

	// The following fields are only used by Run.
	published []int64 // sequences of published rows that are not deleted yet
	outage    outage
}

// outage describes a period in which messages cannot be published, or published rows
// cannot be deleted. The zero value means that there is no outage.
type outage struct {
	since, logged time.Time
	failures      int
	pause         time.Duration // until the next log line
}

// NewRelay returns a relay of db. It starts nothing; [Relay.Run] publishes the
// messages.
func NewRelay(db *sqldb.DB, b *bus.Bus, log *slog.Logger) *Relay {
	return &Relay{db: db, bus: b, log: log, wake: make(chan struct{}, 1)}
}

// Wake makes Run read the outbox at once. The caller calls it after a commit. Wake does
// not block and may be called concurrently.
func (r *Relay) Wake() {
	select {
	case r.wake <- struct{}{}:
	default: // a wake is pending
	}
}

// Run publishes messages until ctx ends, and then returns nil. It retries failures of
// publishing and of deletion, and must be called once at a time.
func (r *Relay) Run(ctx context.Context) error {
	for {
		wait := pollInterval
		err := r.relay(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			r.failed(ctx, err)
			wait = retryPause
		case len(r.published) > 0: // an outage ends only after the deletion
			wait = linger
		default:
			r.recovered(ctx)
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			if err := r.remove(ctx); err != nil { // the stream drops them by their ids
				r.log.WarnContext(ctx, "published messages not deleted, they will be published again", "err", err)
			}
			return nil
		case <-r.wake:
		case <-t.C:
			if err := r.remove(ctx); err != nil && ctx.Err() == nil {
				r.failed(ctx, err)
			}
		}
		t.Stop()
	}
}

// failed logs a failure. The first failure of an outage is logged at once; the pauses
// between the following log lines double from 2 s up to maxLogPause.
func (r *Relay) failed(ctx context.Context, err error) {
	o, now := &r.outage, time.Now()
	if o.failures == 0 {
		o.since = now
	}
	o.failures++
	if now.Sub(o.logged) < o.pause {
		return
	}
	o.logged, o.pause = now, min(max(2*o.pause, 2*retryPause), maxLogPause)
	r.log.WarnContext(ctx, "outbox relay failed, retrying", "err", err, "failures", o.failures, "since", o.since.UTC().Format(time.RFC3339))
}

// recovered logs the end of an outage, if there is one.
func (r *Relay) recovered(ctx context.Context) {
	if r.outage.failures > 0 {
		r.log.InfoContext(ctx, "outbox relay resumed", "failures", r.outage.failures, "after", time.Since(r.outage.since).Round(time.Millisecond).String())
		r.outage = outage{}
	}
}

type row struct {
	seq                         int64
	id, subject, payload, trace string
}

// relay publishes all rows. If the stream refuses a message, the later messages of its
// subject stay in the outbox, because they must not overtake it. Other subjects are not
// affected. While maxPublished rows cannot be deleted, no further ones are published.
func (r *Relay) relay(ctx context.Context) error {
	var blocked []string
	var refused error
	for {
		if len(r.published) > maxPublished-batchRows {
			if err := r.remove(ctx); err != nil {
				return errors.Join(refused, err)
			}
		}
		rows, err := r.read(ctx, blocked)
		if err != nil || len(rows) == 0 {
			return errors.Join(refused, err)
		}
		for _, v := range rows {
			if slices.Contains(blocked, v.subject) {
				continue
			}
			traceparent, of := continued(ctx, v.trace)
			err = failpoint.Do(of, failpoint.OutboxPublish, func(ctx context.Context) error {
				return r.bus.PublishStored(ctx, v.id, v.subject, []byte(v.payload), traceparent)
			})
			if err == nil {
				r.published = append(r.published, v.seq)
				continue
			}
			err = fmt.Errorf("message %s: %w", v.id, err)
			if api.ReasonOf(err) != api.ReasonLimit && api.CodeOf(err) != api.Invalid {
				break // no message can be published now
			}
			blocked, refused, err = append(blocked, v.subject), errors.Join(refused, err), nil
		}
		if r.db.Engine != sqldb.SQLite || len(r.published) >= lingerRows {
			err = errors.Join(err, r.remove(ctx))
		}
		if err != nil {
			return errors.Join(refused, err)
		}
	}
}

// read returns the first rows that are not published and not of a blocked subject. It
// starts at the first row each time: a transaction with a lower sequence may commit
// after one with a higher sequence was read, and its message must not be overtaken by
// the next one of its subject.
func (r *Relay) read(ctx context.Context, blocked []string) ([]row, error) {
	ctx, cancel := context.WithTimeout(ctx, sqlTimeout)
	defer cancel()
	query, args := `select seq, id, subject, payload, traceparent from outbox where true`, []any{batchRows}
	for i, subject := range blocked {
		query += fmt.Sprintf(" and subject <> $%d", i+2)
		args = append(args, subject)
	}
	if len(r.published) > 0 {
		places, numbers := list(r.published, len(args))
		query += " and seq not in (" + places + ")"
		args = append(args, numbers...)
	}
	return sqldb.All(ctx, r.db, func(s sqldb.Scanner) (v row, err error) {
		err = s.Scan(&v.seq, &v.id, &v.subject, &v.payload, &v.trace)
		return v, err
	}, query+` order by seq limit $1`, args...)
}

// remove deletes the published rows. After a crash before the deletion, they are
// published again.
func (r *Relay) remove(ctx context.Context) error {
	if len(r.published) == 0 {
		return nil
	}
	// The context is detached from ctx because published rows are also deleted when ctx
	// ends.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sqlTimeout)
	defer cancel()
	err := failpoint.Do(ctx, failpoint.OutboxDelete, func(ctx context.Context) error {
		// Each row is deleted by its sequence: one between them may be committed only
		// now.
		places, numbers := list(r.published, 0)
		_, err := r.db.ExecContext(ctx, "delete from outbox where seq in ("+places+")", numbers...)
		return err
	})
	if err == nil {
		r.published = r.published[:0]
	}
	return err
}

// list returns placeholders and arguments for numbers, in a statement that has before
// parameters already. Statements are cached by their text, so the last number is
// repeated until their count is a power of four.
func list(numbers []int64, before int) (places string, args []any) {
	size := 1
	for size < len(numbers) {
		size *= 4
	}
	var b strings.Builder
	args = make([]any, size)
	for i := range args {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString("$" + strconv.Itoa(before+i+1))
		args[i] = numbers[min(i, len(numbers)-1)]
	}
	return b.String(), args
}
