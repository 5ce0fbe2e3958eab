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
	// safety is how often a relay looks without being kicked: for rows that
	// another replica committed and died over.
	safety = 5 * time.Second
	// again is how soon it tries again what could not be published.
	again = time.Second
	// page is how many rows are read together, and published before they are deleted
	// together.
	page = 256
	// linger is how long published rows of SQLite wait for others to be deleted with
	// them, and few how many may wait: each deletion is a durable write. Other
	// databases have other replicas, which would publish again what waits.
	linger = 100 * time.Millisecond
	few    = 64
	// quiet is the longest time between two lines about the same outage.
	quiet = 5 * time.Minute
	// sqlTimeout bounds each access to the database.
	sqlTimeout = 10 * time.Second
	// forget is how often ids that are older than Memory are deleted.
	forget = time.Hour
)

// lingers says whether published rows wait. Where services are made to die they do not:
// a process would pass the deletion at another time, and another number of times, in
// each play of the same scene.
const lingers = !failpoint.Enabled

// Memory is how long [Seen] remembers an id. Events are kept in their streams for
// seven days (see [api.Streams]).
const Memory = 30 * 24 * time.Hour

// Relay publishes what was committed, in the order it was added, and deletes it.
// Several replicas may relay the same rows; the stream keeps one of each.
type Relay struct {
	db   *sqldb.DB
	bus  *bus.Bus
	log  *slog.Logger
	kick chan struct{}

	// Only Run uses these.
	published []int64 // and not deleted yet
	outage    outage
}

// outage is a time in which messages cannot be published, or not be deleted
// afterwards. The zero value is none.
type outage struct {
	since, said time.Time
	failures    int
	pause       time.Duration // until the next line
}

// NewRelay returns a relay; it works while [Relay.Run] does.
func NewRelay(db *sqldb.DB, b *bus.Bus, log *slog.Logger) *Relay {
	return &Relay{db: db, bus: b, log: log, kick: make(chan struct{}, 1)}
}

// Kick says that something was committed. It never blocks and may be called from
// any goroutine.
func (r *Relay) Kick() {
	select {
	case r.kick <- struct{}{}:
	default: // a kick is pending already
	}
}

// Run relays until ctx ends, and returns nil. What cannot be published now, or
// not deleted, is tried again.
func (r *Relay) Run(ctx context.Context) error {
	old := time.NewTicker(forget)
	defer old.Stop()
	r.prune(ctx)
	for {
		wait := safety
		err := r.relay(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			r.waits(ctx, err)
			wait = again
		case len(r.published) > 0: // an outage is over when they are deleted, too
			wait = linger
		default:
			r.goesOn(ctx)
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			if err := r.remove(ctx); err != nil { // the stream knows them by their ids
				r.log.WarnContext(ctx, "published messages are not deleted, and will be published again", "err", err)
			}
			return nil
		case <-old.C:
			r.prune(ctx)
		case <-r.kick:
		case <-t.C:
			if err := r.remove(ctx); err != nil && ctx.Err() == nil {
				r.waits(ctx, err)
			}
		}
		t.Stop()
	}
}

// waits logs a failure: the first of an outage, and then with pauses that double.
func (r *Relay) waits(ctx context.Context, err error) {
	o, now := &r.outage, time.Now()
	if o.failures == 0 {
		o.since = now
	}
	o.failures++
	if now.Sub(o.said) < o.pause {
		return
	}
	o.said, o.pause = now, min(max(2*o.pause, 2*again), quiet)
	r.log.WarnContext(ctx, "outbox waits", "err", err, "failures", o.failures, "since", o.since.UTC().Format(time.RFC3339))
}

// goesOn logs the end of an outage.
func (r *Relay) goesOn(ctx context.Context) {
	if r.outage.failures > 0 {
		r.log.InfoContext(ctx, "outbox goes on", "failures", r.outage.failures, "after", time.Since(r.outage.since).Round(time.Millisecond).String())
		r.outage = outage{}
	}
}

type row struct {
	seq                         int64
	id, subject, payload, trace string
}

// relay publishes all there is. A subject whose message is refused keeps the rest
// of its messages, which must not overtake it, and holds up no other subject.
func (r *Relay) relay(ctx context.Context) error {
	var blocked []string
	var refused error
	for {
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
				break // nobody takes anything now
			}
			blocked, refused, err = append(blocked, v.subject), errors.Join(refused, err), nil
		}
		if !lingers || r.db.Engine != sqldb.SQLite || len(r.published) >= few {
			err = errors.Join(err, r.remove(ctx))
		}
		if err != nil {
			return errors.Join(refused, err)
		}
	}
}

// read returns the first rows that are not blocked. It starts at the first row
// each time: one with a lower number than those read before may be committed
// only now, and must not be overtaken by the next of its subject.
func (r *Relay) read(ctx context.Context, blocked []string) ([]row, error) {
	ctx, cancel := context.WithTimeout(ctx, sqlTimeout)
	defer cancel()
	query, args := `select seq, id, subject, payload, traceparent from outbox where true`, []any{page}
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

// remove deletes what the stream has. Dying before it publishes again.
func (r *Relay) remove(ctx context.Context) error {
	if len(r.published) == 0 {
		return nil
	}
	// Also at the end of ctx: what is published should not be published again.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sqlTimeout)
	defer cancel()
	err := failpoint.Do(ctx, failpoint.OutboxDelete, func(ctx context.Context) error {
		// Each by its number: a row in between may be committed only now.
		places, numbers := list(r.published, 0)
		_, err := r.db.ExecContext(ctx, "delete from outbox where seq in ("+places+")", numbers...)
		return err
	})
	if err == nil {
		r.published = r.published[:0]
	}
	return err
}

// list is a list of numbers for a statement that has some parameters already.
// Statements are cached by their text, so the last number fills the list up to one
// of a few lengths.
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

func (r *Relay) prune(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, sqlTimeout)
	defer cancel()
	now := "cast(unixepoch('subsec') * 1000000 as integer)"
	if r.db.Engine == sqldb.Postgres {
		now = "(extract(epoch from clock_timestamp()) * 1000000)::bigint"
	}
	if _, err := r.db.ExecContext(ctx, "delete from inbox where at < "+now+" - $1", Memory.Microseconds()); err != nil && ctx.Err() == nil {
		r.log.WarnContext(ctx, "inbox not pruned", "err", err)
	}
}
