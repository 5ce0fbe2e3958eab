package treasury

import (
	"context"
	"fmt"

	"github.com/ethereum/go-ethereum/common"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/treasury/internal/chain"
	"github.com/anima-run/anima/services/treasury/internal/wallet"
)

// shownDeposits is the number of deposits in a [api.WalletState].
const shownDeposits = 10

func (h *handlers) getChain(ctx context.Context, _ api.GetChain) (api.ChainState, error) {
	if err := h.chain.ready(); err != nil {
		return api.ChainState{}, err
	}
	n := h.chain.client.Network()
	err := h.chain.client.Verify(ctx)
	h.chain.mu.Lock()
	defer h.chain.mu.Unlock()
	s := api.ChainState{
		Network: n.Name, ChainID: n.ChainID, Token: n.Asset.Hex(), OK: err == nil && h.chain.failed == nil, Error: textOf(err),
		Block: h.chain.at.Number,
	}
	if s.Error == "" {
		s.Error = textOf(h.chain.failed)
	}
	if !h.chain.readAt.IsZero() {
		s.ReadAt = h.chain.readAt.UnixMicro()
	}
	frozen, err := h.chain.store.FrozenAgents(ctx, n.Name)
	s.Frozen = frozen
	return s, err
}

func (h *handlers) getWallet(ctx context.Context, m api.GetWallet) (api.WalletState, error) {
	address, err := h.wallets.Address(ctx, m.Agent)
	if err != nil {
		return api.WalletState{}, err
	}
	b, err := h.ledger.Balance(ctx, m.Agent)
	if err != nil {
		return api.WalletState{}, err
	}
	earlier, err := h.directory.Earlier(ctx, m.Agent)
	if err != nil {
		return api.WalletState{}, err
	}
	w := api.WalletState{Agent: m.Agent, Address: address, Earlier: earlier, Ledger: b.USDC + b.USDCHeld - b.USDCDebt, Held: b.USDCHeld}
	if h.chain.ready() != nil {
		return w, nil
	}
	w.Network = h.chain.client.Network().Name
	onChain, err := h.chain.client.Balance(ctx, common.HexToAddress(address))
	if err != nil {
		w.Error = textOf(err)
	} else {
		w.Known, w.Stale, w.OnChain, w.Error = true, onChain.Stale, onChain.Value, textOf(onChain.Err)
		w.Block, w.BlockHash, w.ReadAt = onChain.Block.Number, onChain.Block.Hash.Hex(), onChain.At.UnixMicro()
	}
	for _, e := range earlier {
		if b, err := h.chain.client.Balance(ctx, common.HexToAddress(e)); err != nil {
			w.Error = textOf(err)
		} else if b.Value > 0 {
			w.Left = append(w.Left, api.WalletRest{Address: e, OnChain: b.Value})
		}
	}
	f, err := h.chain.store.Frozen(ctx, w.Network, m.Agent)
	if err != nil {
		return w, err
	}
	if f.Active() {
		w.Frozen = &api.Freeze{Difference: f.Difference, Block: f.Block, Since: f.Since}
	}
	ds, err := h.chain.store.Deposits(ctx, w.Network, m.Agent, shownDeposits)
	for _, d := range ds {
		w.Deposits = append(w.Deposits, api.ChainDeposit{
			Agent: d.Agent, From: d.From.Hex(), Amount: d.Value, Tx: d.Tx.Hex(), Block: d.Block, State: string(d.State), Posting: d.Posting, SeenAt: d.SeenAt,
		})
	}
	return w, err
}

// fundUSDC asks the faucet of the dev chain. The faucet pays an id once, so the process
// may die after the payment: the caller repeats the id, and the watcher sees the transfer.
func (h *handlers) fundUSDC(ctx context.Context, m api.FundUSDC) (api.FundedUSDC, error) {
	if err := h.chain.ready(); err != nil {
		return api.FundedUSDC{}, err
	}
	if h.chain.client.Network() != chain.Dev {
		return api.FundedUSDC{}, &api.Error{
			Code: api.Denied, Message: "only the dev chain has a faucet", Next: "send USDC to the agent's address: anima wallet show " + m.Agent,
		}
	}
	if m.Agent == "" || m.ID == "" || len(m.ID) > 200 || m.Amount <= 0 { // without a name the keeper has a wallet, too: that of its probe
		return api.FundedUSDC{}, &api.Error{Code: api.Invalid, Message: "the agent, the id or the amount is not valid", Next: "name an agent, an id of 1 to 200 bytes and an amount above 0"}
	}
	address, err := h.wallets.Address(ctx, m.Agent)
	if err != nil {
		return api.FundedUSDC{}, err
	}
	tx, err := h.chain.client.Faucet(ctx, common.HexToAddress(address), m.Amount, m.Agent+"/"+m.ID)
	if err != nil {
		return api.FundedUSDC{}, err
	}
	// The deposit is seen now, not after the next poll. A failure is repeated by the watcher.
	if _, err := h.chain.pass(ctx); err != nil {
		h.log.WarnContext(ctx, "deposit not seen yet", "agent", m.Agent, "err", err)
	}
	return api.FundedUSDC{Address: address, Tx: tx}, nil
}

