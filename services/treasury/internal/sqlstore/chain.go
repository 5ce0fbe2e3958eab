package sqlstore

import (
	"context"
	"errors"

	"github.com/ethereum/go-ethereum/common"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/services/treasury/internal/chain"
	"github.com/anima-run/anima/services/treasury/internal/ledger"
	"github.com/anima-run/anima/services/treasury/internal/wallet"
)

// Wallets implements [chain.Store].
func (s *Store) Wallets(ctx context.Context) (map[common.Address]wallet.Owner, error) {
	type row struct{ name, address string }
	rows, err := sqldb.All(ctx, s.db, func(r sqldb.Scanner) (w row, err error) {
		return w, r.Scan(&w.name, &w.address)
	}, "select agent, address from wallets")
	all := make(map[common.Address]wallet.Owner, len(rows))
	for _, w := range rows {
		if o, ok := wallet.OwnerOf(w.name); ok {
			all[common.HexToAddress(w.address)] = o
		}
	}
	return all, err
}

// ChainCursor implements [chain.Store].
func (s *Store) ChainCursor(ctx context.Context, network string) (c chain.Cursor, ok bool, err error) {
	var block int64
	var hash string
	err = s.db.QueryRowContext(ctx, "select block, hash from chain_cursors where network = $1", network).Scan(&block, &hash)
	if errors.Is(err, sqldb.ErrNotFound) {
		return c, false, nil
	}
	return chain.Cursor{Block: uint64(block), Hash: common.HexToHash(hash)}, err == nil, err //nolint:gosec // written by SetChainCursor
}

// SetChainCursor implements [chain.Store].
func (s *Store) SetChainCursor(ctx context.Context, network string, was *chain.Cursor, to chain.Cursor) error {
	block := int64(to.Block) //nolint:gosec // a number of a block
	var res sqldb.Result
	var err error
	if was == nil {
		res, err = s.db.ExecContext(ctx, "insert into chain_cursors (network, block, hash) values ($1, $2, $3) on conflict do nothing", network, block, to.Hash.Hex())
	} else {
		res, err = s.db.ExecContext(ctx, "update chain_cursors set block = $2, hash = $3 where network = $1 and block = $4 and hash = $5",
			network, block, to.Hash.Hex(), int64(was.Block), was.Hash.Hex()) //nolint:gosec // a number of a block
	}
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n == 1 {
		return err
	}
	return api.Errorf(api.Conflict, "another replica reads the chain too")
}

const selectDeposit = "select tx, wallet, ordinal, agent, sender, value, block, hash, state, inclusions, posting, seen_at from chain_deposits"

func scanDeposit(r sqldb.Scanner) (d chain.Deposit, err error) {
	var tx, wallet, sender, hash, state string
	var ordinal, block, inclusions int64
	err = r.Scan(&tx, &wallet, &ordinal, &d.Agent, &sender, &d.Value, &block, &hash, &state, &inclusions, &d.Posting, &d.SeenAt)
	d.Key = chain.Key{Tx: common.HexToHash(tx), Wallet: common.HexToAddress(wallet), Ordinal: int(ordinal)}
	d.From, d.Block, d.Hash = common.HexToAddress(sender), uint64(block), common.HexToHash(hash) //nolint:gosec // written by PutDeposit
	d.State, d.Inclusions = chain.State(state), int(inclusions)
	return d, err
}

// Deposit implements [chain.Store].
func (s *Store) Deposit(ctx context.Context, network string, k chain.Key) (chain.Deposit, error) {
	all, err := sqldb.All(ctx, s.db, scanDeposit, selectDeposit+" where network = $1 and tx = $2 and wallet = $3 and ordinal = $4",
		network, k.Tx.Hex(), k.Wallet.Hex(), int64(k.Ordinal))
	if err != nil || len(all) == 1 {
		return append(all, chain.Deposit{})[0], err
	}
	return chain.Deposit{}, api.Errorf(api.NotFound, "the transfer is not stored")
}

// PutDeposit implements [chain.Store].
func (s *Store) PutDeposit(ctx context.Context, network string, was *chain.Deposit, d chain.Deposit) error {
	block := int64(d.Block) //nolint:gosec // a number of a block
	if was == nil {
		_, err := s.db.ExecContext(ctx, `insert into chain_deposits (network, tx, wallet, ordinal, agent, sender, value, block, hash, state, inclusions, posting, seen_at)
			values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) on conflict do nothing`,
			network, d.Tx.Hex(), d.Wallet.Hex(), int64(d.Ordinal), d.Agent, d.From.Hex(), d.Value, block, d.Hash.Hex(), string(d.State), int64(d.Inclusions), d.Posting, d.SeenAt)
		return err
	}
	_, err := s.db.ExecContext(ctx, `update chain_deposits set value = $5, block = $6, hash = $7, state = $8, inclusions = $9, posting = $10
		where network = $1 and tx = $2 and wallet = $3 and ordinal = $4 and state = $11 and hash = $12`,
		network, d.Tx.Hex(), d.Wallet.Hex(), int64(d.Ordinal), d.Value, block, d.Hash.Hex(), string(d.State), int64(d.Inclusions), d.Posting, string(was.State), was.Hash.Hex())
	return err
}

