package sqlstore

import (
	"context"
	"strconv"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"
)

// Terminate ends a session, which then accepts no messages. A repeated call keeps the
// first reason. If the session is the agent's main session or its session for mail, the
// same transaction creates a new one. Errors: NotFound.
func (s *Store) Terminate(ctx context.Context, session, reason string, at int64) (api.Session, error) {
	return sqldb.Do(ctx, s.db, func(tx *sqldb.Tx) (out api.Session, err error) {
		if err := s.lockSession(ctx, tx, session); err != nil {
			return out, err
		}
		if out, err = sessionRow(tx.QueryRowContext(ctx, sessionColumns+` where id = $1`, session)); err != nil || out.Terminated != 0 {
			return out, err
		}
		if err := s.replace(ctx, tx, out, at); err != nil {
			return out, err
		}
		out.Terminated, out.Reason = at, reason
		tx.Queue(ctx, `update sessions set terminated_at = $2, terminated_reason = $3 where id = $1`, session, at, text(reason))
		return out, nil
	})
}

// replace creates a successor of a main session or a session for mail that ends. It does
// nothing for other sessions.
func (s *Store) replace(ctx context.Context, tx *sqldb.Tx, ends api.Session, at int64) error {
	a, err := s.agentRow(tx.QueryRowContext(ctx, agentColumns+` and id = $1`+s.db.ForUpdate(), ends.Agent))
	if err != nil {
		return err
	}
	column, first := "main_session", MainSession(a.ID)
	switch ends.ID {
	case a.Session:
	case a.Mail:
		column, first = "mail_session", MailSession(a.ID)
	default:
		return nil
	}
	for n := 2; ; n++ {
		next := first + "-" + strconv.Itoa(n)
		res, err := tx.ExecContext(ctx, `insert into sessions (id, agent, created_at, updated_at) values ($1, $2, $3, $3) on conflict (id) do nothing`, next, a.ID, at)
		if err != nil {
			return err
		}
		if made, _ := res.RowsAffected(); made > 0 {
			tx.Queue(ctx, `update agents set `+column+` = $2 where id = $1`, a.ID, next)
			return nil
		}
	}
}

// Reset excludes a session's turns so far from the prompts of later turns. They remain in
// the transcript. Errors: NotFound.
func (s *Store) Reset(ctx context.Context, session string) (api.Session, error) {
	return sqldb.Do(ctx, s.db, func(tx *sqldb.Tx) (api.Session, error) {
		if err := s.lockSession(ctx, tx, session); err != nil {
			return api.Session{}, err
		}
		tx.Queue(ctx, `update sessions set reset_through = turns where id = $1`, session)
		return sessionRow(tx.QueryRowContext(ctx, sessionColumns+` where id = $1`, session))
	})
}

// lockAgent locks an agent's row until the transaction ends. Errors: NotFound.
func (s *Store) lockAgent(ctx context.Context, tx *sqldb.Tx, agent string) error {
	_, err := s.lockState(ctx, tx, agent)
	return missing(err, noAgent(agent))
}

// lockSession locks a session's row until the transaction ends. Errors: NotFound.
func (s *Store) lockSession(ctx context.Context, tx *sqldb.Tx, session string) error {
	_, err := sqldb.One[string](ctx, tx, `select id from sessions where id = $1`+s.db.ForUpdate(), session)
	return missing(err, &api.Error{Code: api.NotFound, Message: "there is no session " + session, Next: "anima session list shows the ones there are"})
}