func (h *handlers) reconcileLedger(ctx context.Context, m api.ReconcileLedger) (api.Reconciliation, error) {
	if err := h.chain.ready(); err != nil {
		return api.Reconciliation{}, err
	}
	at, err := h.chain.pass(ctx)
	if err != nil {
		return api.Reconciliation{}, err
	}
	r, err := h.chain.reconciler.Run(ctx, at, m.Agent)
	if err != nil {
		return api.Reconciliation{}, err
	}
	answer := api.Reconciliation{Network: r.Network, Block: r.Block.Number, Hash: r.Block.Hash.Hex(), OK: true, Accounts: make([]api.Reconciled, len(r.Accounts))}
	for i, a := range r.Accounts {
		answer.OK = answer.OK && a.Difference == 0 && !a.Frozen
		answer.Accounts[i] = api.Reconciled{
			Agent: a.Agent, Address: a.Address.Hex(), Ledger: a.Ledger, Chain: a.Chain, Held: a.Held, Difference: a.Difference, Frozen: a.Frozen,
		}
		for _, u := range a.Used {
			answer.Accounts[i].Used = append(answer.Accounts[i].Used, u.Nonce.Hex())
		}
	}
	return answer, nil
}

func (h *handlers) resolveFreeze(ctx context.Context, m api.ResolveFreeze) (api.WalletState, error) {
	if err := h.chain.ready(); err != nil {
		return api.WalletState{}, err
	}
	if m.Note == "" || len(m.Note) > 1000 {
		return api.WalletState{}, &api.Error{Code: api.Invalid, Message: "the difference has no explanation", Next: "say in 1 to 1000 bytes why it is right"}
	}
	if err := h.chain.store.Resolve(ctx, h.chain.client.Network().Name, m.Agent, m.Note, h.now().UnixMicro()); err != nil {
		return api.WalletState{}, err
	}
	h.log.WarnContext(ctx, "an operator has accepted the difference between the ledger and the chain", "agent", m.Agent, "note", fmt.Sprintf("%.200q", m.Note))
	return h.getWallet(ctx, api.GetWallet{Agent: m.Agent})
}

// backupWallet returns the present wallet of an agent, or an earlier one by its address.
func (h *handlers) backupWallet(ctx context.Context, m api.BackupWallet) (api.WalletBackup, error) {
	name := m.Agent
	if m.Address != "" {
		if !api.IsAddress(m.Address) {
			return api.WalletBackup{}, &api.Error{Code: api.Invalid, Message: fmt.Sprintf("%.80q is not an address", m.Address), Next: walletsOf(m.Agent)}
		}
		if present, err := h.wallets.Address(ctx, m.Agent); err != nil {
			return api.WalletBackup{}, err
		} else if earlier := common.HexToAddress(m.Address).Hex(); earlier != present {
			name = wallet.Retired(m.Agent, earlier)
		}
	}
	w, err := h.wallets.Backup(ctx, name)
	if name != m.Agent && api.CodeOf(err) == api.NotFound { // the name is internal
		err = &api.Error{Code: api.NotFound, Message: m.Agent + " has and had no wallet " + m.Address, Next: walletsOf(m.Agent)}
	}
	return api.WalletBackup{Agent: m.Agent, Address: w.Address, Keystore: w.Keystore}, err
}

// walletsOf returns the advice for an address that is not one of an agent's wallets.
func walletsOf(agent string) string { return "anima wallet show " + agent + " shows its wallets" }

// restoreWallet opens the account too, so that the agent can be funded before it is
// applied. Both steps are idempotent.
func (h *handlers) restoreWallet(ctx context.Context, m api.RestoreWallet) (api.Account, error) {
	if err := h.ledger.Open(ctx, m.Agent); err != nil {
		return api.Account{}, err
	}
	address, err := h.wallets.Restore(ctx, m.Agent, m.Keystore)
	return api.Account{Agent: m.Agent, Address: address}, err
}
