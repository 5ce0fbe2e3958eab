package sqlstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/config"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
	"github.com/anima-run/anima/services/treasury/devchain"
	"github.com/anima-run/anima/services/treasury/internal/chain"
	"github.com/anima-run/anima/services/treasury/internal/chain/chaintest"
	"github.com/anima-run/anima/services/treasury/internal/ledger"
	"github.com/anima-run/anima/services/treasury/internal/sqlstore"
	"github.com/anima-run/anima/services/treasury/internal/wallet"
)

var luckys = common.HexToAddress("0x1111111111111111111111111111111111111111")

// posting posts deposits to a ledger. An error, which may be nil, is returned once instead,
// before or after the posting or after a reversal, as a crash at that point would do.
type posting struct {
	ledger   *ledger.Ledger
	before   error
	after    error
	reversed error
	late     func() // called once before a posting, by a replica that was paused there
}

func (p *posting) DepositUSDC(ctx context.Context, network string, d chain.Deposit) error {
	if late := p.late; late != nil {
		p.late = nil
		late()
	}
	if err := p.before; err != nil {
		p.before = nil
		return err
	}
	_, err := p.ledger.Deposit(ctx, ledger.DepositRequest{ID: d.Posting, Agent: d.Agent, Amount: d.Value, Source: ledger.ChainUSDC(network)})
	if after := p.after; err == nil && after != nil {
		p.after = nil
		return after
	}
	return err
}

func (p *posting) ReverseUSDC(ctx context.Context, d chain.Deposit) error {
	_, err := p.ledger.Reverse(ctx, ledger.ReverseRequest{ID: d.Posting, Reason: "reorganized"})
	if crash := p.reversed; err == nil && crash != nil {
		p.reversed = nil
		return crash
	}
	return err
}

func (p *posting) ReversedUSDC(ctx context.Context, d chain.Deposit) (bool, error) {
	return p.ledger.Reversed(ctx, d.Posting)
}

// watched is a ledger that follows a chain.
type watched struct {
	*testing.T

	proxy   *chaintest.Proxy
	store   *sqlstore.Store
	ledger  *ledger.Ledger
	posting *posting
	watcher *chain.Watcher
}

func watch(t *testing.T, db *sqldb.DB) *watched {
	t.Helper()
	w := &watched{T: t, proxy: chaintest.Start(t, devchain.Options{Interval: -1}), store: sqlstore.New(db, nil)}
	w.ledger = ledger.New(w.store, ledger.Options{Now: time.Now})
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { w.ledger.Run(ctx) })
	t.Cleanup(func() { stop(); running.Wait() })
	if err := w.ledger.Open(t.Context(), "lucky"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.store.AddWallet(t.Context(), "lucky", wallet.Wallet{Address: luckys.Hex(), Keystore: "{}"}); err != nil {
		t.Fatal(err)
	}
	client, err := chain.NewClient(chain.Options{URL: w.proxy.URL, Network: chain.Dev, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	w.posting = &posting{ledger: w.ledger}
	w.watcher = &chain.Watcher{Client: client, Store: w.store, Ledger: w.posting, Log: slog.New(slog.DiscardHandler), Now: time.Now}
	return w
}

func (w *watched) pass() chain.Block {
	w.Helper()
	at, err := w.watcher.Pass(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	return at
}

// want checks the USDC of lucky in the ledger and the states of the deposits, newest
// last, and that the ledger is sound.
func (w *watched) want(usdc api.Micros, states ...chain.State) {
	w.Helper()
	b, err := w.ledger.Balance(w.Context(), "lucky")
	if err != nil || b.USDC-b.USDCDebt != usdc {
		w.Errorf("USDC: got %d less %d, %v, want %d", b.USDC, b.USDCDebt, err, usdc)
	}
	ds, err := w.store.Deposits(w.Context(), "dev", "lucky", 10)
	if err != nil || len(ds) != len(states) {
		w.Fatalf("deposits: got %+v, %v, want %v", ds, err, states)
	}
	for i, s := range states {
		if got := ds[len(ds)-1-i].State; got != s {
			w.Errorf("deposit %d: got %s, want %s", i, got, s)
		}
	}
	if r, err := w.ledger.Verify(w.Context(), nil); err != nil || len(r.Faults) > 0 {
		w.Errorf("verify: got %v, %v, want it sound", r.Faults, err)
	}
}

func (w *watched) head() common.Hash {
	w.Helper()
	h, err := w.proxy.Client().HeaderByNumber(w.Context(), nil)
	if err != nil {
		w.Fatal(err)
	}
	return h.Hash()
}

func TestDepositsBecomeFinal(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		w := watch(t, db)
		w.want(0)
		w.proxy.Give(t, luckys, 5, "one")
		w.proxy.Give(t, common.HexToAddress("0x2222222222222222222222222222222222222222"), 9, "another wallet")
		w.pass()
		w.pass()
		w.want(5, chain.Safe) // every block of the dev chain is safe at once
		w.proxy.Give(t, luckys, 7, "two")
		w.pass()
		w.want(12, chain.Safe, chain.Safe)
		for range 40 { // the dev chain finalizes every 32nd block
			w.proxy.Commit()
		}
		w.pass()
		w.want(12, chain.Final, chain.Final)
	})
}

// TestCrashesOfTheWatcher checks that a deposit is posted once, whether the process ends
// before the posting, after it, or before the state is stored.
func TestCrashesOfTheWatcher(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		w := watch(t, db)
		crash := errors.New("crash")
		w.proxy.Give(t, luckys, 5, "one")
		w.posting.before = crash
		if _, err := w.watcher.Pass(t.Context()); !errors.Is(err, crash) {
			t.Fatalf("got %v, want the crash", err)
		}
		w.want(0, chain.Pending)
		w.posting.after = crash
		if _, err := w.watcher.Pass(t.Context()); !errors.Is(err, crash) {
			t.Fatalf("got %v, want the crash", err)
		}
		w.want(5, chain.Pending)
		w.pass()
		w.want(5, chain.Safe)
		// A pending deposit that was posted is reversed with its block.
		head := w.head()
		w.proxy.Give(t, luckys, 3, "two")
		w.posting.after = crash
		if _, err := w.watcher.Pass(t.Context()); !errors.Is(err, crash) {
			t.Fatalf("got %v, want the crash", err)
		}
		w.reorg(head, false)
		w.pass()
		w.want(5, chain.Safe, chain.Reversed)
	})
}

