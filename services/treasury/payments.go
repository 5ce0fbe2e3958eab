package treasury

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ethereum/go-ethereum/common"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/executor"
	"github.com/anima-run/anima/pkg/wait"

	"github.com/anima-run/anima/services/treasury/internal/ledger"
	"github.com/anima-run/anima/services/treasury/internal/pay"
	"github.com/anima-run/anima/services/treasury/internal/wallet"
	"github.com/anima-run/anima/services/treasury/internal/x402"
)

// noChain is the error of everything that needs a chain, where none is configured.
func noChain() error {
	return &api.Error{
		Code: api.Denied, Reason: api.ReasonNoChain, Message: "treasury has no chain, so nothing can be paid in USDC",
		Next: "set ANIMA_TREASURY_RPC_URL and ANIMA_TREASURY_NETWORK; see docs/x402.md",
	}
}

// pay makes a payment for the operator. The account is looked up first: without it the
// request would be made for an agent that does not exist, as long as its seller wants no
// money.
func (h *handlers) pay(ctx context.Context, m api.Pay) (api.Payment, error) {
	if h.payer == nil {
		return api.Payment{}, noChain()
	}
	if _, err := h.ledger.Balance(ctx, m.Agent); err != nil {
		return api.Payment{}, err
	}
	p, err := h.fetch(ctx, pay.Request{
		ID: m.ID, Agent: m.Agent, Session: m.Session, Turn: m.Turn, By: m.By, Method: m.Method, URL: m.URL, Header: m.Headers, Body: m.Body, Max: m.Max,
		Parent: bus.TraceParent(ctx),
	})
	return paymentOf(&p, true), err
}

func (h *handlers) fetch(ctx context.Context, r pay.Request) (pay.Payment, error) {
	if h.payer == nil {
		return pay.Payment{}, noChain()
	}
	return h.payer.Pay(ctx, r)
}

func (h *handlers) getPayment(ctx context.Context, m api.GetPayment) (api.Payment, error) {
	p, err := h.payments.Payment(ctx, m.ID)
	return paymentOf(&p, true), err
}

// Limits of a list of payments.
const (
	defaultPayments = 50
	maxPayments     = 250
)

func (h *handlers) listPayments(ctx context.Context, m api.ListPayments) (api.Payments, error) {
	if m.State != "" && !slices.Contains(api.PaymentStates(), m.State) {
		return api.Payments{}, &api.Error{Code: api.Invalid, Message: fmt.Sprintf("%.40q is not a state of payments", m.State), Next: fmt.Sprintf("use one of %v", api.PaymentStates())}
	}
	limit := min(cmp.Or(max(m.Limit, 0), defaultPayments), maxPayments)
	before := cmp.Or(m.Before, h.now().UnixMicro()+1)
	all, err := h.payments.Payments(ctx, m.Agent, m.State, before, limit+1)
	list := api.Payments{Payments: []api.Payment{}, More: len(all) > limit}
	for i := range all[:min(len(all), limit)] {
		list.Payments = append(list.Payments, paymentOf(&all[i], false))
	}
	return list, err
}

// paymentOf returns a payment in the form of the contract, with the answer of the seller
// or without. The authorization is not part of it: who has it can take the money.
func paymentOf(p *pay.Payment, full bool) api.Payment {
	v := api.Payment{
		ID: p.ID, Agent: p.Agent, Session: p.Session, Turn: p.Turn, Method: p.Method, URL: p.URL, State: p.State, Amount: p.Amount, Network: p.Network,
		Payer: p.Payer, Payee: p.Payee, Facilitator: p.Facilitator, Nonce: p.Nonce, ValidBefore: p.ValidBefore, Transaction: p.Transaction, Reason: p.Reason,
		Status: p.Answer.Status, ContentType: p.Answer.ContentType, Cut: p.Answer.Cut, CreatedAt: p.CreatedAt, UpdatedAt: p.UpdatedAt,
	}
	if full {
		v.Body = p.Answer.Body
	}
	return v
}

// reconcileInterval is how often payments without an outcome are looked for.
const reconcileInterval = time.Second

// reconcile periodically continues the payments without an outcome. A failed round is
// repeated by the next one.
func (h *handlers) reconcile(ctx context.Context) error {
	if h.payer == nil {
		return nil
	}
	wait.Every(ctx, reconcileInterval, func() {
		n, err := h.payer.Reconcile(ctx)
		if err != nil && ctx.Err() == nil {
			h.log.WarnContext(ctx, "payments not reconciled, retrying", "err", err)
		}
		if n > 0 {
			h.log.InfoContext(ctx, "payments reconciled", "count", n)
		}
	})
	return nil
}

// usdc implements [pay.Money] with the ledger.
type usdc struct {
	ledger *ledger.Ledger
	chain  *onchain
}

func (u usdc) Hold(ctx context.Context, p *pay.Payment, _ string, expires int64) error {
	if err := u.chain.spendable(ctx, p.Agent); err != nil {
		return err
	}
	category := api.CategoryX402
	if p.Own { // treasury's own purpose is to buy credits for the agent
		category = ledger.CategoryExchange
	}
	s, err := u.ledger.Hold(ctx, ledger.HoldRequest{
		ID: p.Hold(), Agent: p.Agent, Asset: api.USDC, Amount: p.Amount, Category: category, Turn: p.Turn, ExpiresAt: expires,
		Payee: ledger.PayeeUSDC(p.Payee), Parent: p.Parent, Session: p.Session, By: p.By, Domain: hostOf(p.URL), Chain: p.Network, Facilitator: p.Facilitator,
		Exchange: p.Own,
	})
	if err == nil && s.Status != api.HoldActive {
		err = api.Errorf(api.Conflict, "the hold %s is %s", p.Hold(), s.Status)
	}
	return err
}

