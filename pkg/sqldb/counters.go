package sqldb

import "sync/atomic"

// counters count what was asked of a database.
type counters struct {
	statements, commits, flights atomic.Int64
}

// Stats are what was asked of a database since it was opened.
type Stats struct {
	Statements int64 // begin, commit and the like apart
	Commits    int64 // of transactions that write; those of a group share one
	Flights    int64 // round trips to Postgres
}

// Stats returns the counts so far.
func (db *DB) Stats() Stats {
	return Stats{db.count.statements.Load(), db.count.commits.Load(), db.count.flights.Load()}
}
