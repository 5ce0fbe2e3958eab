package pay

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/crypto"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/services/treasury/internal/x402"
)

// quote is the chosen offer with what a payment repeats of its challenge. It is stored as
// JSON, so that a resumed payment is signed for the same offer.
type quote struct {
	Version    int                        `json:"version"`
	Network    string                     `json:"network"` // as the seller writes it
	Timeout    int64                      `json:"timeout"`
	Offer      json.RawMessage            `json:"offer"`
	Resource   json.RawMessage            `json:"resource,omitempty"`
	Extensions map[string]json.RawMessage `json:"extensions,omitempty"`
}

// leastTimeout is the shortest time to pay that is accepted, in seconds: the transaction
// has to be included in a block.
const leastTimeout = 10

// choose returns the cheapest acceptable offer; of equal ones version 2 before 1, then
// the first. The error names every reason against the offers.
func choose(challenges []x402.Challenge, known x402.Networks, most api.Micros, payees []common.Address) (x402.Terms, quote, error) {
	type candidate struct {
		terms x402.Terms
		quote quote
	}
	var all []candidate
	var refusals []string
	for _, c := range challenges {
		for _, of := range c.Offers {
			terms, err := of.Terms(known)
			switch {
			case err != nil:
			case of.Amount == 0:
				err = fmt.Errorf("an offer of 0 is not a price")
			case of.Amount > most:
				err = fmt.Errorf("%s is more than the %s that the request may cost", of.Amount, most)
			case of.Timeout < leastTimeout:
				err = fmt.Errorf("%d s is too little time to pay", of.Timeout)
			case len(payees) > 0 && !slices.Contains(payees, of.PayTo):
				err = fmt.Errorf("%s is not an allowed payee", of.PayTo)
			}
			if err != nil {
				refusals = append(refusals, err.Error())
				continue
			}
			all = append(all, candidate{terms, quote{
				Version: c.Version, Network: of.Network, Timeout: of.Timeout, Offer: of.Raw, Resource: c.Resource, Extensions: c.Extensions,
			}})
		}
	}
	if len(all) == 0 {
		slices.Sort(refusals)
		refusals = slices.Compact(refusals)
		return x402.Terms{}, quote{}, &api.Error{
			Code: api.Denied, Reason: api.ReasonOffer, Message: "no offer of the seller is acceptable: " + strings.Join(refusals[:min(3, len(refusals))], "; "),
			Next: "ask for less, or allow a higher price if it is right", Details: refusals,
		}
	}
	slices.SortStableFunc(all, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.terms.Amount, b.terms.Amount), cmp.Compare(b.quote.Version, a.quote.Version))
	})
	return all[0].terms, all[0].quote, nil
}

// nonceOf returns the nonce of a payment: the hash of what is intended. Two processes that
// sign for the same intent sign the same transfer, which the token executes once.
func nonceOf(p *Payment, n x402.Network) [32]byte {
	var text strings.Builder
	for _, part := range []string{"anima x402 1", p.ID, p.Agent, p.Request, n.ID(), n.Asset.Hex(), p.Payee, x402.FormatAmount(p.Amount)} {
		_, _ = fmt.Fprintf(&text, "%d:%s", len(part), part) // a builder has no errors
	}
	return crypto.Keccak256Hash([]byte(text.String()))
}

// identifier returns the payment identifier for the seller. It does not reveal the id,
// which may contain the name of a session.
func identifier(id string) string {
	sum := sha256.Sum256([]byte("anima " + id))
	return "pay_" + hex.EncodeToString(sum[:16])
}

// adopt sets the offer of a payment, and the window from now.
func (p *Payment) adopt(t x402.Terms, q quote, payer common.Address, now int64) error {
	data, err := json.Marshal(q)
	if err != nil {
		return fmt.Errorf("the offer: %w", err)
	}
	p.Network, p.Payee, p.Amount, p.Payer, p.Offer = t.Network.ID(), t.PayTo.Hex(), t.Amount, payer.Hex(), string(data)
	p.Facilitator = t.Facilitator
	nonce := nonceOf(p, t.Network)
	p.Nonce = hexutil.Encode(nonce[:])
	// The clock of the seller may be behind. The official clients use the same 600 s.
	p.ValidAfter, p.ValidBefore = now-600, now+min(q.Timeout, int64(x402.MaxWindow.Seconds()))
	return nil
}

// authorization returns what the payment signs, with its terms.
func (p *Payment) authorization(known x402.Networks) (a x402.Authorization, t x402.Terms, q quote, err error) {
	n, ok := known.Find(p.Network)
	if !ok {
		return a, t, q, &api.Error{Code: api.Unavailable, Message: "the network " + p.Network + " of the payment is not configured", Next: "configure it again until its payments are settled"}
	}
	if err := json.Unmarshal([]byte(p.Offer), &q); err != nil {
		return a, t, q, fmt.Errorf("the stored offer of %s: %w", p.ID, err)
	}
	t = x402.Terms{Network: n, PayTo: common.HexToAddress(p.Payee), Amount: p.Amount, Timeout: q.Timeout, Version: q.Version}
	a = x402.Authorization{
		From: common.HexToAddress(p.Payer), To: t.PayTo, Value: p.Amount, ValidAfter: p.ValidAfter, ValidBefore: p.ValidBefore,
		Nonce: common.HexToHash(p.Nonce),
	}
	return a, t, q, nil
}

// wire returns the header field that carries the payment.
func (q *quote) wire(id string, a x402.Authorization, s x402.Signature) (name, value string) {
	p := x402.Payment{Version: q.Version, Scheme: x402.Exact, Network: q.Network, Authorization: a, Signature: s}
	if q.Version == x402.V2 {
		p.Accepted = &x402.Offer{Raw: q.Offer}
		p.Resource, p.Extensions = q.Resource, x402.Identified(q.Extensions, identifier(id))
	}
	return p.Header()
}
