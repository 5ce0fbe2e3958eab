package treasury

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/signer/core/apitypes"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/host"
	"github.com/anima-run/anima/pkg/wait"

	"github.com/anima-run/anima/services/treasury/internal/chain"
	"github.com/anima-run/anima/services/treasury/internal/ledger"
	"github.com/anima-run/anima/services/treasury/internal/sqlstore"
	"github.com/anima-run/anima/services/treasury/internal/wallet"
)

// onchain is treasury's access to the chain. A nil one means that none is configured.
type onchain struct {
	cfg        Config
	client     *chain.Client
	store      *sqlstore.Store
	watcher    *chain.Watcher
	reconciler *chain.Reconciler
	log        *slog.Logger
	now        func() time.Time
	tel        *instruments

	used chan struct{} // has a value when the chain has been used; wakes a lazy watcher
	one  chan struct{} // has an element during a pass: there is one at a time

	mu     sync.Mutex
	failed error // of the last pass
	at     chain.Block
	readAt time.Time
}

func newOnchain(env *host.Env, cfg Config, store *sqlstore.Store, tel *instruments) (*onchain, error) {
	if cfg.RPCURL.Reveal() == "" {
		return nil, nil
	}
	network, err := chain.Find(cfg.Network)
	if err != nil {
		return nil, err
	}
	client, err := chain.NewClient(chain.Options{URL: cfg.RPCURL, Network: network, Now: env.Now, Timeout: cfg.RPCTimeout})
	if err != nil {
		return nil, err
	}
	c := &onchain{cfg: cfg, client: client, store: store, log: env.Log, now: env.Now, tel: tel, used: make(chan struct{}, 1), one: make(chan struct{}, 1)}
	start := cfg.ChainStart
	if network == chain.Dev {
		start = max(0, start) // the whole chain is ours
	}
	c.watcher = &chain.Watcher{Client: client, Store: store, Log: env.Log, Now: env.Now, Start: start, Changed: tel.chainDeposit}
	c.reconciler = &chain.Reconciler{Client: client, Store: store, Log: env.Log, Now: env.Now, Grace: cfg.ChainReconcile, Frozen: tel.frozen}
	return c, nil
}

// Close closes idle connections.
func (c *onchain) Close() {
	if c != nil {
		c.client.Close()
	}
}

// ready returns an error if treasury has no chain.
func (c *onchain) ready() error {
	if c == nil {
		return &api.Error{
			Code: api.NotFound, Message: "treasury has no chain", Next: "set ANIMA_TREASURY_RPC_URL and ANIMA_TREASURY_NETWORK, or use anima up, which has a dev chain",
		}
	}
	c.use()
	return nil
}

// use wakes a lazy watcher. Without a chain it does nothing.
func (c *onchain) use() {
	if c == nil {
		return
	}
	select {
	case c.used <- struct{}{}:
	default: // the watcher has not seen the last one yet
	}
}

// run watches the chain until ctx ends. A lazy watcher begins when the chain is used: a
// dev chain starts with its first request, and costs time and memory.
func (c *onchain) run(ctx context.Context) error {
	if c.cfg.ChainLazy {
		select {
		case <-ctx.Done():
			return nil
		case <-c.used:
		}
	}
	var reconciled time.Time
	for ctx.Err() == nil {
		at, err := c.pass(ctx)
		if now := c.now(); err == nil && now.Sub(reconciled) >= c.cfg.ChainReconcile {
			if _, err = c.reconciler.Run(ctx, at, ""); err == nil {
				reconciled = now
			}
		}
		c.note(ctx, err)
		_ = wait.For(ctx, c.cfg.ChainPoll) // the loop ends with ctx
	}
	return nil
}

// pass reads the chain once.
func (c *onchain) pass(ctx context.Context) (chain.Block, error) {
	select {
	case c.one <- struct{}{}:
		defer func() { <-c.one }()
	case <-ctx.Done():
		return chain.Block{}, ctx.Err()
	}
	if err := c.client.Verify(ctx); err != nil {
		return chain.Block{}, err
	}
	at, err := c.watcher.Pass(ctx)
	if err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.at, c.readAt, c.failed = at, c.now(), nil
	}
	return at, err
}

// note keeps the result of a pass, and logs the first failure and the recovery.
func (c *onchain) note(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	c.mu.Lock()
	was := c.failed
	c.failed = err
	c.mu.Unlock()
	c.tel.chainPass(ctx, err)
	switch {
	case err != nil && was == nil:
		c.log.WarnContext(ctx, "the chain cannot be read: nothing is bought, no tier changes", "err", err)
	case err == nil && was != nil:
		c.log.InfoContext(ctx, "the chain is read again")
	}
}