// reorg replaces the blocks after parent by two others, with or without their
// transactions.
func (w *watched) reorg(parent common.Hash, keep bool) {
	w.Helper()
	if err := w.proxy.Fork(parent); err != nil {
		w.Fatal(err)
	}
	if !keep {
		w.proxy.Drop()
	}
	w.proxy.Commit()
	w.proxy.Commit()
}

func TestReorganizations(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		w := watch(t, db)
		w.pass()
		genesis := w.head()
		w.proxy.Give(t, luckys, 5, "one")
		w.pass()
		w.want(5, chain.Safe)

		w.reorg(genesis, false) // the transfer is gone
		w.pass()
		w.want(0, chain.Reversed)
		w.pass()
		w.want(0, chain.Reversed)

		w.proxy.Give(t, luckys, 5, "one") // it is made again, in another transaction
		w.pass()
		if b, err := w.ledger.Balance(t.Context(), "lucky"); err != nil || b.USDC != 5 {
			t.Fatalf("after the second transfer: got %+v, %v, want 5", b, err)
		}

		before := w.head()
		w.proxy.Give(t, luckys, 6, "two")
		w.pass()
		w.reorg(before, true) // the transfer is in another block now
		w.pass()
		if b, err := w.ledger.Balance(t.Context(), "lucky"); err != nil || b.USDC != 11 {
			t.Errorf("after a transfer has moved: got %+v, %v, want 11", b, err)
		}
		onChain, err := w.watcher.Client.Balance(t.Context(), luckys)
		if err != nil || onChain.Value != 11 {
			t.Errorf("on the chain: got %+v, %v, want 11", onChain, err)
		}
	})
}

// TestReorganizationAfterTheStart checks that a reorganization makes no transfer a deposit that
// is before the first block to read, whether it is configured or the last block at the
// first start. A process that stopped before its first cursor has begun already.
func TestReorganizationAfterTheStart(t *testing.T) {
	t.Parallel()
	for name, configured := range map[string]bool{"configured": true, "the last block": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
				w := watch(t, db)
				w.proxy.Give(t, luckys, 9, "early")
				parent := w.head()
				w.proxy.Commit()
				w.watcher.Start = -1
				if configured {
					h, err := w.watcher.Client.Heads(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					w.watcher.Start = int64(h.Latest.Number) //nolint:gosec // small
				}
				w.pass()
				w.reorg(parent, false)
				w.proxy.Give(t, luckys, 5, "one")
				w.pass()
				w.want(5, chain.Safe)
				if configured {
					return
				}
				if _, err := db.ExecContext(t.Context(), "delete from chain_cursors where network = 'dev'"); err != nil {
					t.Fatal(err)
				}
				w.proxy.Give(t, luckys, 3, "two")
				w.proxy.Commit()
				w.pass()
				w.want(8, chain.Safe, chain.Safe)
			})
		})
	}
}

