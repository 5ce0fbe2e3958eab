package sqlstore

import (
	"context"
	"errors"

	"github.com/anima-run/anima/pkg/api"
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

// AgentAt returns the agent that has, had or gets a wallet with an address, in any case,
// and "" if there is none: the wallets of treasury itself belong to no agent.
func (s *Store) AgentAt(ctx context.Context, address string) (string, error) {
	var name string
	err := s.db.QueryRowContext(ctx, "select agent from wallets where lower(address) = lower($1) and agent <> '' order by agent limit 1", address).Scan(&name)
	if errors.Is(err, sqldb.ErrNotFound) {
		return "", nil
	}
	if o, ok := wallet.OwnerOf(name); ok {
		return o.Agent, err
	}
	return "", err
}

// Rotating returns the address of an agent's stored wallet, and whether a rotation of it is
// in progress.
func (s *Store) Rotating(ctx context.Context, agent string) (address string, rotating bool, err error) {
	type row struct{ name, address string }
	rows, err := sqldb.All(ctx, s.db, func(r sqldb.Scanner) (w row, err error) { return w, r.Scan(&w.name, &w.address) },
		"select agent, address from wallets where agent in ($1, $2)", agent, wallet.Next(agent))
	for _, w := range rows {
		if w.name == agent {
			address = w.address
		} else {
			rotating = true
		}
	}
	return address, rotating, err
}

// Earlier returns the addresses of the wallets that an agent had.
func (s *Store) Earlier(ctx context.Context, agent string) ([]string, error) {
	return sqldb.All(ctx, s.db, func(r sqldb.Scanner) (address string, err error) { return address, r.Scan(&address) },
		"select address from wallets where agent = $1 || address order by address", wallet.Retired(agent, ""))
}

// RetiredWallets returns the names of all wallets that agents had.
func (s *Store) RetiredWallets(ctx context.Context) ([]string, error) {
	return sqldb.All(ctx, s.db, func(r sqldb.Scanner) (name string, err error) { return name, r.Scan(&name) },
		"select agent from wallets where agent like 'retired:%'")
}

// EndRotation makes the wallet of a rotation in progress that of its agent, retires the one
// with the address was, and announces the change, in one transaction. It does nothing if
// another request has ended the rotation. Errors: Conflict if it was dropped.
func (s *Store) EndRotation(ctx context.Context, agent, was string, announce func(ctx context.Context, tx *sqldb.Tx, to string) error) error {
	return sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		var to string
		err := tx.QueryRowContext(ctx, "select address from wallets where agent = $1"+tx.ForUpdate(), wallet.Next(agent)).Scan(&to)
		if errors.Is(err, sqldb.ErrNotFound) {
			present, err := sqldb.One[string](ctx, tx, "select address from wallets where agent = $1", agent)
			if err == nil && present == was {
				err = &api.Error{Code: api.Conflict, Reason: api.ReasonBusy, Message: "another request has ended the rotation without an effect", Next: "rotate the wallet again"}
			}
			return err
		}
		if err != nil {
			return err
		}
		for _, c := range [][3]string{{wallet.Retired(agent, was), agent, was}, {agent, wallet.Next(agent), to}} {
			res, err := tx.ExecContext(ctx, "update wallets set agent = $1 where agent = $2 and address = $3", c[0], c[1], c[2])
			if err != nil {
				return err
			}
			if n, err := res.RowsAffected(); err != nil || n != 1 {
				return errors.Join(err, api.Errorf(api.Conflict, "the wallet of agent %.40q has changed", agent))
			}
		}
		return announce(ctx, tx, to)
	})
}

// DropRotation ends a rotation in progress without an effect. Its wallet is retired and not
// removed: another replica may have continued the rotation, and have sent USDC to it.
func (s *Store) DropRotation(ctx context.Context, agent, to string) error {
	_, err := s.db.ExecContext(ctx, "update wallets set agent = $1 where agent = $2 and address = $3", wallet.Retired(agent, to), wallet.Next(agent), to)
	return err
}
