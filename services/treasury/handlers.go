package treasury

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/wait"

	"github.com/anima-run/anima/services/treasury/internal/ledger"
	"github.com/anima-run/anima/services/treasury/internal/pay"
	"github.com/anima-run/anima/services/treasury/internal/wallet"
)

// faucet is the source of deposits for development.
const faucet = "faucet"

type handlers struct {
	cfg     Config
	log     *slog.Logger
	now     func() time.Time
	ledger  *ledger.Ledger
	wallets wallet.Signer
	tel     *instruments

	directory directory
	outside   *outside  // without a client if no provider is configured
	link      chainLink // nil without a chain
	topups    *topups
	payments  pay.Store
	payer     *pay.Payer // nil without a chain
	chain     *onchain   // nil without a chain
	shop      *shop      // nil without a chain
}

func (h *handlers) openAccount(ctx context.Context, m api.OpenAccount) (api.Account, error) {
	if api.IsAddress(m.Agent) { // the account of that address
		return api.Account{}, &api.Error{Code: api.Invalid, Message: "an agent cannot have an address as its id", Next: "choose another name"}
	}
	if err := h.ledger.Open(ctx, m.Agent); err != nil {
		return api.Account{}, err
	}
	address, err := h.wallets.Create(ctx, m.Agent)
	return api.Account{Agent: m.Agent, Address: address}, err
}

func (h *handlers) getBalance(ctx context.Context, m api.GetBalance) (api.Balance, error) {
	b, err := h.ledger.Balance(ctx, m.Agent)
	if err != nil {
		return api.Balance{}, err
	}
	address, err := h.addressOf(ctx, m.Agent)
	return api.Balance{
		Agent: b.Agent, Address: address, Available: b.Available, Held: b.Held, Tier: b.Tier(),
		Entries: b.Entries, At: h.now().UnixMicro(), USDC: b.USDC, USDCHeld: b.USDCHeld, Debt: b.Debt, USDCDebt: b.USDCDebt,
	}, err
}

func (h *handlers) hold(ctx context.Context, m api.Hold) (api.HoldState, error) {
	if m.Asset == api.USDC {
		if err := h.chain.spendable(ctx, m.Agent); err != nil {
			h.tel.held(ctx, m.Category, err)
			return api.HoldState{}, err
		}
	}
	s, err := h.ledger.Hold(ctx, ledger.HoldRequest{
		ID: m.ID, Agent: m.Agent, Asset: m.Asset, Amount: m.Amount, Category: m.Category, Turn: m.Turn, ExpiresAt: m.ExpiresAt, Payee: m.Payee,
		Parent: bus.TraceParent(ctx), Session: m.Session, By: m.By, Domain: m.Domain, Chain: m.Chain, Facilitator: m.Facilitator, Owed: m.Owed,
	})
	h.tel.held(ctx, m.Category, err)
	return holdState(s), err
}

func (h *handlers) settle(ctx context.Context, m api.Settle) (api.HoldState, error) {
	s, err := h.ledger.Settle(ctx, ledger.SettleRequest{
		ID: m.ID, Amount: m.Amount, Payee: m.Payee, Memo: m.Memo, Parent: bus.TraceParent(ctx),
	})
	h.tel.settled(ctx, err)
	return holdState(s), err
}

func (h *handlers) settleMany(ctx context.Context, m api.SettleMany) (api.Settled, error) {
	if n := len(m.Settlements); n == 0 || n > api.MaxSettlements {
		return api.Settled{}, &api.Error{
			Code: api.Invalid, Message: fmt.Sprintf("%d settlements cannot be made at once", n),
			Next: fmt.Sprintf("send 1 to %d", api.MaxSettlements),
		}
	}
	requests := make([]ledger.SettleRequest, len(m.Settlements))
	for i, s := range m.Settlements {
		requests[i] = ledger.SettleRequest{ID: s.ID, Amount: s.Amount, Payee: s.Payee, Memo: s.Memo, Parent: s.TraceParent}
		if s.TraceParent == "" {
			requests[i].Parent = bus.TraceParent(ctx)
		}
	}
	all, funds, err := h.ledger.SettleMany(ctx, requests)
	if err != nil {
		h.tel.settled(ctx, err)
		return api.Settled{}, err
	}
	answer := api.Settled{Results: make([]api.SettleResult, len(all)), Funds: make([]api.AgentFunds, len(funds))}
	for i, s := range all {
		h.tel.settled(ctx, s.Err)
		if s.Err == nil {
			state := holdState(s.State)
			answer.Results[i].Hold = &state
			continue
		}
		if answer.Results[i].Error = api.Wire(s.Err); answer.Results[i].Error.Code == api.Internal {
			h.log.ErrorContext(ctx, "hold not settled", "hold", requests[i].ID, "err", s.Err)
		}
	}
	for i, f := range funds {
		answer.Funds[i] = api.AgentFunds{Agent: f.Agent, Funds: api.Funds{Available: f.Available, Held: f.Held, Tier: f.Tier()}}
	}
	return answer, nil
}