// onAnotherFork is a node that says another hash for a block, while lies is set.
type onAnotherFork struct {
	*chaintest.Proxy
	hash common.Hash
	lies atomic.Bool
}

func (n *onAnotherFork) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rec := httptest.NewRecorder()
	n.Proxy.ServeHTTP(rec, r)
	body := rec.Body.Bytes()
	if n.lies.Load() {
		body = bytes.ReplaceAll(body, []byte(n.hash.Hex()), []byte(common.Hash{0xf0}.Hex()))
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body) // fails only if the client has disconnected
}

// TestNodeOnAnotherFork reverses a deposit because one node of the provider has another block
// of its number, while the block of the cursor is the same. The deposit is posted again when
// the others answer.
func TestNodeOnAnotherFork(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		w := watch(t, db)
		w.proxy.Give(t, luckys, 5, "one")
		node := &onAnotherFork{Proxy: w.proxy, hash: w.head()}
		w.proxy.Commit()
		w.pass()
		w.want(5, chain.Safe)
		server := httptest.NewServer(node)
		defer server.Close()
		client, err := chain.NewClient(chain.Options{URL: config.Secret(server.URL), Network: chain.Dev, Now: time.Now})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		w.watcher.Client = client
		node.lies.Store(true)
		w.pass()
		w.want(0, chain.Reversed)
		node.lies.Store(false)
		w.pass()
		w.want(5, chain.Safe)
	})
}

// TestCrashAfterAReversal ends the process after it has reversed a deposit and before it
// stores that. The block is part of the chain again at the next start.
func TestCrashAfterAReversal(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		w := watch(t, db)
		parent := w.head()
		w.proxy.Give(t, luckys, 5, "one")
		was := w.head()
		w.pass()
		w.want(5, chain.Safe)
		w.reorg(parent, false)
		crash := errors.New("crash")
		w.posting.reversed = crash
		if _, err := w.watcher.Pass(t.Context()); !errors.Is(err, crash) {
			t.Fatalf("got %v, want the crash", err)
		}
		w.want(0, chain.Safe)
		if err := w.proxy.Fork(was); err != nil {
			t.Fatal(err)
		}
		for range 40 { // the dev chain finalizes every 32nd block
			w.proxy.Commit()
		}
		w.pass()
		w.pass()
		w.want(5, chain.Final)
	})
}

// TestLatePosting has a replica post a deposit that another one has reversed in the meantime,
// because a reorganization has removed its block.
func TestLatePosting(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		w := watch(t, db)
		other := *w.watcher
		other.Ledger = &posting{ledger: w.ledger}
		parent := w.head()
		w.proxy.Give(t, luckys, 5, "one")
		w.posting.late = func() {
			w.reorg(parent, false)
			if _, err := other.Pass(t.Context()); err != nil {
				t.Errorf("the other replica: %v", err)
			}
		}
		w.pass()
		w.want(0, chain.Reversed)
	})
}

// TestReversedDepositThatWasSpent checks that the money of a reversed deposit becomes a
// debt if it is gone.
func TestReversedDepositThatWasSpent(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		w := watch(t, db)
		ctx := t.Context()
		parent := w.head()
		w.proxy.Give(t, luckys, 5, "one")
		w.pass()
		if _, err := w.ledger.Hold(ctx, ledger.HoldRequest{ID: "h", Agent: "lucky", Asset: api.USDC, Amount: 4, ExpiresAt: time.Now().Add(time.Hour).UnixMicro()}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.ledger.Settle(ctx, ledger.SettleRequest{ID: "h", Amount: 4, Payee: ledger.PayeeUSDC(luckys.Hex())}); err != nil {
			t.Fatal(err)
		}
		w.reorg(parent, false)
		w.pass()
		w.want(-4, chain.Reversed)
	})
}

