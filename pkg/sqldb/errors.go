package sqldb

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"zombiezen.com/go/sqlite"

	"github.com/anima-run/anima/pkg/api"
)

// The kinds of an [Error], the same for both engines.
var (
	// ErrNotFound means that no row matched.
	ErrNotFound = errors.New("not found")
	// ErrConflict means that a unique, foreign key or check constraint refused the write.
	ErrConflict = errors.New("conflict")
	// ErrBusy means a conflict with another transaction. InTx retries it.
	ErrBusy = errors.New("database busy")
	// ErrUnavailable means that the database cannot be reached or has no space left. A
	// commit that failed with it may have succeeded on the server.
	ErrUnavailable = errors.New("database unavailable")
)

// Violation is the kind of a violated constraint.
type Violation string

// The violations that an error of kind ErrConflict may have.
const (
	Unique     Violation = "unique"
	ForeignKey Violation = "foreign key"
	Check      Violation = "check"
)

// Error is an error of an engine with a kind that is the same for both. errors.Is matches
// Kind, errors.As also the error of the engine.
type Error struct {
	Kind      error // ErrNotFound, ErrConflict, ErrBusy or ErrUnavailable
	Violation Violation
	// Constraint is the name that the engine reports. A named CHECK has the same name on
	// both. For a unique constraint SQLite reports the columns ("t.a, t.b") and Postgres
	// the constraint; SQLite does not report the name of a foreign key.
	Constraint string
	cause      error
	full       bool // the disk of the database is full
}

// Error returns the kind and, except for ErrNotFound, the cause.
func (e *Error) Error() string {
	if errors.Is(e.Kind, ErrNotFound) {
		return e.Kind.Error()
	}
	return fmt.Sprintf("%s: %s", e.Kind, e.cause)
}

// Unwrap returns the kind and the cause. For a temporary failure it adds an [api.Error]
// with code [api.Unavailable] for callers of the service; the cause is only logged.
func (e *Error) Unwrap() []error {
	all := []error{e.Kind, e.cause}
	switch {
	case e.full:
		all = append(all, noSpace)
	case errors.Is(e.Kind, ErrUnavailable) || errors.Is(e.Kind, ErrBusy):
		all = append(all, away)
	}
	return all
}

var noSpace = &api.Error{
	Code: api.Unavailable, Reason: api.ReasonNoSpace, Message: "the disk of the service's database is full",
	Next: "free space on it, no restart is needed; try again with the same id", RetryAfter: 10_000,
}

var away = &api.Error{
	Code: api.Unavailable, Message: "the service's database is unavailable",
	Next: "try again with the same id; check the database if the error persists", RetryAfter: 1000,
}

// Map converts an error of an engine to an *Error. Other errors, including nil, are
// returned unchanged, those of a context, too; but a connection that the server did not
// accept in time is ErrUnavailable. The text contains names of constraints, never values
// of a row. Errors that the methods of this package return are already mapped.
func Map(err error) error {
	if _, done := errors.AsType[*Error](err); err == nil || done {
		return err
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return mapPostgres(pg, err)
	}
	if lite, ok := errors.AsType[*liteError](err); ok {
		return mapSQLite(lite, err)
	}
	_, connecting := errors.AsType[*pgconn.ConnectError](err)
	_, network := errors.AsType[net.Error](err)
	cut := errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF)
	ended := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	switch {
	case ended && (!connecting || errors.Is(err, context.Canceled)):
		return err
	case connecting, network, cut, pgconn.SafeToRetry(err):
		return &Error{Kind: ErrUnavailable, cause: err}
	}
	return err
}

// errNoRow is the error of a query for one row without a row.
var errNoRow = &Error{Kind: ErrNotFound, cause: errors.New("no row")}

// mapIn maps an error of a call made under ctx. If ctx has ended, the error wraps
// ctx.Err(), regardless of what the engine reports.
func mapIn(ctx context.Context, err error) error {
	switch ended := ctx.Err(); {
	case err == nil || ended == nil:
		return Map(err)
	case errors.Is(err, ended):
		return err
	default:
		return fmt.Errorf("%w: %w", ended, err)
	}
}

// standby is the code of a write on a server that takes none: after a failover it is the
// previous primary.
const standby = "25006"

// mapPostgres maps an error of Postgres by its code
// (https://www.postgresql.org/docs/current/errcodes-appendix.html).
func mapPostgres(pg *pgconn.PgError, err error) error {
	conflict := func(v Violation) error {
		return &Error{Kind: ErrConflict, Violation: v, Constraint: pg.ConstraintName, cause: err}
	}
	switch pg.Code {
	case "23505", "23P01":
		return conflict(Unique)
	case "23503", "23001":
		return conflict(ForeignKey)
	case "23514":
		return conflict(Check)
	case "40001", "40P01", "55P03": // serialization, deadlock, lock not available
		return &Error{Kind: ErrBusy, cause: err}
	case "53100": // disk full
		return &Error{Kind: ErrUnavailable, cause: err, full: true}
	case "57P01", "57P02", "57P03", "57P05", "25P03", standby: // shut down, crashed, starting; idle for too long
		return &Error{Kind: ErrUnavailable, cause: err}
	}
	switch pg.Code[:min(2, len(pg.Code))] {
	case "08", "28", "53": // connection; the password is being changed; out of resources
		return &Error{Kind: ErrUnavailable, cause: err}
	}
	return err
}

// mapSQLite maps an error of SQLite by its result code
// (https://www.sqlite.org/rescode.html).
func mapSQLite(lite *liteError, err error) error {
	conflict := func(v Violation) error {
		return &Error{Kind: ErrConflict, Violation: v, Constraint: constraintIn(lite.Error()), cause: err}
	}
	switch lite.code {
	case sqlite.ResultConstraintUnique, sqlite.ResultConstraintPrimaryKey, sqlite.ResultConstraintRowID:
		return conflict(Unique)
	case sqlite.ResultConstraintForeignKey:
		return conflict(ForeignKey)
	case sqlite.ResultConstraintCheck:
		return conflict(Check)
	default: // by its primary code
	}
	switch lite.code.ToPrimary() {
	case sqlite.ResultBusy, sqlite.ResultLocked:
		return &Error{Kind: ErrBusy, cause: err}
	case sqlite.ResultFull:
		return &Error{Kind: ErrUnavailable, cause: err, full: true}
	case sqlite.ResultIOErr, // as when the disk is full, for a file that SQLite maps
		sqlite.ResultInterrupt: // the database is being closed
		return &Error{Kind: ErrUnavailable, cause: err}
	case sqlite.ResultReadOnly:
		return fmt.Errorf("%w (use InTx or ExecContext to write)", err)
	default:
		return err
	}
}

// constraintIn returns the name of the constraint in a message such as
// "sqlite: step: constraint failed: CHECK constraint failed: positive".
func constraintIn(msg string) string {
	const mark = "constraint failed: "
	i := strings.LastIndex(msg, mark)
	if i < 0 {
		return ""
	}
	name := msg[i+len(mark):]
	if strings.HasSuffix(name, "constraint failed") { // FOREIGN KEY has no name
		return ""
	}
	return name
}