// spendable returns an error if an agent may not spend USDC: its books differ from the
// chain. A treasury without a chain has no USDC to differ from.
func (c *onchain) spendable(ctx context.Context, agent string) error {
	if c == nil {
		return nil
	}
	f, err := c.store.Frozen(ctx, c.client.Network().Name, agent)
	if err != nil || !f.Active() {
		return err
	}
	return &api.Error{
		Code: api.Denied, Reason: api.ReasonFrozen,
		Message: fmt.Sprintf("the USDC of agent %.40q is frozen: the ledger and the chain differ by %s", agent, f.Difference),
		Next:    "an operator has to explain it: anima ledger reconcile " + agent + ", then anima ledger reconcile " + agent + " --accept NOTE",
	}
}

// guarded is a signer that signs no payment for a frozen agent or one whose wallet is being
// rotated, and none while the token on the chain is not the known one or cannot be read.
type guarded struct {
	wallet.Signer

	chain *onchain
}

// SignTypedData implements [wallet.Signer].
func (g guarded) SignTypedData(ctx context.Context, agent string, data apitypes.TypedData, rule wallet.Rule) (wallet.Signed, error) {
	if !wallet.Offchain(data.PrimaryType) {
		if err := g.check(ctx, agent); err != nil {
			return wallet.Signed{}, err
		}
	}
	return g.Signer.SignTypedData(ctx, agent, data, rule)
}

// SignTransaction implements [wallet.Signer].
func (g guarded) SignTransaction(ctx context.Context, agent string, tx *types.Transaction, rule wallet.TxRule) (*types.Transaction, error) {
	if err := g.check(ctx, agent); err != nil {
		return nil, err
	}
	return g.Signer.SignTransaction(ctx, agent, tx, rule)
}

func (g guarded) check(ctx context.Context, agent string) error {
	if err := g.settled(ctx, agent); err != nil {
		return err
	}
	if err := g.chain.spendable(ctx, agent); err != nil {
		return err
	}
	if err := g.chain.ready(); err != nil {
		return err
	}
	return g.chain.client.Verify(ctx)
}

// settled returns an error while the wallet of an agent is rotated, and makes the signer
// read one again that another replica has rotated.
func (g guarded) settled(ctx context.Context, agent string) error {
	stored, rotating, err := g.chain.store.Rotating(ctx, agent)
	if err != nil {
		return err
	}
	if rotating {
		return &api.Error{
			Code: api.Unavailable, Reason: api.ReasonBusy, Message: fmt.Sprintf("the wallet of agent %.40q is being rotated", agent),
			Next: "wait for its end; after a crash an operator repeats anima wallet rotate " + agent, RetryAfter: 5000,
		}
	}
	if known, err := g.Address(ctx, agent); err == nil && known != stored {
		g.Forget(agent)
	}
	return nil
}

// usdcLedger posts deposits of USDC. It implements [chain.Ledger].
type usdcLedger struct {
	ledger *ledger.Ledger
	kick   func() // called after a deposit; agents may buy credits with it
}

// DepositUSDC implements [chain.Ledger].
func (l usdcLedger) DepositUSDC(ctx context.Context, network string, d chain.Deposit) error {
	_, err := l.ledger.Deposit(ctx, ledger.DepositRequest{
		ID: d.Posting, Agent: d.Agent, Amount: d.Value, Source: ledger.ChainUSDC(network), Memo: fmt.Sprintf("USDC of %s in %s", d.From, d.Tx),
	})
	if err == nil {
		l.kick()
	}
	return err
}

// ReverseUSDC implements [chain.Ledger].
func (l usdcLedger) ReverseUSDC(ctx context.Context, d chain.Deposit) error {
	_, err := l.ledger.Reverse(ctx, ledger.ReverseRequest{ID: d.Posting, Reason: "the block of the transfer is no longer part of the chain"})
	return err
}

// ReversedUSDC implements [chain.Ledger].
func (l usdcLedger) ReversedUSDC(ctx context.Context, d chain.Deposit) (bool, error) {
	return l.ledger.Reversed(ctx, d.Posting)
}

// textOf returns the message of an error for people, "" for nil.
func textOf(err error) string {
	if err == nil {
		return ""
	}
	return cmp.Or(api.Wire(err).Message, "internal error")
}
