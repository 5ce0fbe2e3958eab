package chain

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/treasury/internal/wallet"
)

// State is how sure the chain is of a deposit.
type State string

// The states. A pending deposit is not in the ledger yet. A reversed one was in a block
// that is no longer part of the chain, as far as the node has said that has answered.
//
//	pending ─▶ included ─▶ safe ─▶ final
//	    └─────────┴─────────┴──▶ reversed ─▶ pending (included again)
const (
	Pending  State = "pending"
	Included State = "included"
	Safe     State = "safe"
	Final    State = "final"
	Reversed State = "reversed"
)

// Key identifies a transfer to a wallet: the Ordinal-th one to it in a transaction.
type Key struct {
	Tx      common.Hash
	Wallet  common.Address
	Ordinal int
}

// Deposit is a transfer of USDC to the wallet of an agent.
type Deposit struct {
	Key

	Agent      string
	From       common.Address
	Value      api.Micros
	Block      uint64
	Hash       common.Hash // of the block
	State      State
	Inclusions int    // how often it was included after it was not
	Posting    string // id of the ledger's transaction
	SeenAt     int64  // Unix microseconds
}

// posting returns the id of the ledger's transaction for the n-th inclusion.
func (k *Key) posting(network string, n int) string {
	id := fmt.Sprintf("chain/%s/%s/%s/%d", network, k.Tx, k.Wallet, k.Ordinal)
	if n > 1 {
		id += fmt.Sprintf("/%d", n)
	}
	return id
}

// Cursor is the last block whose transfers were read.
type Cursor struct {
	Block uint64
	Hash  common.Hash
}

// Store is the persistence of a watcher. It must be safe for concurrent use, also by
// several processes.
type Store interface {
	// Wallets returns the owners of wallets by their addresses, those that agents have, had
	// and get by a rotation.
	Wallets(ctx context.Context) (map[common.Address]wallet.Owner, error)
	// ChainCursor returns the cursor of a network; ok is false before the first. A watcher
	// without a Start also stores the first block that it reads as a cursor; see
	// [Watcher.begin].
	ChainCursor(ctx context.Context, network string) (c Cursor, ok bool, err error)
	// SetChainCursor replaces the cursor was, nil for none. Errors: Conflict if it is
	// another one now.
	SetChainCursor(ctx context.Context, network string, was *Cursor, to Cursor) error
	// Deposit returns a deposit. Errors: NotFound.
	Deposit(ctx context.Context, network string, k Key) (Deposit, error)
	// PutDeposit stores a deposit if its stored state and block are those of was; nil
	// means that it is not stored. Otherwise it stores nothing.
	PutDeposit(ctx context.Context, network string, was *Deposit, d Deposit) error
	// OpenDeposits lists deposits that are pending, included or safe, in the order of their
	// postings, which are greater than after.
	OpenDeposits(ctx context.Context, network, after string, limit int) ([]Deposit, error)
}

// Ledger posts what a watcher has seen. Each method is idempotent.
type Ledger interface {
	// DepositUSDC credits the agent of a deposit under its posting.
	DepositUSDC(ctx context.Context, network string, d Deposit) error
	// ReverseUSDC reverses a posting. Errors: NotFound if it was never made.
	ReverseUSDC(ctx context.Context, d Deposit) error
	// ReversedUSDC reports whether a posting was reversed.
	ReversedUSDC(ctx context.Context, d Deposit) (bool, error)
}

// Limits of one request. Providers limit eth_getLogs by blocks and by addresses; a node that
// permits less is asked in parts, see [Client.logs] and [Client.inParts].
const (
	scanBlocks  = 500
	scanWallets = 100
	openAtOnce  = 90 // deposits, and so blocks
)