// TestNodeBehind checks that a deposit is not passed over if the node that answers for the
// logs does not have its block yet.
func TestNodeBehind(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		w := watch(t, db)
		w.pass()
		w.proxy.Give(t, luckys, 5, "one")
		w.proxy.Set(chaintest.Lags)
		if at, err := w.watcher.Pass(t.Context()); api.CodeOf(err) != api.Unavailable {
			t.Errorf("a node that is behind: got %+v, %v, want unavailable", at, err)
		}
		w.want(0)
		w.proxy.Set(chaintest.Works)
		w.pass()
		w.want(5, chain.Safe)
	})
}

// TestDepositSurvivesANodeBehind checks that a deposit is not reversed if the node that
// answers for its block does not have it yet.
func TestDepositSurvivesANodeBehind(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		w := watch(t, db)
		w.proxy.Give(t, luckys, 5, "one")
		w.pass()
		w.want(5, chain.Safe)
		for _, mode := range []chaintest.Mode{chaintest.Behind, chaintest.Works} {
			w.proxy.Set(mode)
			w.pass()
			w.want(5, chain.Safe)
		}
	})
}

// TestReplicasWatchTogether checks that concurrent watchers post each deposit once.
func TestReplicasWatchTogether(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		w := watch(t, db)
		var want api.Micros
		for i := range 5 {
			w.proxy.Give(t, luckys, uint64(i+1), string(rune('a'+i)))
			want += api.Micros(i + 1)
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					if _, err := w.watcher.Pass(t.Context()); err != nil {
						t.Errorf("pass: %v", err)
					}
				})
			}
			wg.Wait()
		}
		w.pass()
		if b, err := w.ledger.Balance(t.Context(), "lucky"); err != nil || b.USDC != want {
			t.Errorf("got %+v, %v, want %d", b, err, want)
		}
	})
}

// TestManyOpenDeposits checks that old deposits whose blocks are not final do not delay new
// ones.
func TestManyOpenDeposits(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		w := watch(t, db)
		const deposits = 100 // more than one request asks for
		for i := range deposits {
			w.proxy.Give(t, luckys, 1, fmt.Sprint("old", i))
		}
		w.pass()
		w.proxy.Give(t, luckys, 1, "new")
		w.pass()
		if b, err := w.ledger.Balance(t.Context(), "lucky"); err != nil || b.USDC != deposits+1 {
			t.Errorf("got %d of USDC, %v, want %d", b.USDC, err, deposits+1)
		}
	})
}

func TestReconcileFreezes(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		w := watch(t, db)
		ctx := t.Context()
		at := time.Now()
		r := &chain.Reconciler{
			Client: w.watcher.Client, Store: w.store, Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return at }, Grace: time.Minute,
		}
		reconcile := func(difference api.Micros, frozen bool) chain.Account {
			t.Helper()
			report, err := r.Run(ctx, w.pass(), "")
			if err != nil || len(report.Accounts) != 1 || report.Accounts[0].Difference != difference || report.Accounts[0].Frozen != frozen {
				t.Errorf("got %+v, %v, want difference %d and frozen %v", report, err, difference, frozen)
				return chain.Account{}
			}
			return report.Accounts[0]
		}
		w.proxy.Give(t, luckys, 10, "one")
		reconcile(0, false)

		// Money that left on the chain while it is held is explained; afterwards it is not.
		if _, err := w.ledger.Hold(ctx, ledger.HoldRequest{ID: "h", Agent: "lucky", Asset: api.USDC, Amount: 4, ExpiresAt: at.Add(time.Hour).UnixMicro()}); err != nil {
			t.Fatal(err)
		}
		reconcile(0, false)
		if _, err := w.ledger.Settle(ctx, ledger.SettleRequest{ID: "h", Amount: 4, Payee: ledger.PayeeUSDC(luckys.Hex())}); err != nil {
			t.Fatal(err)
		}
		reconcile(-4, false) // the ledger has paid 4 that the chain still has
		at = at.Add(59 * time.Second)
		reconcile(-4, false)
		at = at.Add(time.Second)
		w.proxy.Set(chaintest.Refuses)
		if _, err := r.Run(ctx, chain.Block{}, ""); api.CodeOf(err) != api.Unavailable {
			t.Errorf("while the RPC is down: got %v, want unavailable", err)
		}
		w.proxy.Set(chaintest.Works)
		reconcile(-4, true)
		reconcile(-4, true)
		if f, err := w.store.Frozen(ctx, "dev", "lucky"); err != nil || !f.Active() || f.Difference != -4 {
			t.Errorf("freeze: got %+v, %v, want -4", f, err)
		}
		for range 2 { // a repeated request accepts the difference once
			if err := w.store.Resolve(ctx, "dev", "lucky", "it was a test", 1); err != nil {
				t.Fatal(err)
			}
		}
		reconcile(0, false)
		if err := w.store.Resolve(ctx, "dev", "lucky", "again", 1); api.CodeOf(err) != api.NotFound {
			t.Errorf("resolve again: got %v, want not_found", err)
		}
		if _, err := r.Run(ctx, w.pass(), "nobody"); api.CodeOf(err) != api.NotFound {
			t.Errorf("an agent without a wallet: got %v, want not_found", err)
		}
	})
}

