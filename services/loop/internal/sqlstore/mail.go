package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"
)

// MailDay is the time over which the budgets of mail are counted; it rolls.
const MailDay = 24 * time.Hour

// MailBudget bounds what mail of peers may make an agent do within [MailDay].
type MailBudget struct {
	SenderRuns, AgentRuns int        // at least 1
	SenderCost, AgentCost api.Micros // of the runs' thoughts; 0: no bound
}

// MailRun is what a run that mail has started may do.
type MailRun struct {
	Cost  api.Micros // at which it ends; 0: no bound
	Until int64      // Unix microseconds until which it may not begin; 0: it may
	Why   string     // it may not
}

// mailRun is an earlier run as its budget counts it.
type mailRun struct {
	run, sender  string
	at           int64
	charged, cap api.Micros
}

// AdmitMail reserves what is left of the budgets for a run that mail of a sender has
// started, or holds the sender's mail until some of it is free. Each agent has one such
// run at a time; what a run was given once, it is given again. A run ends with the turn
// that reaches its bound, so that a day may cost one thought more. Errors: NotFound.
func (s *Store) AdmitMail(ctx context.Context, cmd api.Run, b MailBudget, now int64) (MailRun, error) {
	sender := strings.ToLower(cmd.By.Address)
	var out MailRun
	err := sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		out = MailRun{}
		var id string
		err := tx.QueryRowContext(ctx, `select id from agents where id = $1`+s.db.ForUpdate(), cmd.Agent).Scan(&id)
		if errors.Is(err, sqldb.ErrNotFound) {
			return api.Errorf(api.NotFound, "there is no agent %s", cmd.Agent)
		}
		if err != nil {
			return err
		}
		since := now - MailDay.Microseconds()
		if _, err := tx.ExecContext(ctx, `delete from mail_runs where agent = $1 and at < $2 and run <> $3`, cmd.Agent, since, cmd.Run); err != nil {
			return err
		}
		runs, err := sqldb.All(ctx, tx, func(r sqldb.Scanner) (mailRun, error) {
			var m mailRun
			var cost api.Micros
			var ending sqldb.Null[string]
			if err := r.Scan(&m.run, &m.sender, &m.at, &m.cap, &cost, &ending); err != nil {
				return m, err
			}
			if m.charged = cost; !ending.Valid {
				m.charged = max(cost, m.cap)
			}
			return m, nil
		}, `select m.run, m.sender, m.at, m.reserved, coalesce(r.cost, 0), r.ending from mail_runs m left join runs r on r.id = m.run
			where m.agent = $1 order by m.at, m.run`, cmd.Agent)
		if err != nil {
			return err
		}
		for _, m := range runs {
			if m.run == cmd.Run {
				out.Cost = m.cap
				return nil
			}
		}
		if out = b.admit(sender, runs); out.Until > 0 {
			_, err = tx.ExecContext(ctx, `insert into mail_held (agent, sender, until) values ($1, $2, $3)
				on conflict (agent, sender) do update set until = excluded.until`, cmd.Agent, sender, out.Until)
			return err
		}
		_, err = tx.ExecContext(ctx, `insert into mail_runs (run, agent, sender, at, reserved) values ($1, $2, $3, $4, $5)`,
			cmd.Run, cmd.Agent, sender, now, int64(out.Cost))
		return err
	})
	return out, err
}

// admit decides on one more run of a sender after those of the last day, oldest first.
func (b MailBudget) admit(sender string, runs []mailRun) MailRun {
	var out MailRun
	for _, scope := range []struct {
		what  string
		runs  int
		cost  api.Micros
		holds func(mailRun) bool
	}{
		{"mail of this sender", b.SenderRuns, b.SenderCost, func(m mailRun) bool { return m.sender == sender }},
		{"mail of all senders", b.AgentRuns, b.AgentCost, func(mailRun) bool { return true }},
	} {
		n, charged, oldest := 0, api.Micros(0), int64(0)
		for _, m := range runs {
			if !scope.holds(m) {
				continue
			}
			n++
			charged += m.charged
			if oldest == 0 {
				oldest = m.at
			}
		}
		switch {
		case n >= scope.runs:
			return MailRun{Until: oldest + MailDay.Microseconds(), Why: fmt.Sprintf("%s has started %d runs within a day, of %d", scope.what, n, scope.runs)}
		case scope.cost > 0 && charged >= scope.cost:
			return MailRun{Until: oldest + MailDay.Microseconds(), Why: fmt.Sprintf("%s has cost %s within a day, of %s", scope.what, charged, scope.cost)}
		case scope.cost > 0 && (out.Cost == 0 || scope.cost-charged < out.Cost):
			out.Cost = scope.cost - charged
		}
	}
	return out
}

// MailAdmitted says whether a run has what [Store.AdmitMail] reserves.
func (s *Store) MailAdmitted(ctx context.Context, run string) (bool, error) {
	var n int
	err := s.db.QueryRowContext(ctx, `select count(*) from mail_runs where run = $1`, run).Scan(&n)
	return n > 0, err
}

// LastMailRun is the latest run that mail of a sender has started, "" if there is none.
func (s *Store) LastMailRun(ctx context.Context, agent, sender string) (string, error) {
	var run string
	err := s.db.QueryRowContext(ctx, `select run from mail_runs where agent = $1 and sender = $2 order by at desc, run desc limit 1`,
		agent, strings.ToLower(sender)).Scan(&run)
	if errors.Is(err, sqldb.ErrNotFound) {
		return "", nil
	}
	return run, err
}

// HeldMail is a sender whose mail waits for a budget, or for its agent to be funded.
type HeldMail struct {
	Agent, Sender string
	Until         int64 // Unix microseconds
}

func heldRow(r sqldb.Scanner) (h HeldMail, err error) {
	return h, r.Scan(&h.Agent, &h.Sender, &h.Until)
}

// HoldMail has the mail of a sender wait until a time. Mail that waits already keeps its
// time.
func (s *Store) HoldMail(ctx context.Context, agent, sender string, until int64) error {
	_, err := s.db.ExecContext(ctx, `insert into mail_held (agent, sender, until) values ($1, $2, $3) on conflict (agent, sender) do nothing`,
		agent, strings.ToLower(sender), until)
	return err
}

// HeldMail lists the senders whose mail to an agent waits.
func (s *Store) HeldMail(ctx context.Context, agent string) ([]HeldMail, error) {
	return sqldb.All(ctx, s.db, heldRow, `select agent, sender, until from mail_held where agent = $1 order by until, sender`, agent)
}

// DueMail lists the senders whose mail has waited long enough, the first 1000. The mail
// of a dead agent, and one that was deleted is dead, goes on waiting.
func (s *Store) DueMail(ctx context.Context, now int64) ([]HeldMail, error) {
	return sqldb.All(ctx, s.db, heldRow, `select h.agent, h.sender, h.until from mail_held h join agents a on a.id = h.agent
		where h.until <= $1 and a.state <> $2 order by h.until, h.agent, h.sender limit 1000`, now, api.StateDead)
}

// FreeMail forgets that a sender's mail waits, unless it was held anew.
func (s *Store) FreeMail(ctx context.Context, h HeldMail) error {
	return sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		_, err := tx.ExecContext(ctx, `delete from mail_held where agent = $1 and sender = $2 and until = $3`, h.Agent, h.Sender, h.Until)
		return err
	})
}
