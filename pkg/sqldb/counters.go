package sqldb

import (
	"context"
	"errors"
	"sync/atomic"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
)

// counters counts the statements, commits and round trips of a database.
type counters struct {
	statements, commits, flights atomic.Int64
	page                         metric.Registration // exports them
}

// Stats holds the counts of a database since it was opened.
type Stats struct {
	Statements int64 // without transaction control; a script counts as one
	Commits    int64 // of transactions that may write; a group counts as one
	Flights    int64 // round trips to Postgres, without those that prepare a statement
}

// Stats returns the current counts.
func (db *DB) Stats() Stats { return db.count.stats() }

func (c *counters) stats() Stats {
	return Stats{c.statements.Load(), c.commits.Load(), c.flights.Load()}
}

// newCounters returns counters that p exports; with a nil p they are not exported.
func newCounters(p metric.MeterProvider) (*counters, error) {
	c := &counters{}
	if p == nil {
		p = noop.NewMeterProvider()
	}
	m := p.Meter(scope)
	statements, err1 := m.Int64ObservableCounter("anima.sql.statements", metric.WithDescription("SQL statements, except transaction control"))
	commits, err2 := m.Int64ObservableCounter("anima.sql.commits", metric.WithDescription("Commits of SQL transactions that may write"))
	flights, err3 := m.Int64ObservableCounter("anima.sql.flights", metric.WithDescription("Round trips to PostgreSQL"))
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	var err error
	c.page, err = m.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		s := c.stats()
		o.ObserveInt64(statements, s.Statements)
		o.ObserveInt64(commits, s.Commits)
		o.ObserveInt64(flights, s.Flights)
		return nil
	}, statements, commits, flights)
	return c, err
}
