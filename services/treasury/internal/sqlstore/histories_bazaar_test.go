package sqlstore_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/services/treasury/internal/ledger"
	"github.com/anima-run/anima/services/treasury/internal/pay"
	"github.com/anima-run/anima/services/treasury/internal/x402"
	"github.com/anima-run/anima/services/treasury/internal/x402/x402test"
)

// sellers are the kinds of sellers in the market, which are the first part of the path.
// The second part is the price.
const (
	honest  = "honest"  // settles, and answers
	late    = "late"    // answers, and may settle later
	liar    = "liar"    // answers with the receipt of a settlement that never happens
	refuser = "refuser" // demands the payment again
)

const (
	marketPayee   = "0x00000000000000000000000000000000000000aa"
	marketTimeout = 300 // seconds to pay
)

// bazaar is the outside of the histories: sellers and a chain, which is new in each
// history. One payment is made at a time.
type bazaar struct {
	*x402test.Chain
	t       *testing.T
	url     string
	now     func() time.Time
	wallet  *x402test.Payer // of all agents
	waiting []x402.Payment  // at sellers that settle late
	removed int             // settlements, by reorganizations
}

func newBazaar(t *testing.T, now func() time.Time) *bazaar {
	t.Helper()
	m := &bazaar{t: t, now: now, wallet: x402test.NewPayer(t)}
	srv := httptest.NewServer(m)
	t.Cleanup(srv.Close)
	m.url = srv.URL
	return m
}

// open begins a new chain.
func (m *bazaar) open() {
	m.Chain, m.waiting, m.removed = x402test.NewChain(x402.BaseSepolia, m.wallet.Address(), api.MaxMicros), nil, 0
	m.Clock = m.now
	m.Open(true)
}

// ServeHTTP serves the sellers.
func (m *bazaar) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	seller, price, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	payment, ok, err := x402.ReadPayment(r.Header)
	if !ok || err != nil || seller == refuser {
		amount, _ := strconv.Atoi(price)
		body := x402.Demand{Price: x402.Price{Terms: x402.Terms{
			Network: x402.BaseSepolia, PayTo: common.HexToAddress(marketPayee), Amount: api.Micros(amount), Timeout: marketTimeout,
		}}}.Write(w.Header())
		w.WriteHeader(http.StatusPaymentRequired)
		_, _ = w.Write(body) // a buffer of the test
		return
	}
	receipt := x402.Receipt{Success: true, Transaction: "0x1"}
	switch seller {
	case honest:
		m.settle(payment)
	case late:
		m.waiting = append(m.waiting, payment)
		receipt.Success = false
	}
	name, value := receipt.Header(&payment, x402.BaseSepolia)
	w.Header().Set(name, value)
	_, _ = w.Write([]byte("thanks"))
}

// settle settles a payment unless its time is over or it is settled, as the token does.
func (m *bazaar) settle(p x402.Payment) {
	if m.now().Unix() >= p.Authorization.ValidBefore {
		return
	}
	if _, _, err := m.Transfer(context.Background(), p.Authorization, p.Signature); err != nil {
		m.t.Error(err)
	}
}

// settleLate settles what waits.
func (m *bazaar) settleLate() {
	for _, p := range m.waiting {
		m.settle(p)
	}
	m.waiting = nil
}

// settled reports whether the payment with a nonce is settled. No nonce is that of no
// payment.
func (m *bazaar) settled(nonce string) bool {
	if nonce == "" {
		return false
	}
	used, err := m.Used(context.Background(), m.wallet.Address(), common.HexToHash(nonce))
	return used && err == nil
}

// crashingSigner signs with the wallet of the market.
type crashingSigner struct {
	market *bazaar
	*fuse
}

// Address implements [pay.Signer].
func (s crashingSigner) Address(context.Context, string) (common.Address, error) {
	return s.market.wallet.Address(), s.await()
}

// Sign implements [pay.Signer].
func (s crashingSigner) Sign(_ context.Context, _ string, a x402.Authorization, t x402.Terms, _ time.Time) (sig x402.Signature, err error) {
	err = s.step(func() error {
		sig = s.market.wallet.Sign(s.market.t, a, t.Network)
		return nil
	})
	return sig, err
}

// crashingPayments is a store of payments of a process with a fuse.
type crashingPayments struct {
	pay.Store
	*fuse
}

func (c crashingPayments) ClaimPayment(ctx context.Context, p pay.Payment) (stored pay.Payment, claimed bool, err error) {
	err = c.step(func() (err error) {
		stored, claimed, err = c.Store.ClaimPayment(ctx, p)
		return err
	})
	return stored, claimed, err
}

func (c crashingPayments) SavePayment(ctx context.Context, p pay.Payment, claim int64) error {
	return c.step(func() error { return c.Store.SavePayment(ctx, p, claim) })
}

func (c crashingPayments) DuePayments(ctx context.Context, at int64, limit int) (ids []string, err error) {
	err = c.step(func() (err error) {
		ids, err = c.Store.DuePayments(ctx, at, limit)
		return err
	})
	return ids, err
}

// usdc holds the money of payments in the ledger, as the service does.
type usdc struct{ *ledger.Ledger }

// Hold implements [pay.Money].
func (u usdc) Hold(ctx context.Context, p *pay.Payment, host string, expires int64) error {
	s, err := u.Ledger.Hold(ctx, ledger.HoldRequest{
		ID: p.Hold(), Agent: p.Agent, Asset: api.USDC, Amount: p.Amount, Category: api.CategoryX402, Turn: p.Turn, ExpiresAt: expires,
		Payee: ledger.PayeeUSDC(p.Payee), Session: p.Session, By: p.By, Domain: host, Chain: p.Network,
	})
	if err == nil && s.Status != api.HoldActive {
		err = api.Errorf(api.Conflict, "the hold %s is %s", p.Hold(), s.Status)
	}
	return err
}

// Settle implements [pay.Money].
func (u usdc) Settle(ctx context.Context, p *pay.Payment) error {
	_, err := u.Ledger.Settle(ctx, ledger.SettleRequest{ID: p.Hold(), Amount: p.Amount, Payee: ledger.PayeeUSDC(p.Payee)})
	return err
}

// Release implements [pay.Money].
func (u usdc) Release(ctx context.Context, p *pay.Payment, reason string) error {
	_, err := u.Ledger.Release(ctx, p.Hold(), reason, "")
	if api.CodeOf(err) == api.NotFound { // the process stopped before it was held
		err = nil
	}
	return err
}

// Reopen implements [pay.Money].
func (u usdc) Reopen(ctx context.Context, p *pay.Payment, expires int64) error {
	_, err := u.Ledger.Reopen(ctx, ledger.ReopenRequest{Hold: p.Undone(), As: p.Hold(), ExpiresAt: expires})
	return err
}
