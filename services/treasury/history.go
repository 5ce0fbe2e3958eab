package treasury

import (
	"context"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/treasury/internal/ledger"
)

// maxExport is the most transactions in a page of an export: with balances they are
// larger than in a list.
const maxExport = 200

func (h *handlers) verifyLedger(ctx context.Context, _ api.VerifyLedger) (api.LedgerReport, error) {
	return h.verify(ctx, nil)
}

// verifyLedgerV2 sends the progress after each thousand transactions. If the caller is
// gone, send fails and the verification ends. It changes nothing, so a crash needs no
// repair: the caller begins again.
func (h *handlers) verifyLedgerV2(ctx context.Context, _ api.VerifyLedgerV2, send func(api.VerifyProgress) error) (api.LedgerReport, error) {
	return h.verify(ctx, func(done, all int64) error { return send(api.VerifyProgress{Done: done, All: all}) })
}

func (h *handlers) verify(ctx context.Context, progress func(done, all int64) error) (api.LedgerReport, error) {
	r, err := h.ledger.Verify(ctx, progress)
	if err != nil {
		return api.LedgerReport{}, err
	}
	if len(r.Faults) > 0 {
		h.log.ErrorContext(ctx, "ledger verification found faults", "faults", len(r.Faults), "first", r.Faults[0])
	}
	return report(r), nil
}

func (h *handlers) getBalanceAt(ctx context.Context, m api.GetBalanceAt) (api.BalanceAt, error) {
	if (m.Seq > 0) == (m.At > 0) || m.Seq < 0 || m.At < 0 {
		return api.BalanceAt{}, &api.Error{Code: api.Invalid, Message: "a point of the ledger is a number or a time", Next: "set either seq or at"}
	}
	point := func() (ledger.Point, error) { return h.ledger.PointAt(ctx, m.At) }
	if m.Seq > 0 {
		point = func() (ledger.Point, error) { return h.ledger.PointOf(ctx, m.Seq) }
	}
	p, err := point()
	if err != nil {
		return api.BalanceAt{}, err
	}
	b, err := h.ledger.BalanceAt(ctx, m.Agent, p)
	return api.BalanceAt{
		Agent: b.Agent, Seq: p.Seq, At: p.At, Available: b.Available, Held: b.Held, Tier: b.Tier(),
		USDC: b.USDC, USDCHeld: b.USDCHeld, Debt: b.Debt, USDCDebt: b.USDCDebt,
	}, err
}

func (h *handlers) exportLedger(ctx context.Context, m api.ExportLedger) (api.LedgerPage, error) {
	if m.After < 0 || m.Since < 0 || m.Until < 0 {
		return api.LedgerPage{}, &api.Error{Code: api.Invalid, Message: "the bounds of an export are not negative", Next: "leave a bound out instead"}
	}
	after := m.After
	if m.Since > 0 {
		p, err := h.ledger.PointAt(ctx, m.Since-1)
		if err != nil {
			return api.LedgerPage{}, err
		}
		after = max(after, p.Seq)
	}
	ts, more, err := h.ledger.Transactions(ctx, m.Agent, after, min(m.Limit, maxExport))
	page := api.LedgerPage{Entries: make([]api.LedgerEntry, 0, len(ts))}
	for i := range ts {
		if m.Until > 0 && ts[i].At >= m.Until {
			return page, err
		}
		page.Entries = append(page.Entries, entry(&ts[i]))
	}
	if more {
		page.Next = ts[len(ts)-1].Seq
	}
	return page, err
}

func entry(t *ledger.Transaction) api.LedgerEntry {
	e := api.LedgerEntry{
		Seq: t.Seq, ID: t.ID, Kind: string(t.Kind), Agent: t.Agent, At: t.At, Memo: t.Memo, Turn: t.Turn, Trace: t.Trace,
		Previous: t.Previous.String(), Hash: t.Hash.String(), Lines: make([]api.LedgerLine, len(t.Lines)),
	}
	for i, l := range t.Lines {
		e.Lines[i] = api.LedgerLine{Account: l.Account, Asset: ledger.AssetOf(l.Account), Amount: l.Amount, Balance: l.Balance}
	}
	return e
}
