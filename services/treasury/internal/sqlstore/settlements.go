package sqlstore

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/services/treasury/internal/facilitator"
)

// ClaimSettlement implements [facilitator.Store].
func (s *Store) ClaimSettlement(ctx context.Context, fresh facilitator.Settlement) (before facilitator.Settlement, claimed bool, err error) {
	err = sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		before, claimed = facilitator.Settlement{}, false
		made, err := tx.ExecContext(ctx, "insert into settlements (id, fingerprint, state, until, receipt, created_at, updated_at)"+
			" values ($1, $2, $3, $4, '', $5, $5) on conflict (id) do nothing", fresh.Key, fresh.Fingerprint, string(fresh.State), fresh.Until, fresh.At)
		if err != nil {
			return err
		}
		if n, err := made.RowsAffected(); n == 1 {
			claimed = true
			return err
		}
		var state, receipt string
		err = tx.QueryRowContext(ctx, "select id, fingerprint, state, until, receipt, created_at from settlements where id = $1"+tx.ForUpdate(), fresh.Key).
			Scan(&before.Key, &before.Fingerprint, &state, &before.Until, &receipt, &before.At)
		if errors.Is(err, sqldb.ErrNotFound) { // dropped meanwhile
			return sqldb.ErrBusy
		}
		if err != nil {
			return err
		}
		before.State = facilitator.State(state)
		if receipt != "" {
			if err := json.Unmarshal([]byte(receipt), &before.Receipt); err != nil {
				return err
			}
		}
		if before.State != facilitator.Pending || before.Until > fresh.At || before.Fingerprint != fresh.Fingerprint {
			return nil
		}
		claimed = true
		_, err = tx.ExecContext(ctx, "update settlements set until = $2, updated_at = $3 where id = $1", fresh.Key, fresh.Until, fresh.At)
		return err
	})
	return before, claimed, err
}

// SaveSettlement implements [facilitator.Store].
func (s *Store) SaveSettlement(ctx context.Context, o facilitator.Settlement) error {
	receipt, err := json.Marshal(o.Receipt)
	if err != nil {
		return err
	}
	_, err = s.db.ExecContext(ctx, "update settlements set state = $2, until = $3, receipt = $4 where id = $1 and state = 'pending'",
		o.Key, string(o.State), o.Until, string(receipt))
	return err
}

// DropSettlement implements [facilitator.Store].
func (s *Store) DropSettlement(ctx context.Context, key string) error {
	_, err := s.db.ExecContext(ctx, "delete from settlements where id = $1 and state = 'pending'", key)
	return err
}