// hostOf returns the host of an address for the allow-list of domains, "" if it has none.
func hostOf(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return u.Hostname()
}

func (u usdc) Settle(ctx context.Context, p *pay.Payment) error {
	_, err := u.ledger.Settle(ctx, ledger.SettleRequest{
		ID: p.Hold(), Amount: p.Amount, Payee: ledger.PayeeUSDC(p.Payee), Memo: p.Method + " " + p.URL[:min(len(p.URL), 500)], Parent: p.Parent,
	})
	return err
}

func (u usdc) Release(ctx context.Context, p *pay.Payment, reason string) error {
	_, err := u.ledger.Release(ctx, p.Hold(), reason, p.Parent)
	if api.CodeOf(err) == api.NotFound { // the process stopped before it was held
		err = nil
	}
	return err
}

func (u usdc) Reopen(ctx context.Context, p *pay.Payment, expires int64) error {
	_, err := u.ledger.Reopen(ctx, ledger.ReopenRequest{Hold: p.Undone(), As: p.Hold(), ExpiresAt: expires, Reason: p.Reason, Parent: p.Parent})
	return err
}

// walletSigner implements [pay.Signer] with the wallets. The rule comes from the chosen
// terms, and the signer compares the typed data with it.
type walletSigner struct{ wallets wallet.Signer }

func (s walletSigner) Address(ctx context.Context, agent string) (common.Address, error) {
	address, err := s.wallets.Address(ctx, agent)
	return common.HexToAddress(address), err
}

func (s walletSigner) Sign(ctx context.Context, agent string, a x402.Authorization, t x402.Terms, now time.Time) (x402.Signature, error) {
	signed, err := s.wallets.SignTypedData(ctx, agent, a.TypedData(t.Network), wallet.Rule{
		Types: []string{wallet.TypeTransfer}, Name: t.Network.Token, Version: t.Network.Version, ChainID: uint64(t.Network.ChainID), //nolint:gosec // an id is positive
		Contract: t.Network.Asset, Payee: t.PayTo, MaxValue: t.Amount, MaxWindow: x402.MaxWindow, Now: now,
	})
	if err != nil {
		return x402.Signature{}, err
	}
	if signed.From != a.From.Hex() {
		return x402.Signature{}, fmt.Errorf("the wallet of agent %q is %s now, and the payment is from %s", agent, signed.From, a.From)
	}
	return x402.ParseSignature(signed.Signature)
}

// x402Tool makes a request for an agent and pays for it. The key of the call is the id of
// the payment, so a repeated call pays once and has the stored answer.
func (h *handlers) x402Tool(ctx context.Context, c executor.Call) (string, error) {
	var headers map[string]string
	if text := c.Args.String("headers"); text != "" {
		if err := json.Unmarshal([]byte(text), &headers); err != nil {
			return "", &api.Error{Code: api.Invalid, Message: "headers is not a JSON object of texts", Next: `write it like {"Accept":"text/plain"}`}
		}
	}
	p, err := h.fetch(ctx, pay.Request{
		ID: "tool/" + c.Key, Agent: c.Agent, Session: c.Session, Turn: c.Turn, By: c.By.Kind, Method: c.Args.String("method"), URL: c.Args.String("url"), Header: headers,
		Body: []byte(c.Args.String("body")), Parent: bus.TraceParent(ctx),
	})
	if err != nil {
		return "", err
	}
	return describe(&p), nil
}

// describe returns a payment for the model: what was paid, then the answer. The first
// line states the price and the host, from which the memory of the agent makes a fact.
func describe(p *pay.Payment) string {
	var b strings.Builder
	_, _ = fmt.Fprintf(&b, "HTTP %d %s", p.Answer.Status, http.StatusText(p.Answer.Status)) // a builder has no errors
	if u, err := url.Parse(p.URL); err == nil {
		b.WriteString(" from " + u.Hostname())
	}
	switch p.State {
	case api.PaymentFree, api.PaymentIntended:
		b.WriteString(", nothing was paid")
	case api.PaymentSettled:
		_, _ = fmt.Fprintf(&b, ", the price was %s, paid in USDC on %s to %s", p.Amount, p.Network, p.Payee)
	case api.PaymentUnknown, api.PaymentSubmitted, api.PaymentHeld, api.PaymentSigned, api.PaymentExpired, api.PaymentFailed:
		_, _ = fmt.Fprintf(&b, ", the price is %s in USDC on %s to %s; the chain has not confirmed the payment yet", p.Amount, p.Network, p.Payee)
	}
	b.WriteString("\n\n")
	switch {
	case p.Answer.Status == 0:
		b.WriteString("The answer of the seller is lost. Do not pay again.")
	case !utf8.Valid(p.Answer.Body):
		_, _ = fmt.Fprintf(&b, "The answer is not text: %d bytes of %s. It is stored as the payment %s.", len(p.Answer.Body), p.Answer.ContentType, p.ID)
	default:
		b.Write(p.Answer.Body)
	}
	return b.String()
}
