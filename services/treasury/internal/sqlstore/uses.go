package sqlstore

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/services/treasury/internal/paywall"
)

const useColumns = "id, payer, identifier, resource, fingerprint, state, until, tx, status, headers, body, created_at"

func scanUse(row sqldb.Scanner) (u paywall.Use, err error) {
	var state, headers, body string
	err = row.Scan(&u.ID, &u.Payer, &u.Identifier, &u.Resource, &u.Fingerprint, &state, &u.Until, &u.Transaction, &u.Answer.Status, &headers, &body, &u.At)
	if err != nil {
		return u, err
	}
	u.State = paywall.State(state)
	if headers != "" {
		if err = json.Unmarshal([]byte(headers), &u.Answer.Header); err != nil {
			return u, fmt.Errorf("the stored answer of %s: %w", u.ID, err)
		}
	}
	u.Answer.Body, err = base64.StdEncoding.DecodeString(body)
	return u, err
}

// ClaimUse implements [paywall.Store].
func (s *Store) ClaimUse(ctx context.Context, fresh paywall.Use) (before paywall.Use, claimed bool, err error) {
	err = sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		before, claimed = paywall.Use{}, false
		// Without a target, the insert also does nothing if the identifier of the payer exists.
		made, err := tx.ExecContext(ctx, "insert into uses ("+useColumns+", updated_at) values ($1, $2, $3, $4, $5, $6, $7, '', 0, '', '', $8, $8)"+
			" on conflict do nothing", fresh.ID, fresh.Payer, fresh.Identifier, fresh.Resource, fresh.Fingerprint, string(fresh.State), fresh.Until, fresh.At)
		if err != nil {
			return err
		}
		if n, err := made.RowsAffected(); n == 1 {
			claimed = true
			return err
		}
		before, err = scanUse(tx.QueryRowContext(ctx, "select "+useColumns+" from uses where id = $1"+tx.ForUpdate(), fresh.ID))
		if errors.Is(err, sqldb.ErrNotFound) {
			before, err = scanUse(tx.QueryRowContext(ctx, "select "+useColumns+" from uses where payer = $1 and identifier = $2 and identifier <> ''",
				fresh.Payer, fresh.Identifier))
			if errors.Is(err, sqldb.ErrNotFound) { // dropped meanwhile
				return sqldb.ErrBusy
			}
			return err
		}
		if err != nil || before.State == paywall.Done || before.Until > fresh.At || before.Fingerprint != fresh.Fingerprint {
			return err
		}
		claimed = true
		_, err = tx.ExecContext(ctx, "update uses set until = $2, updated_at = $3 where id = $1", fresh.ID, fresh.Until, fresh.At)
		return err
	})
	return before, claimed, err
}

// SaveUse implements [paywall.Store].
func (s *Store) SaveUse(ctx context.Context, u paywall.Use) error {
	headers, err := json.Marshal(u.Answer.Header)
	if err != nil {
		return err
	}
	_, err = s.db.ExecContext(ctx, "update uses set state = $2, until = $3, tx = $4, status = $5, headers = $6, body = $7, updated_at = $8"+
		" where id = $1 and state <> 'done'", u.ID, string(u.State), u.Until, u.Transaction, u.Answer.Status, string(headers),
		base64.StdEncoding.EncodeToString(u.Answer.Body), u.At)
	return err
}

// DropUse implements [paywall.Store].
func (s *Store) DropUse(ctx context.Context, id string) error {
	_, err := s.db.ExecContext(ctx, "delete from uses where id = $1 and state = 'claimed'", id)
	return err
}

// confirmWithin is how long ago a use may have been done that is still confirmed.
const confirmWithin = 7 * 24 * time.Hour

// DueUses implements [paywall.Store]. The condition on the state paid is that of the index.
func (s *Store) DueUses(ctx context.Context, at int64, limit int) ([]paywall.Use, error) {
	return sqldb.All(ctx, s.db, scanUse, "select "+useColumns+" from uses where state <> 'paid' and updated_at > $1 and updated_at <= $2"+
		" and state = 'done' and until > 0 and until <= $2 order by updated_at limit $3", at-confirmWithin.Microseconds(), at, int64(limit))
}

// ConfirmUse implements [paywall.Store].
func (s *Store) ConfirmUse(ctx context.Context, id string) error {
	_, err := s.db.ExecContext(ctx, "update uses set until = 0 where id = $1 and state = 'done'", id)
	return err
}