// Watcher turns transfers to the wallets of agents into deposits. Several replicas may
// watch one network: the cursor is replaced only if no other replica has replaced it, and each
// step is idempotent.
type Watcher struct {
	Client *Client
	Store  Store
	Ledger Ledger
	Log    *slog.Logger
	Now    func() time.Time
	// Start is the first block to read, if there is no cursor; negative means the last
	// block at that time, which is stored.
	Start int64
	// Changed, which may be nil, is called after a deposit has got a state.
	Changed func(context.Context, Deposit)
	// Reorganized, which may be nil, is called when blocks that were read are no longer
	// part of the chain, before the new ones are read. After an error the next pass calls
	// it again.
	Reorganized func(context.Context) error
}

// Pass reads the chain up to its last block, posts new deposits and reverses those whose
// block is no longer part of the chain. It returns the block that it has reached. A crash
// at any point loses nothing: a deposit is stored before it is posted and before the
// cursor passes it, and a stored deposit is posted or reversed by the next pass.
func (w *Watcher) Pass(ctx context.Context) (Block, error) {
	heads, err := w.Client.Heads(ctx)
	if err != nil {
		return Block{}, err
	}
	at, err := w.scan(ctx, heads)
	if err != nil {
		return Block{}, err
	}
	return at, w.settle(ctx, heads)
}

// startName is the name of the cursor with the first block that was read of a network.
func startName(network string) string { return network + "/start" }

// begin returns the first block to read of a network without a cursor. The last block at
// that time is stored before any block is read, and is found again after a crash: a
// reorganization must not make a transfer before it a deposit.
func (w *Watcher) begin(ctx context.Context, network string, latest Block) (uint64, error) {
	if w.Start >= 0 {
		return uint64(w.Start), nil //nolint:gosec // not negative
	}
	err := w.Store.SetChainCursor(ctx, startName(network), nil, Cursor{Block: latest.Number, Hash: latest.Hash})
	if api.CodeOf(err) == api.Conflict {
		return w.first(ctx, network)
	}
	return latest.Number, err
}

// first returns the first block that was read of a network, 0 if it is not known: a release
// that did not store it has begun to read.
func (w *Watcher) first(ctx context.Context, network string) (uint64, error) {
	if w.Start >= 0 {
		return uint64(w.Start), nil //nolint:gosec // not negative
	}
	c, _, err := w.Store.ChainCursor(ctx, startName(network))
	return c.Block, err
}

// restart returns the first block that is read again after a reorganization: the one after
// the last final block, which no reorganization removes. Without one, which a node may not
// have at the moment, it is lookBack blocks before the cursor. It is not before the first
// block that was read.
func (w *Watcher) restart(ctx context.Context, network string, cursor Cursor, final Block) (uint64, error) {
	if final.Hash == (common.Hash{}) {
		final.Number = cursor.Block - min(cursor.Block, lookBack)
	}
	next := final.Number + 1
	start, err := w.first(ctx, network)
	if start <= cursor.Block {
		next = max(next, start)
	}
	return min(cursor.Block, next), err
}

// scan stores the transfers of the blocks after the cursor. After a reorganization it
// reads some of them again, see [Watcher.restart].
func (w *Watcher) scan(ctx context.Context, heads Heads) (Block, error) {
	network := w.Client.Network().Name
	cursor, ok, err := w.Store.ChainCursor(ctx, network)
	if err != nil {
		return Block{}, err
	}
	next := cursor.Block + 1
	if !ok {
		if next, err = w.begin(ctx, network, heads.Latest); err != nil {
			return Block{}, err
		}
	} else if blocks, last, err := w.Client.Blocks(ctx, cursor.Block); err != nil {
		return Block{}, err
	} else if last.Number < min(cursor.Block, heads.Latest.Number) {
		return Block{}, w.Client.failed("has nodes of which one is behind", "it is read again by itself")
	} else if blocks[0] == nil || blocks[0].Hash != cursor.Hash {
		if next, err = w.restart(ctx, network, cursor, heads.Final); err != nil {
			return Block{}, err
		}
		w.Log.WarnContext(ctx, "the chain was reorganized, reading it again", "network", network, "block", cursor.Block, "from", next)
		if w.Reorganized != nil {
			if err := w.Reorganized(ctx); err != nil {
				return Block{}, err
			}
		}
	}
	wallets, err := w.Store.Wallets(ctx)
	if err != nil {
		return Block{}, err
	}
	was := &cursor
	if !ok {
		was = nil
	}
	for next <= heads.Latest.Number {
		last := min(next+scanBlocks-1, heads.Latest.Number)
		blocks, _, err := w.Client.Blocks(ctx, last)
		if err != nil {
			return Block{}, err
		}
		if blocks[0] == nil {
			return Block{}, w.Client.failed("has lost its last blocks", "it is read again by itself")
		}
		if err := w.see(ctx, next, last, wallets); err != nil {
			return Block{}, err
		}
		to := Cursor{Block: last, Hash: blocks[0].Hash}
		if err := w.Store.SetChainCursor(ctx, network, was, to); api.CodeOf(err) == api.Conflict {
			return Block{Number: to.Block, Hash: to.Hash}, nil // another replica reads on
		} else if err != nil {
			return Block{}, err
		}
		was, next = &to, last+1
	}
	if was == nil { // the start is in the future
		return heads.Latest, nil
	}
	return Block{Number: was.Block, Hash: was.Hash}, nil
}

