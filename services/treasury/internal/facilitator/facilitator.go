// Package facilitator verifies and settles x402 payments for sellers: it submits signed
// authorizations to the token, each at most once, and gives every seller that asks again
// the same answer. It must not take money itself, and must not decide what is sold.
//
// A settlement that has no outcome, because the process has crashed or the chain does not
// answer, is continued by the next request for it. The chain decides then:
// authorizationState says whether the money has moved.
package facilitator

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/failpoint"
	"github.com/anima-run/anima/pkg/wait"
	"github.com/anima-run/anima/services/treasury/internal/x402"
)

// Chain is the access to one network. Its errors mean that the chain did not answer. It
// must be safe for concurrent use.
type Chain interface {
	Network() x402.Network
	// Signer returns the address that sends the transactions.
	Signer() common.Address
	// Balance returns the amount of the token that an address has.
	Balance(ctx context.Context, of common.Address) (api.Micros, error)
	// Used reports whether an authorization was used or cancelled, by the token's
	// authorizationState.
	Used(ctx context.Context, payer common.Address, nonce [32]byte) (bool, error)
	// Transferred returns the transaction in which the token executed the authorization,
	// "" if there is none that moved its value to its payee.
	Transferred(ctx context.Context, a x402.Authorization) (string, error)
	// Transfer submits the authorization and waits until it is included in a block. It
	// returns the hash of the transaction, and whether it succeeded. A repeated call with
	// the same authorization may return an error, or submit a transaction that fails.
	Transfer(ctx context.Context, a x402.Authorization, s x402.Signature) (hash string, ok bool, err error)
}

// State is the state of a settlement.
type State string

// The states. Only a pending settlement changes.
const (
	Pending State = "pending" // a transaction may have been submitted
	Settled State = "settled"
	Refused State = "refused"
)

// Settlement is a stored settlement.
type Settlement struct {
	Key         string // network, payer and nonce
	Fingerprint string // of the payment and what it is for
	State       State
	Until       int64 // a pending one is in progress until then, Unix microseconds
	Receipt     x402.Receipt
	At          int64
}

// Store keeps settlements. It must be safe for concurrent use, also by several processes.
type Store interface {
	// ClaimSettlement stores s unless there is a settlement with its key. It also takes
	// over a pending one whose time has passed at s.At, if its fingerprint is the same. It
	// returns the stored settlement as it was before, and whether the caller has it now;
	// one that did not exist has the state "".
	ClaimSettlement(ctx context.Context, s Settlement) (before Settlement, claimed bool, err error)
	// SaveSettlement stores the outcome of a claimed settlement.
	SaveSettlement(ctx context.Context, s Settlement) error
	// DropSettlement removes a pending settlement of which nothing was submitted.
	DropSettlement(ctx context.Context, key string) error
}

// Times of one settlement. SettleTime is its limit; a claim is longer, so that two
// processes never submit the same authorization at the same time.
const (
	SettleTime = 30 * time.Second
	claimTime  = SettleTime + 15*time.Second
	pollTime   = 100 * time.Millisecond
)

// Facilitator settles payments on some networks. It is safe for concurrent use.
type Facilitator struct {
	store  Store
	log    *slog.Logger
	now    func() time.Time
	chains []Chain

	mu      sync.Mutex
	flights map[string]*flight
}

// flight is a settlement in progress in this process.
type flight struct {
	fingerprint string
	done        chan struct{} // closed when receipt and err are set
	receipt     x402.Receipt
	err         error
}

// New returns a facilitator for the chains.
func New(store Store, log *slog.Logger, now func() time.Time, chains ...Chain) *Facilitator {
	return &Facilitator{store: store, log: log, now: now, chains: chains, flights: map[string]*flight{}}
}

// Networks returns the networks on which payments are settled.
func (f *Facilitator) Networks() x402.Networks {
	var all x402.Networks
	for _, c := range f.chains {
		all = append(all, c.Network())
	}
	return all
}

// Supported returns what is settled.
func (f *Facilitator) Supported() x402.Supported {
	if len(f.chains) == 0 {
		return x402.Supported{Kinds: []x402.Kind{}, Extensions: []string{}, Signers: map[string][]string{}}
	}
	return x402.SupportedOf(f.Networks(), f.chains[0].Signer().Hex())
}

func (f *Facilitator) chain(n x402.Network) Chain {
	for _, c := range f.chains {
		if c.Network().ChainID == n.ChainID {
			return c
		}
	}
	return nil
}

// check verifies an order without the chain and returns its chain.
func (f *Facilitator) check(o *x402.Order) (Chain, x402.Terms, error) {
	terms, err := o.Terms(f.Networks())
	if err != nil {
		return nil, terms, err
	}
	return f.chain(terms.Network), terms, o.Payment.Verify(terms, f.now())
}

