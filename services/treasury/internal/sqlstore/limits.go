package sqlstore

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/services/treasury/internal/ledger"
	"github.com/anima-run/anima/services/treasury/internal/limits"
)

// encodeMeters returns the sums of an account for its row: the agent's, and those of its
// lineage after a point, if it has any.
func encodeMeters(a *ledger.Account) string {
	own, pool := a.Meter.Encode(), a.Pool.Encode()
	if pool == "" {
		return own
	}
	return own + "." + pool
}

// decodeLimits sets the sums and the limits of an account.
func decodeLimits(a *ledger.Account, meter, own string) error {
	if meter != "" {
		agent, pool, _ := strings.Cut(meter, ".")
		var err error
		if a.Meter, err = limits.DecodeMeter(agent); err == nil {
			a.Pool, err = limits.DecodeMeter(pool)
		}
		if err != nil {
			return fmt.Errorf("account %s: %w", a.ID, err)
		}
	}
	if own == "" {
		return nil
	}
	a.Limits = new(ledger.OwnLimits)
	if err := json.Unmarshal([]byte(own), a.Limits); err != nil {
		return fmt.Errorf("account %s: its limits: %w", a.ID, err)
	}
	return nil
}

// tally is a row of the tallies.
type tally struct {
	id string
	limits.Tally
}

func scanTally(row sqldb.Scanner) (t tally, err error) {
	var data string
	if err = row.Scan(&t.id, &data); err == nil {
		t.Tally, err = limits.DecodeTally(data)
	}
	return t, err
}

// queueTallies queues the read of the tallies that found lacks, with those of its holds.
func queueTallies(ctx context.Context, tx *sqldb.Tx, found rows, ids []string) parts[tally] {
	return later(ctx, tx, scanTally, "select id, data from tallies where id in", missing(append(slices.Clone(ids), ofHolds(&found)...), found.Tallies))
}

func ofHolds(found *rows) []string {
	var ids []string
	for _, h := range found.Holds {
		_, tallies := h.CountedBy()
		ids = append(ids, tallies...)
	}
	return ids
}

// intoLimits adds the tallies and approvals that were read to found. A row that does not
// exist is the zero value.
func (r *reading) intoLimits(found *rows) error {
	if err := intoTallies(found, r.tallies, r.keys.Tallies); err != nil {
		return err
	}
	approvals, err := r.approvals.all()
	if err != nil {
		return err
	}
	for _, id := range missing(r.keys.Approvals, found.Approvals) {
		found.Approvals[id] = ledger.Approval{}
	}
	for _, a := range approvals {
		found.Approvals[a.ID] = a
	}
	return nil
}

// intoTallies adds the tallies with ids, and those of the holds of found.
func intoTallies(found *rows, read parts[tally], ids []string) error {
	all, err := read.all()
	if err != nil {
		return err
	}
	for _, id := range missing(append(slices.Clone(ids), ofHolds(found)...), found.Tallies) {
		found.Tallies[id] = limits.Tally{}
	}
	for _, t := range all {
		found.Tallies[t.id] = t.Tally
	}
	return nil
}

// saveLimits queues the changes of tallies, approvals and limits.
func saveLimits(ctx context.Context, tx *sqldb.Tx, c ledger.Changes) {
	if len(c.Tallies) > 0 {
		args := make([]any, 0, 2*len(c.Tallies))
		for id, t := range c.Tallies {
			args = append(args, id, t.Encode())
		}
		insert(ctx, tx, "insert into tallies (id, data) values ", " on conflict (id) do update set data = excluded.data", 2, args)
	}
	for _, a := range c.Approvals {
		tx.Queue(ctx, "update approvals set status = $1, hold = $2 where id = $3", string(a.Status), a.Hold, a.ID)
	}
	for _, id := range c.Limited {
		i := slices.IndexFunc(c.Accounts, func(a ledger.Account) bool { return a.ID == id })
		data, err := api.Encode(c.Accounts[i].Limits)
		if err != nil {
			panic(err) // a struct of numbers and texts
		}
		tx.Queue(ctx, "update accounts set limits = $1 where id = $2", string(data), id)
	}
}

const selectApproval = "select id, agent, amount, category, payee, domain, asset, status, hold, asked_at, ends_at from approvals"

func scanApproval(row sqldb.Scanner) (a ledger.Approval, err error) {
	err = row.Scan(&a.ID, &a.Agent, &a.Amount, &a.Category, &a.Payee, &a.Domain, &a.Asset, &a.Status, &a.Hold, &a.AskedAt, &a.EndsAt)
	return a, err
}

// Ask implements [ledger.Store].
func (s *Store) Ask(ctx context.Context, a ledger.Approval) error {
	_, err := s.db.ExecContext(ctx, "insert into approvals (id, agent, amount, category, payee, domain, asset, status, hold, asked_at, ends_at)"+
		" values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, 0) on conflict (id) do update set status = excluded.status, hold = excluded.hold,"+
		" asked_at = excluded.asked_at, ends_at = 0"+
		" where approvals.status <> 'open' and not (approvals.status = 'approved' and approvals.ends_at > excluded.asked_at)",
		a.ID, a.Agent, int64(a.Amount), a.Category, a.Payee, a.Domain, a.Asset, string(a.Status), a.Hold, a.AskedAt)
	return err
}

// Decide implements [ledger.Store].
func (s *Store) Decide(ctx context.Context, id string, status api.ApprovalStatus, endsAt int64) (a ledger.Approval, err error) {
	err = sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		found, err := sqldb.All(ctx, tx, scanApproval, selectApproval+" where id = $1"+tx.ForUpdate(), id)
		switch {
		case err != nil:
			return err
		case len(found) == 0:
			return &api.Error{Code: api.NotFound, Message: fmt.Sprintf("there is no request %.40q", id), Next: "anima budget approvals lists the requests"}
		case found[0].Status != api.ApprovalOpen:
			return &api.Error{Code: api.Conflict, Message: fmt.Sprintf("the request is %s, not open", found[0].Status), Next: "anima budget approvals lists the open requests"}
		}
		a = found[0]
		a.Status, a.EndsAt = status, endsAt
		_, err = tx.ExecContext(ctx, "update approvals set status = $1, ends_at = $2 where id = $3", string(status), endsAt, id)
		return err
	})
	return a, err
}

// Approvals implements [ledger.Store].
func (s *Store) Approvals(ctx context.Context, agent string, status api.ApprovalStatus, limit int) ([]ledger.Approval, error) {
	return sqldb.All(ctx, s.db, scanApproval,
		selectApproval+" where status = $1 and (agent = $2 or $2 = '') order by asked_at desc, id limit $3", string(status), agent, limit)
}