// OpenDeposits implements [chain.Store].
func (s *Store) OpenDeposits(ctx context.Context, network, after string, limit int) ([]chain.Deposit, error) {
	return sqldb.All(ctx, s.db, scanDeposit, selectDeposit+" where network = $1 and state in ('pending', 'included', 'safe') and posting > $2 order by posting limit $3", network, after, limit)
}

// Deposits lists the deposits of an agent, newest first.
func (s *Store) Deposits(ctx context.Context, network, agent string, limit int) ([]chain.Deposit, error) {
	return sqldb.All(ctx, s.db, scanDeposit, selectDeposit+" where agent = $1 and network = $2 order by seen_at desc limit $3", agent, network, limit)
}

// Books implements [chain.ReconcileStore].
func (s *Store) Books(ctx context.Context, network, agent string) (b chain.Books, err error) {
	balance, err := s.Balance(ctx, agent)
	if err != nil {
		return b, err
	}
	b.Total, b.Held = balance.USDC+balance.USDCHeld-balance.USDCDebt, balance.USDCHeld
	err = s.db.QueryRowContext(ctx, "select cast(coalesce(sum(value), 0) as bigint) from chain_deposits where agent = $1 and network = $2 and state = 'pending'",
		agent, network).Scan(&b.Waiting)
	if err != nil {
		return b, err
	}
	f, err := s.Frozen(ctx, network, agent)
	b.Accepted, b.Frozen = f.Accepted, f.Active()
	return b, err
}

// Freeze is a stored difference between the ledger and the chain.
type Freeze struct {
	Difference api.Micros
	Block      uint64
	Since      int64 // Unix microseconds
	ResolvedAt int64 // 0 while the agent is frozen
	Accepted   api.Micros
}

// Active reports whether the agent is frozen.
func (f *Freeze) Active() bool { return f.Since > 0 && f.ResolvedAt == 0 }

// Frozen returns the freeze of an agent, the zero value if there was none.
func (s *Store) Frozen(ctx context.Context, network, agent string) (f Freeze, err error) {
	var block int64
	err = s.db.QueryRowContext(ctx, "select difference, block, since, resolved_at, accepted from chain_freezes where agent = $1 and network = $2",
		agent, network).Scan(&f.Difference, &block, &f.Since, &f.ResolvedAt, &f.Accepted)
	if errors.Is(err, sqldb.ErrNotFound) {
		return Freeze{}, nil
	}
	f.Block = uint64(block) //nolint:gosec // a number of a block
	return f, err
}

// FrozenAgents returns the number of frozen agents.
func (s *Store) FrozenAgents(ctx context.Context, network string) (n int, err error) {
	err = s.db.QueryRowContext(ctx, "select count(*) from chain_freezes where network = $1 and resolved_at = 0", network).Scan(&n)
	return n, err
}

// Freeze implements [chain.ReconcileStore].
func (s *Store) Freeze(ctx context.Context, network, agent string, accepted, difference api.Micros, block uint64, at int64) (bool, error) {
	res, err := s.db.ExecContext(ctx, `insert into chain_freezes (agent, network, difference, block, since, resolved_at, accepted, note) values ($1, $2, $3, $4, $5, 0, 0, '')
		on conflict (agent, network) do update set difference = $3, block = $4, since = $5, resolved_at = 0
		where chain_freezes.resolved_at > 0 and chain_freezes.accepted = $6`,
		agent, network, difference, int64(block), at, accepted) //nolint:gosec // a number of a block
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n == 1, err
}

// Resolve accepts the difference of a frozen agent. A repeated call, with the same note,
// changes nothing. Errors: NotFound if the agent is not frozen.
func (s *Store) Resolve(ctx context.Context, network, agent, note string, at int64) error {
	res, err := s.db.ExecContext(ctx, `update chain_freezes set resolved_at = $3, accepted = accepted + difference, note = $4
		where agent = $1 and network = $2 and resolved_at = 0`, agent, network, at, note)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n == 1 {
		return err
	}
	// The bus repeats a request whose answer is late, as it is while the chain is slow.
	done, err := sqldb.One[int64](ctx, s.db, "select count(*) from chain_freezes where agent = $1 and network = $2 and resolved_at > 0 and note = $3", agent, network, note)
	if err != nil || done > 0 {
		return err
	}
	return &api.Error{Code: api.NotFound, Message: "agent " + agent + " is not frozen", Next: "anima ledger reconcile shows the agents and their differences"}
}

var _ interface {
	chain.Store
	chain.ReconcileStore
	ledger.Store
} = (*Store)(nil)