// ready asks the chain whether a payment can be executed now.
func (f *Facilitator) ready(ctx context.Context, c Chain, a *x402.Authorization) error {
	used, err := c.Used(ctx, a.From, a.Nonce)
	if err != nil {
		return err
	}
	if used {
		return &x402.Fault{Reason: x402.NonceUsed, Text: "the authorization was used or cancelled"}
	}
	balance, err := c.Balance(ctx, a.From)
	if err != nil {
		return err
	}
	if balance < a.Value {
		return &x402.Fault{Reason: x402.NoFunds, Text: fmt.Sprintf("the payer has %d of %d", balance, a.Value)}
	}
	return nil
}

// Verify reports whether a payment can be settled now. The error means that it could not
// be verified.
func (f *Facilitator) Verify(ctx context.Context, o x402.Order) (x402.Verdict, error) {
	c, _, err := f.check(&o)
	if err == nil {
		err = f.ready(ctx, c, &o.Payment.Authorization)
	}
	v := x402.Verdict{Valid: err == nil, Payer: o.Payment.Authorization.From.Hex()}
	if refusal, ok := errors.AsType[*x402.Fault](err); ok {
		v.Reason, v.Text = refusal.Reason, refusal.Text
		return v, nil
	}
	if err != nil {
		err = unavailable("the payment cannot be verified", err)
	}
	return v, err
}

// Settle settles a payment, once. Requests for the same payment of the same resource have
// the same answer, whether they are concurrent or later. Another request for the same
// nonce is refused. The error means that the outcome is not known: the request may be
// repeated.
func (f *Facilitator) Settle(ctx context.Context, o x402.Order) (x402.Receipt, error) {
	ctx, cancel := context.WithTimeout(ctx, SettleTime)
	defer cancel()
	key, print := f.key(&o), fingerprint(&o)
	f.mu.Lock()
	if other, ok := f.flights[key]; ok {
		f.mu.Unlock()
		select {
		case <-other.done:
		case <-ctx.Done():
			return x402.Receipt{}, ctx.Err()
		}
		if other.fingerprint != print {
			return f.refusal(&o, x402.NonceUsed), nil
		}
		return other.receipt, other.err
	}
	own := &flight{fingerprint: print, done: make(chan struct{})}
	f.flights[key] = own
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		delete(f.flights, key)
		f.mu.Unlock()
		close(own.done)
	}()
	// The caller may disconnect. Its settlement is finished, because others may wait for it.
	work, stop := context.WithTimeout(context.WithoutCancel(ctx), SettleTime)
	defer stop()
	own.receipt, own.err = f.settle(work, &o, key, print)
	return own.receipt, own.err
}

// settle continues or begins a settlement. If the process stops after the claim, the row
// is pending until its time has passed, and the next request asks the chain first.
func (f *Facilitator) settle(ctx context.Context, o *x402.Order, key, print string) (x402.Receipt, error) {
	before, err := f.claim(ctx, key, print)
	if err != nil {
		return x402.Receipt{}, err
	}
	a := &o.Payment.Authorization
	switch {
	case before.State != "" && before.Fingerprint != print:
		return f.refusal(o, x402.NonceUsed), nil
	case before.State == Settled || before.State == Refused:
		return before.Receipt, nil
	}
	s := Settlement{Key: key, Fingerprint: print, State: Pending}
	terms, err := o.Terms(f.Networks())
	if err != nil {
		return f.refuse(ctx, o, s, before, err)
	}
	c := f.chain(terms.Network)
	if before.State == Pending { // an earlier attempt may have submitted it
		hash, err := c.Transferred(ctx, *a)
		if err != nil {
			return x402.Receipt{}, f.unknown(ctx, s, err)
		}
		if hash != "" && o.Payment.Pays(terms) { // the earlier attempt may have ended before it verified the payment
			return f.settled(ctx, o, s, hash)
		}
	}
	if err = o.Payment.Verify(terms, f.now()); err == nil {
		err = f.ready(ctx, c, a)
	}
	if err != nil {
		return f.refuse(ctx, o, s, before, err)
	}
	type sent struct {
		hash string
		ok   bool
	}
	tx, err := failpoint.Value(ctx, failpoint.TreasuryTransfer, func(ctx context.Context) (tx sent, err error) {
		tx.hash, tx.ok, err = c.Transfer(ctx, *a, o.Payment.Signature)
		return tx, err
	})
	switch {
	case err != nil:
		return x402.Receipt{}, f.unknown(ctx, s, err)
	case tx.ok:
		return f.settled(ctx, o, s, tx.hash)
	case before.State == Pending:
		// The token has executed the transaction of the earlier attempt meanwhile, or the
		// node has it in its pool: the next request finds the transfer.
		return x402.Receipt{}, f.unknown(ctx, s, errors.New("the transaction of an earlier attempt may be included"))
	}
	// Another program may have submitted the authorization first. Then its nonce is used,
	// and this settlement has failed, although the payee has the money.
	s.State, s.Receipt = Refused, f.refusal(o, x402.TxFailed)
	s.Receipt.Transaction = tx.hash
	return s.Receipt, f.store.SaveSettlement(ctx, s)
}