func (h *handlers) release(ctx context.Context, m api.Release) (api.HoldState, error) {
	s, err := h.ledger.Release(ctx, m.ID, m.Reason, bus.TraceParent(ctx))
	return holdState(s), err
}

func (h *handlers) listHolds(ctx context.Context, m api.ListHolds) (api.Holds, error) {
	hs, err := h.ledger.Holds(ctx, ledger.HoldFilter{Agent: m.Agent, Category: m.Category, Status: m.Status, Limit: m.Limit})
	list := api.Holds{Holds: make([]api.HoldState, len(hs))}
	for i, s := range hs {
		list.Holds[i] = holdState(s)
	}
	return list, err
}

func (h *handlers) getSpent(ctx context.Context, m api.GetSpent) (api.Spent, error) {
	paid, held, err := h.ledger.Spent(ctx, m.Agent, m.Turn, m.Category)
	return api.Spent{Paid: paid, Held: held}, err
}

func holdState(s ledger.HoldState) api.HoldState {
	return api.HoldState{
		ID: s.ID, Agent: s.Agent, Status: s.Status, Amount: s.Amount, Settled: s.Settled, Available: s.Available, Tier: s.Tier,
		ExpiresAt: s.ExpiresAt, Asset: s.Asset, Category: s.Category, Turn: s.Turn, Payee: s.Payee,
	}
}

func (h *handlers) deposit(ctx context.Context, m api.Deposit) (api.Posted, error) {
	switch {
	case m.Source != faucet:
		return api.Posted{}, &api.Error{
			Code: api.Denied, Message: fmt.Sprintf("deposits from %.40q are not accepted", m.Source),
			Next: `use the source "faucet", which is for development only`,
		}
	case !h.cfg.Faucet:
		return api.Posted{}, &api.Error{
			Code: api.Denied, Message: "the faucet is disabled",
			Next: "set ANIMA_TREASURY_FAUCET=true to allow deposits for development, or transfer credits from another agent",
		}
	}
	t, err := h.ledger.Deposit(ctx, ledger.DepositRequest{
		ID: m.ID, Agent: m.Agent, Amount: m.Amount, Source: m.Source, Memo: m.Memo, Parent: bus.TraceParent(ctx),
	})
	return posted(&t), err
}

func (h *handlers) transfer(ctx context.Context, m api.Transfer) (api.Posted, error) {
	t, err := h.ledger.Transfer(ctx, ledger.TransferRequest{
		ID: m.ID, From: m.From, To: m.To, Amount: m.Amount, Memo: m.Memo, Parent: bus.TraceParent(ctx),
	})
	h.tel.transferred(ctx, err)
	return posted(&t), err
}

func (h *handlers) listEntries(ctx context.Context, m api.ListEntries) (api.Entries, error) {
	ts, more, err := h.ledger.Transactions(ctx, m.Agent, m.After, m.Limit)
	list := api.Entries{Entries: make([]api.Posted, len(ts)), More: more}
	for i := range ts {
		list.Entries[i] = posted(&ts[i])
	}
	return list, err
}

func (h *handlers) signMessage(ctx context.Context, m api.SignMessage) (api.Signature, error) {
	s, err := h.wallets.SignMessage(ctx, m.Agent, m.To, m.Content, m.SignedAt)
	return api.Signature{From: s.From, Signature: s.Signature}, err
}

// sweepLead is how long a hold that expired before treasury started stays active after the
// start. A hold can be settled until it is released: the services that could not settle
// theirs in the meantime repeat it every 2 s.
const sweepLead = 15 * time.Second

// sweep periodically releases expired holds. A failed sweep is repeated by the next one.
func (h *handlers) sweep(ctx context.Context) error {
	started := h.now()
	for ctx.Err() == nil {
		h.expire(ctx, started)
		_ = wait.For(ctx, h.cfg.Sweep) // the loop ends with ctx
	}
	return nil
}

// expire releases the expired holds of a treasury that started at a time; see [sweepLead].
func (h *handlers) expire(ctx context.Context, started time.Time) {
	after := started.UnixMicro()
	if h.now().Sub(started) >= sweepLead {
		after = 0
	}
	n, err := h.ledger.Expire(ctx, after)
	if err != nil && ctx.Err() == nil {
		h.log.WarnContext(ctx, "expired holds not released, retrying", "err", err)
	}
	if n > 0 {
		h.log.InfoContext(ctx, "holds expired", "count", n)
	}
}
