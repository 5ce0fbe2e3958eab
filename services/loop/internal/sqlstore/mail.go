package sqlstore

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"
)

// MailDay is the length of the rolling window over which the budgets of mail are counted.
const MailDay = 24 * time.Hour

// MailBudget bounds the runs and costs that mail of peers may cause for an agent within
// [MailDay].
type MailBudget struct {
	SenderRuns, AgentRuns int        // at least 1
	SenderCost, AgentCost api.Micros // of the runs' completions; 0: no bound
}

// MailRun is the decision about a run that was started by mail.
type MailRun struct {
	Cost  api.Micros // at which the run ends; 0: no bound
	Until int64      // time until which it must not begin, Unix microseconds; 0: it may begin now
	Why   string     // reason why it must not begin
	All   bool       // no run for mail of any sender may begin until then
}

// mailRun is an earlier run as the budgets count it.
type mailRun struct {
	run, sender  string
	at           int64
	charged, cap api.Micros
}

// AdmitMail reserves the rest of the budgets for a run that mail of a sender has started.
// If a budget is exhausted, it holds the sender's mail until a run leaves the window. It
// is idempotent by run: a repeated call returns the same reservation. An agent executes
// one such run at a time. A run ends with the turn in which its cost reaches the
// reservation, so a day may exceed its budget by the cost of one completion. Errors:
// NotFound.
func (s *Store) AdmitMail(ctx context.Context, cmd api.Run, b MailBudget, now int64) (MailRun, error) {
	sender := strings.ToLower(cmd.By.Address)
	return sqldb.Do(ctx, s.db, func(tx *sqldb.Tx) (out MailRun, err error) {
		if err := s.lockAgent(ctx, tx, cmd.Agent); err != nil {
			return out, err
		}
		tx.Queue(ctx, `delete from mail_runs where agent = $1 and at < $2 and run <> $3`, cmd.Agent, now-MailDay.Microseconds(), cmd.Run)
		runs, err := mailRuns(ctx, tx, cmd.Agent, 0)
		if err != nil {
			return out, err
		}
		for _, m := range runs {
			if m.run == cmd.Run {
				return MailRun{Cost: m.cap}, nil
			}
		}
		if out = b.admit(sender, runs); out.Until > 0 {
			tx.Queue(ctx, `insert into mail_held (agent, sender, until) values ($1, $2, $3)
				on conflict (agent, sender) do update set until = excluded.until`, cmd.Agent, sender, out.Until)
			return out, nil
		}
		tx.Queue(ctx, `insert into mail_runs (run, agent, sender, at, reserved) values ($1, $2, $3, $4, $5)`,
			cmd.Run, cmd.Agent, sender, now, int64(out.Cost))
		return out, nil
	})
}

// mailRuns returns the runs that mail has started for an agent since a time, the oldest
// first. A run in progress is charged what it may cost.
func mailRuns(ctx context.Context, q sqldb.Querier, agent string, since int64) ([]mailRun, error) {
	return sqldb.All(ctx, q, func(r sqldb.Scanner) (m mailRun, err error) {
		var ended bool
		if err = r.Scan(&m.run, &m.sender, &m.at, &m.cap, &m.charged, &ended); !ended {
			m.charged = max(m.charged, m.cap)
		}
		return m, err
	}, `select m.run, m.sender, m.at, m.reserved, coalesce(r.cost, 0), r.ending is not null from mail_runs m left join runs r on r.id = m.run
		where m.agent = $1 and m.at >= $2 order by m.at, m.run`, agent, since)
}