// claim waits until the settlement is claimed or has an outcome.
func (f *Facilitator) claim(ctx context.Context, key, print string) (Settlement, error) {
	for {
		now := f.now()
		s := Settlement{Key: key, Fingerprint: print, State: Pending, At: now.UnixMicro(), Until: now.Add(claimTime).UnixMicro()}
		before, claimed, err := f.store.ClaimSettlement(ctx, s)
		if err != nil || claimed || before.State != Pending || before.Fingerprint != print {
			return before, err
		}
		if err := wait.For(ctx, pollTime); err != nil {
			return before, unavailable(noOutcome, err)
		}
	}
}

// settled stores that the transaction has moved the money. If the process stops before
// the row is written, the next request finds the transfer on the chain.
func (f *Facilitator) settled(ctx context.Context, o *x402.Order, s Settlement, hash string) (x402.Receipt, error) {
	s.State, s.Receipt = Settled, f.refusal(o, "")
	s.Receipt.Success, s.Receipt.Transaction = true, hash
	err := failpoint.Do(ctx, failpoint.TreasurySettlement, func(ctx context.Context) error { return f.store.SaveSettlement(ctx, s) })
	return s.Receipt, err
}

// refuse ends a settlement that was not submitted. A refusal that the next request may
// not repeat, such as missing funds, is not stored. While the transaction of an earlier
// attempt may still be included, there is no outcome.
func (f *Facilitator) refuse(ctx context.Context, o *x402.Order, s, before Settlement, cause error) (x402.Receipt, error) {
	refusal, ok := errors.AsType[*x402.Fault](cause)
	if !ok {
		return x402.Receipt{}, f.unknown(ctx, s, cause)
	}
	r := f.refusal(o, refusal.Reason)
	switch {
	case before.State != Pending:
		return r, f.store.DropSettlement(ctx, s.Key)
	case o.Payment.Authorization.ValidBefore > f.now().Unix()-int64(claimTime/time.Second):
		return x402.Receipt{}, f.unknown(ctx, s, cause)
	}
	s.State, s.Receipt = Refused, r
	return r, f.store.SaveSettlement(ctx, s)
}

// unknown ends the claim of a settlement without an outcome, so that the next request can
// continue it.
func (f *Facilitator) unknown(ctx context.Context, s Settlement, cause error) error {
	f.log.WarnContext(ctx, "settlement without an outcome", "payment", s.Key, "err", cause)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := f.store.SaveSettlement(ctx, s); err != nil { // Until is 0: it can be claimed at once
		f.log.WarnContext(ctx, "claim of a settlement not ended", "payment", s.Key, "err", err)
	}
	return unavailable(noOutcome, cause)
}

const noOutcome = "the outcome of the settlement is not known"

// unavailable returns the error for a payer, which is not authenticated: its message has
// neither the address of the RPC or the facilitator nor the cause, which are for the log.
func unavailable(text string, cause error) error {
	return fmt.Errorf("%w: %w", &api.Error{
		Code: api.Unavailable, Message: text, Next: "repeat the request with the same payment", RetryAfter: 1000,
	}, cause)
}

// refusal returns a receipt with a reason.
func (f *Facilitator) refusal(o *x402.Order, reason x402.Reason) x402.Receipt {
	return x402.Receipt{Reason: reason, Network: o.Payment.Network, Payer: o.Payment.Authorization.From.Hex()}
}

// key returns the identity of a payment: no two transfers have the same network, payer
// and nonce. A network has one id in both versions.
func (f *Facilitator) key(o *x402.Order) string {
	a := &o.Payment.Authorization
	network := o.Payment.Network
	if n, ok := f.Networks().Find(network); ok {
		network = n.ID()
	}
	return network + "/" + a.From.Hex() + "/" + hex.EncodeToString(a.Nonce[:])
}

// fingerprint returns a hash of the payment and of the resource it is for.
func fingerprint(o *x402.Order) string {
	a := &o.Payment.Authorization
	content := a.StructHash()
	h := sha256.New()
	for _, part := range []string{
		string(content[:]), o.Payment.Signature.String(), o.Offer.Asset.Hex(), o.Offer.PayTo.Hex(),
		x402.FormatAmount(o.Offer.Amount), o.Offer.Resource, string(o.Payment.Resource),
	} {
		_, _ = fmt.Fprintf(h, "%d:%s", len(part), part) // a hash has no errors
	}
	return hex.EncodeToString(h.Sum(nil))
}
