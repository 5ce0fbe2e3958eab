package sqlstore

import (
	"context"
	"errors"

	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/services/treasury/internal/ledger"
	"github.com/anima-run/anima/services/treasury/internal/wallet"
)

// Wallet implements [wallet.Store].
func (s *Store) Wallet(ctx context.Context, agent string) (wallet.Wallet, error) {
	var w wallet.Wallet
	err := s.db.QueryRowContext(ctx, "select address, keystore from wallets where agent = $1", agent).Scan(&w.Address, &w.Keystore)
	if errors.Is(err, sqldb.ErrNotFound) {
		return w, ledger.UnknownAgent(agent)
	}
	return w, err
}

// AddWallet implements [wallet.Store].
func (s *Store) AddWallet(ctx context.Context, agent string, w wallet.Wallet) (wallet.Wallet, error) {
	_, err := s.db.ExecContext(ctx, "insert into wallets (agent, address, keystore) values ($1, $2, $3) on conflict do nothing",
		agent, w.Address, w.Keystore)
	if err != nil {
		return w, err
	}
	return s.Wallet(ctx, agent)
}
