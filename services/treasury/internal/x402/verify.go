package x402

import (
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/anima-run/anima/pkg/api"
)

// Terms are what a payment must fulfil.
type Terms struct {
	Network Network
	PayTo   common.Address
	Amount  api.Micros
	Timeout int64 // seconds in which it is to be paid
	Version int   // of the messages
	// Facilitator is the host or address of who settles the payment, as the seller says;
	// "": it does not say. A payer cannot verify it.
	Facilitator string
}

// Bounds of the time in which an authorization is valid.
const (
	// MaxWindow is the longest time that an authorization may be valid after now: the
	// money of a payment without an outcome is held as long.
	MaxWindow = time.Hour
	// settleMargin is the least time that must be left, in seconds: the transaction has to
	// be included in a block before ValidBefore. The official packages use the same.
	settleMargin = 6
	// windowSkew is the largest difference of clocks that is accepted in MaxWindow.
	windowSkew = time.Minute
)

// Pays reports whether the authorization of a payment, if it is executed, is the payment
// that the terms ask for, whatever its window is.
func (p *Payment) Pays(t Terms) bool {
	return p.Authorization.To == t.PayTo && p.Authorization.Value == t.Amount
}

// Verify checks a payment against the terms: scheme, network, offer, signature,
// recipient, window and value, in the order in which the official packages do. It does
// not ask the chain whether the nonce is unused and the payer has the money.
func (p *Payment) Verify(t Terms, now time.Time) error {
	if p.Scheme != Exact {
		return fault(BadScheme, "the scheme %.40q is not supported", p.Scheme)
	}
	if n, ok := (Networks{t.Network}).Find(p.Network); !ok || n.ChainID != t.Network.ChainID {
		return fault(OtherNetwork, "the payment is for the network %.40q, not %s", p.Network, t.Network.ID())
	}
	if of := p.Accepted; of != nil && (of.Asset != t.Network.Asset || of.PayTo != t.PayTo || of.Amount != t.Amount) {
		return fault(BadTerms, "the accepted offer is not one of this resource")
	}
	a := &p.Authorization
	payer, err := p.Signature.Payer(a.Digest(t.Network))
	switch {
	case err != nil:
		return err
	case payer != a.From:
		return fault(BadSignature, "the signature is not that of %s for %s version %s", a.From, t.Network.Token, t.Network.Version)
	case a.To != t.PayTo:
		return fault(BadRecipient, "the payment is to %s, not to %s", a.To, t.PayTo)
	case a.From == a.To:
		return fault(BadRecipient, "%s pays itself", a.From)
	case a.ValidBefore < now.Unix()+settleMargin:
		return fault(BadValidBefore, "the authorization expires too soon")
	case a.ValidAfter > now.Unix():
		return fault(BadValidAfter, "the authorization is not valid yet")
	case a.Window(now) > MaxWindow+windowSkew:
		return fault(BadValidBefore, "the authorization is valid for more than %s", MaxWindow)
	case a.Value != t.Amount && p.Version == V1:
		return fault(BadValueV1, "the payment is of %d, not of %d", a.Value, t.Amount)
	case a.Value != t.Amount:
		return fault(BadValue, "the payment is of %d, not of %d", a.Value, t.Amount)
	}
	return nil
}
