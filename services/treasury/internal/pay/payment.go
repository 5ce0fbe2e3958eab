// Package pay makes requests over HTTP for agents and pays for them, by x402
// (docs/x402.md, Paying). It decides which offer is paid and what happens after each
// outcome. It must not decide whether an agent may pay, which policy and the limits of
// the ledger do, and it has no keys.
//
// A payment is a row that is written before each step. The authorization is stored before
// it is sent, and is sent unchanged again, so that a lost answer never leads to a second
// payment. After an unclear outcome the chain decides, see [Payer.Reconcile].
package pay

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/services/treasury/internal/chain"
	"github.com/anima-run/anima/services/treasury/internal/x402"
)

// Payment is a request of an agent with its payment. Times are Unix microseconds, the
// window has seconds.
type Payment struct {
	ID      string
	Agent   string
	Session string
	Turn    string
	By      api.PrincipalKind // principal of the turn; "": unknown
	Request string            // hash of the request
	Method  string
	URL     string
	State   api.PaymentState

	// The chosen offer; Network is "" before one is chosen.
	Network     string // CAIP-2
	Payee       string
	Amount      api.Micros
	Payer       string
	Nonce       string // 0x and 64 hex digits
	ValidAfter  int64
	ValidBefore int64
	Offer       string // JSON, see quote
	Facilitator string // host, as the offer names it; "": it names none

	// The authorization as it is sent; "" before it is signed.
	Header string
	Value  string

	Transaction string
	Reason      string // why it has failed or is not settled; "" otherwise
	Answer      Answer

	// Block is the block at which the chain said last that the authorization is used. The
	// zero value is none; those of earlier releases are not compared with the chain.
	Block    chain.Block
	Reopened int64 // how often a reorganization of the chain has removed the settlement

	Posted    bool  // the hold has ended
	BusyUntil int64 // a process works on it until then
	NextAt    int64 // when it is reconciled; 0: never
	Attempts  int64 // of the reconciliation since the last change
	CreatedAt int64
	UpdatedAt int64
	Parent    string // W3C traceparent of the request
	Own       bool   // of the request; it is not stored, because only a request holds money
}

// Answer is the answer of a seller. Status 0 means that none is stored.
type Answer struct {
	Status      int
	ContentType string
	Body        []byte
	Cut         bool // the body was longer than api.MaxPaidBody
}

// final reports whether no request changes the state, and no reconciliation unless a
// reorganization removes the settlement.
func (p *Payment) final() bool {
	switch p.State {
	case api.PaymentSettled, api.PaymentExpired, api.PaymentFailed, api.PaymentFree:
		return true
	case api.PaymentIntended, api.PaymentHeld, api.PaymentSigned, api.PaymentSubmitted, api.PaymentUnknown:
	}
	return false
}

// ended reports whether a repeated request has the stored result. A settled payment whose
// answer is lost, or says that the seller has failed, has not: the seller may have it now.
func (p *Payment) ended() bool {
	answered := p.Answer.Status > 0 && p.Answer.Status < http.StatusInternalServerError
	if p.State == api.PaymentSettled || p.Value != "" && !p.final() {
		return answered
	}
	return p.final()
}

// Hold returns the id of the hold in the ledger. A payment whose settlement a
// reorganization has removed has another one.
func (p *Payment) Hold() string { return p.holdOf(p.Reopened + 1) }

// Undone returns the id of the hold before, "" if no settlement was removed.
func (p *Payment) Undone() string {
	if p.Reopened == 0 {
		return ""
	}
	return p.holdOf(p.Reopened)
}

// holdOf returns the id of the n-th hold.
func (p *Payment) holdOf(n int64) string {
	if n <= 1 {
		return "x402/" + p.ID
	}
	return fmt.Sprintf("x402.%d/%s", n, p.ID)
}

// Store keeps payments. It must be safe for concurrent use, also by several processes.
type Store interface {
	// ClaimPayment stores p unless there is a payment with its id. It returns the stored
	// payment, and whether the caller has the claim until p.BusyUntil: not if another has it
	// at p.UpdatedAt.
	ClaimPayment(ctx context.Context, p Payment) (stored Payment, claimed bool, err error)
	// SavePayment stores the state of a payment whose claim ends at claim, and its new
	// claim, p.BusyUntil. Errors: [api.Conflict] if another has the claim.
	SavePayment(ctx context.Context, p Payment, claim int64) error
	// Payment returns a payment. Errors: [api.NotFound].
	Payment(ctx context.Context, id string) (Payment, error)
	// Payments lists the payments of an agent ("": of all) in a state ("": any), the newest
	// first, that were created before a time.
	Payments(ctx context.Context, agent string, state api.PaymentState, before int64, limit int) ([]Payment, error)
	// DuePayments returns the ids of payments to reconcile at a time that nobody works on.
	DuePayments(ctx context.Context, at int64, limit int) ([]string, error)
	// RecheckPayments makes the settled payments due at a time whose blocks are not final.
	RecheckPayments(ctx context.Context, at int64) error
}

// Money holds the USDC of payments in the ledger. Each method may be repeated.
type Money interface {
	// Hold reserves the amount of p. host is the host that is paid.
	Hold(ctx context.Context, p *Payment, host string, expires int64) error
	// Settle pays the hold of p to its payee.
	Settle(ctx context.Context, p *Payment) error
	// Release ends the hold of p, if there is one.
	Release(ctx context.Context, p *Payment, reason string) error
	// Reopen undoes the settlement of the hold p.Undone and holds the money again.
	Reopen(ctx context.Context, p *Payment, expires int64) error
}

// Signer signs authorizations with the wallets of agents.
type Signer interface {
	Address(ctx context.Context, agent string) (common.Address, error)
	// Sign signs an authorization that t permits. An error that is Denied is final.
	Sign(ctx context.Context, agent string, a x402.Authorization, t x402.Terms, now time.Time) (x402.Signature, error)
}

// Chain is the access to the networks. Its errors mean that the chain did not answer.
type Chain interface {
	// State reports whether an authorization was used or cancelled, by the token's
	// authorizationState, and the block for which it says so.
	State(ctx context.Context, n x402.Network, payer common.Address, nonce [32]byte) (used bool, at chain.Block, err error)
	// Stands reports whether a block is part of the chain, and whether it is final too: no
	// reorganization removes it.
	Stands(ctx context.Context, n x402.Network, b chain.Block) (part, final bool, err error)
}