// see stores the transfers to wallets in a range of blocks.
func (w *Watcher) see(ctx context.Context, first, last uint64, wallets map[common.Address]wallet.Owner) error {
	addresses := make([]common.Address, 0, len(wallets))
	for a := range wallets {
		addresses = append(addresses, a)
	}
	for len(addresses) > 0 {
		part := addresses[:min(len(addresses), scanWallets)]
		addresses = addresses[len(part):]
		transfers, err := w.Client.Transfers(ctx, first, last, part...)
		if err != nil {
			return err
		}
		seen := map[Key]int{}
		for _, t := range transfers {
			key := Key{Tx: t.Tx, Wallet: t.To}
			n := seen[key]
			seen[key]++
			// A rotation moves the USDC of an agent to its next wallet: that is no deposit.
			// Nothing else is paid to that wallet by an earlier one, which signs no payments.
			to, from := wallets[t.To], wallets[t.From]
			moved := from.Agent == to.Agent && t.From != t.To && !to.Retired && (to.Next || from.Retired)
			if key.Ordinal = n; t.Value > 0 && !moved {
				if err := w.put(ctx, key, t, to.Agent); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// put stores a transfer that is part of the chain now.
func (w *Watcher) put(ctx context.Context, key Key, t Transfer, agent string) error {
	network := w.Client.Network().Name
	was, err := w.Store.Deposit(ctx, network, key)
	if api.CodeOf(err) == api.NotFound {
		return w.Store.PutDeposit(ctx, network, nil, Deposit{
			Key: key, Agent: agent, From: t.From, Value: t.Value, Block: t.Block, Hash: t.Hash, State: Pending, Inclusions: 1,
			Posting: key.posting(network, 1), SeenAt: w.Now().UnixMicro(),
		})
	}
	if err != nil || was.State == Final || was.State != Reversed && was.Hash == t.Hash {
		return err
	}
	d := was
	d.Block, d.Hash = t.Block, t.Hash
	if was.State == Reversed {
		if err := w.reverse(ctx, was); err != nil { // another replica may have posted it since, and stopped
			return err
		}
		d.Value = t.Value
		d.include(network)
	}
	return w.Store.PutDeposit(ctx, network, &was, d)
}

// include makes a deposit whose posting was reversed pending under the next posting.
func (d *Deposit) include(network string) {
	d.State, d.Inclusions = Pending, d.Inclusions+1
	d.Posting = d.posting(network, d.Inclusions)
}

// reverse reverses the posting of a deposit, if it was made.
func (w *Watcher) reverse(ctx context.Context, d Deposit) error {
	err := w.Ledger.ReverseUSDC(ctx, d)
	if api.CodeOf(err) == api.NotFound {
		return nil
	}
	return err
}

// again has the next pass read the blocks since the last final one again, as after a
// reorganization. Errors: Conflict if another replica moves the cursor at the same time.
func (w *Watcher) again(ctx context.Context) error {
	network := w.Client.Network().Name
	was, ok, err := w.Store.ChainCursor(ctx, network)
	if err != nil || !ok || was.Hash == (common.Hash{}) {
		return err
	}
	return w.Store.SetChainCursor(ctx, network, &was, Cursor{Block: was.Block})
}

// settle compares all open deposits with the blocks of the chain, a part at a time.
func (w *Watcher) settle(ctx context.Context, heads Heads) error {
	after := ""
	var failed error
	for {
		open, err := w.Store.OpenDeposits(ctx, w.Client.Network().Name, after, openAtOnce)
		if err != nil {
			return errors.Join(failed, err)
		}
		if len(open) > 0 {
			failed = errors.Join(failed, w.settlePart(ctx, open, heads))
			after = open[len(open)-1].Posting
		}
		if len(open) < openAtOnce || ctx.Err() != nil {
			return failed
		}
	}
}

func (w *Watcher) settlePart(ctx context.Context, open []Deposit, heads Heads) error {
	numbers := make([]uint64, len(open))
	for i := range open {
		numbers[i] = open[i].Block
	}
	slices.Sort(numbers)
	numbers = slices.Compact(numbers)
	blocks, last, err := w.Client.Blocks(ctx, numbers...)
	if err != nil {
		return err
	}
	hashes := make(map[uint64]common.Hash, len(blocks))
	for i, b := range blocks {
		if b != nil {
			hashes[numbers[i]] = b.Hash
		}
	}
	var failed error
	for i := range open {
		if open[i].Block > last.Number { // of a node that is behind: the next pass decides
			continue
		}
		failed = errors.Join(failed, w.advance(ctx, open[i], hashes[open[i].Block] == open[i].Hash, heads))
	}
	return failed
}

// advance posts or reverses one deposit, and then stores its state: a repeated posting is
// the same transaction.
func (w *Watcher) advance(ctx context.Context, d Deposit, canonical bool, heads Heads) error {
	next := d
	switch {
	case !canonical:
		// The node may be on another fork than the one that has answered for the cursor. The
		// next pass reads the blocks again and finds the transfer if the chain has it.
		if err := w.again(ctx); err != nil {
			return err
		}
		if err := w.reverse(ctx, d); err != nil {
			return err
		}
		next.State = Reversed
	case heads.Final.Number >= d.Block:
		next.State = Final
	case heads.Safe.Number >= d.Block:
		next.State = Safe
	default:
		next.State = Included
	}
	if next.State == d.State {
		return nil
	}
	if canonical {
		if err := w.post(ctx, d, &next); err != nil {
			return err
		}
	}
	if err := w.Store.PutDeposit(ctx, w.Client.Network().Name, &d, next); err != nil {
		return err
	}
	if canonical && d.State == Pending {
		if err := w.undoLate(ctx, d); err != nil {
			return err
		}
	}
	if w.Changed != nil {
		w.Changed(ctx, next)
	}
	return nil
}

// post posts a pending deposit. If the posting was reversed, by a process that stopped
// before it stored that, next is pending under another posting instead.
func (w *Watcher) post(ctx context.Context, d Deposit, next *Deposit) error {
	network := w.Client.Network().Name
	reversed, err := w.Ledger.ReversedUSDC(ctx, d)
	switch {
	case err != nil:
		return err
	case reversed:
		next.include(network)
		return nil
	case d.State == Pending:
		return w.Ledger.DepositUSDC(ctx, network, d)
	}
	return nil
}

// undoLate reverses a posting that was made after another replica had reversed the deposit.
func (w *Watcher) undoLate(ctx context.Context, d Deposit) error {
	stored, err := w.Store.Deposit(ctx, w.Client.Network().Name, d.Key)
	if err != nil || stored.Posting == d.Posting && stored.State != Reversed {
		return err
	}
	return w.reverse(ctx, d)
}
