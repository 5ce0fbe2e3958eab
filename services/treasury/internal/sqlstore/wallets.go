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

// AgentAt returns the agent whose wallet has an address, in any case, and "" if there is
// none.
func (s *Store) AgentAt(ctx context.Context, address string) (string, error) {
	var agent string
	err := s.db.QueryRowContext(ctx, "select agent from wallets where lower(address) = lower($1) and agent <> '' order by agent limit 1", address).Scan(&agent)
	if errors.Is(err, sqldb.ErrNotFound) {
		return "", nil
	}
	return agent, err
}