// admit decides on one more run of a sender. runs are the runs of the last [MailDay],
// oldest first.
func (b MailBudget) admit(sender string, runs []mailRun) MailRun {
	var out MailRun
	for _, scope := range []struct {
		what string
		runs int
		cost api.Micros
		all  bool
	}{
		{"mail of this sender", b.SenderRuns, b.SenderCost, false},
		{"mail of all senders", b.AgentRuns, b.AgentCost, true},
	} {
		n, charged, oldest := 0, api.Micros(0), int64(0)
		for _, m := range runs {
			if !scope.all && m.sender != sender {
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
			return MailRun{Until: oldest + MailDay.Microseconds(), Why: fmt.Sprintf("%s has started %d runs within a day, of %d", scope.what, n, scope.runs), All: scope.all}
		case scope.cost > 0 && charged >= scope.cost:
			return MailRun{Until: oldest + MailDay.Microseconds(), Why: fmt.Sprintf("%s has cost %s within a day, of %s", scope.what, charged, scope.cost), All: scope.all}
		case scope.cost > 0 && (out.Cost == 0 || scope.cost-charged < out.Cost):
			out.Cost = scope.cost - charged
		}
	}
	return out
}

// MailAdmitted reports whether a run has a reservation of [Store.AdmitMail].
func (s *Store) MailAdmitted(ctx context.Context, run string) (bool, error) {
	return sqldb.One[bool](ctx, s.db, `select count(*) > 0 from mail_runs where run = $1`, run)
}

// LastMailRun returns the id of the latest run that mail of a sender has started, or ""
// if there is none.
func (s *Store) LastMailRun(ctx context.Context, agent, sender string) (string, error) {
	run, err := sqldb.One[string](ctx, s.db, `select run from mail_runs where agent = $1 and sender = $2 order by at desc, run desc limit 1`,
		agent, strings.ToLower(sender))
	return run, missing(err, nil)
}

// HeldMail is a sender whose mail is held until a budget permits it or its agent is
// funded.
type HeldMail struct {
	Agent, Sender string
	Until         int64 // Unix microseconds
}

func heldRow(r sqldb.Scanner) (h HeldMail, err error) {
	err = r.Scan(&h.Agent, &h.Sender, &h.Until)
	return h, err
}

// HoldMail holds the mail of a sender until a time, in Unix microseconds. If the sender's
// mail is held until a later time already, that does not change.
func (s *Store) HoldMail(ctx context.Context, agent, sender string, until int64) error {
	_, err := s.db.ExecContext(ctx, `insert into mail_held (agent, sender, until) values ($1, $2, $3) on conflict (agent, sender)
		do update set until = excluded.until where excluded.until > mail_held.until`, agent, strings.ToLower(sender), until)
	return err
}

// heldFor is how much longer the mail of a sender must be held for a message to start no
// run, in Unix microseconds: a replica whose clock is ahead may already have started the
// run at the end of the hold.
const heldFor = int64(time.Minute / time.Microsecond)

// IsMailHeld reports whether a message of a sender starts no run, because the run at the
// end of a hold reads it: the mail of the sender is held, and is over a budget still. The
// budgets may have been raised since it is held.
func (s *Store) IsMailHeld(ctx context.Context, agent, sender string, b MailBudget, now int64) (bool, error) {
	sender = strings.ToLower(sender)
	held, err := sqldb.One[bool](ctx, s.db, `select count(*) > 0 from mail_held where agent = $1 and sender = $2 and until > $3`,
		agent, sender, now+heldFor)
	if err != nil || !held {
		return false, err
	}
	runs, err := mailRuns(ctx, s.db, agent, now-MailDay.Microseconds())
	return b.admit(sender, runs).Until > 0, err
}

// ShortenHolds ends the holds of an agent's mail now that would end until a time, both in
// Unix microseconds.
func (s *Store) ShortenHolds(ctx context.Context, agent string, now, until int64) error {
	_, err := s.db.ExecContext(ctx, `update mail_held set until = $2 where agent = $1 and until > $2 and until <= $3`, agent, now, until)
	return err
}

// HeldMail returns the senders whose mail to an agent is held.
func (s *Store) HeldMail(ctx context.Context, agent string) ([]HeldMail, error) {
	return sqldb.All(ctx, s.db, heldRow, `select agent, sender, until from mail_held where agent = $1 order by until, sender`, agent)
}

// DueMail returns the senders whose mail is held until now or earlier, at most 1000. Mail
// to a dead agent stays held; a deleted agent is dead, too.
func (s *Store) DueMail(ctx context.Context, now int64) ([]HeldMail, error) {
	return sqldb.All(ctx, s.db, heldRow, `select h.agent, h.sender, h.until from mail_held h join agents a on a.id = h.agent
		where h.until <= $1 and a.state <> $2 order by h.until, h.agent, h.sender limit 1000`, now, api.StateDead)
}

// FreeMail removes a hold, unless its time has changed since it was read.
func (s *Store) FreeMail(ctx context.Context, h HeldMail) error {
	_, err := s.db.ExecContext(ctx, `delete from mail_held where agent = $1 and sender = $2 and until = $3`, h.Agent, h.Sender, h.Until)
	return err
}