// resolved is a store in which another replica freezes an agent, and an operator accepts the
// difference, after the books of the agent are read.
type resolved struct {
	*sqlstore.Store

	resolve func() // nil: not this time
}

func (s *resolved) Books(ctx context.Context, network, agent string) (chain.Books, error) {
	b, err := s.Store.Books(ctx, network, agent)
	if s.resolve != nil {
		s.resolve()
	}
	return b, err
}

// TestFreezeAfterResolve checks that a difference that was accepted is not frozen again by a
// replica that has read the books before.
func TestFreezeAfterResolve(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		w := watch(t, db)
		ctx := t.Context()
		store := &resolved{Store: w.store}
		r := &chain.Reconciler{Client: w.watcher.Client, Store: store, Log: slog.New(slog.DiscardHandler), Now: time.Now}
		run := func() {
			t.Helper()
			report, err := r.Run(ctx, w.pass(), "")
			if err != nil || len(report.Accounts) != 1 || report.Accounts[0].Frozen {
				t.Errorf("got %+v, %v, want an agent that is not frozen", report, err)
			}
		}
		w.proxy.Give(t, luckys, 10, "one")
		w.pass()
		if _, err := w.ledger.Hold(ctx, ledger.HoldRequest{ID: "h", Agent: "lucky", Asset: api.USDC, Amount: 4, ExpiresAt: time.Now().Add(time.Hour).UnixMicro()}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.ledger.Settle(ctx, ledger.SettleRequest{ID: "h", Amount: 4, Payee: ledger.PayeeUSDC(luckys.Hex())}); err != nil {
			t.Fatal(err)
		}
		run() // the difference is seen once
		store.resolve = func() {
			store.resolve = nil
			if made, err := w.store.Freeze(ctx, "dev", "lucky", 0, -4, 1, 1); err != nil || !made {
				t.Fatalf("freeze: got %t, %v", made, err)
			}
			if err := w.store.Resolve(ctx, "dev", "lucky", "a test", 2); err != nil {
				t.Fatal(err)
			}
		}
		run()
		run()
		if f, err := w.store.Frozen(ctx, "dev", "lucky"); err != nil || f.Active() || f.Accepted != -4 {
			t.Errorf("freeze: got %+v, %v, want -4 accepted", f, err)
		}
	})
}

// TestLongDifference checks that the reconciliation of all agents goes on while one is
// frozen for more blocks than a provider searches in one request.
func TestLongDifference(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		w := watch(t, db)
		ctx := t.Context()
		r := &chain.Reconciler{Client: w.watcher.Client, Store: w.store, Log: slog.New(slog.DiscardHandler), Now: time.Now}
		w.proxy.Give(t, luckys, 10, "one")
		if _, err := r.Run(ctx, w.pass(), ""); err != nil {
			t.Fatal(err)
		}
		if _, err := w.ledger.Hold(ctx, ledger.HoldRequest{ID: "h", Agent: "lucky", Asset: api.USDC, Amount: 4, ExpiresAt: time.Now().Add(time.Hour).UnixMicro()}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.ledger.Settle(ctx, ledger.SettleRequest{ID: "h", Amount: 4, Payee: ledger.PayeeUSDC(luckys.Hex())}); err != nil {
			t.Fatal(err)
		}
		for range chaintest.MaxBlocks + 1 {
			w.proxy.Commit()
		}
		at := w.pass()
		w.proxy.Set(chaintest.Limits)
		report, err := r.Run(ctx, at, "")
		if err != nil || len(report.Accounts) != 1 || report.Accounts[0].Difference != -4 {
			t.Errorf("got %+v, %v, want the difference -4", report, err)
		}
	})
}
