package x402

import (
	"encoding/json"
	"net/http"
)

// Price is one resource with its price, which a seller states in a [Demand].
type Price struct {
	Terms
	Resource Resource
}

// extra names the token's EIP-712 domain for the payer.
type extra struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// wireOffer is an offer of version 2. Legacy is also set for the reference client, which
// reads no other field.
type wireOffer struct {
	Scheme  string `json:"scheme"`
	Network string `json:"network"`
	Amount  string `json:"amount"`
	Legacy  string `json:"maxAmountRequired,omitempty"`
	Asset   string `json:"asset"`
	PayTo   string `json:"payTo"`
	Timeout int64  `json:"maxTimeoutSeconds"`
	Extra   extra  `json:"extra"`
}

type wireOfferV1 struct {
	Scheme      string `json:"scheme"`
	Network     string `json:"network"`
	Amount      string `json:"maxAmountRequired"`
	Resource    string `json:"resource"`
	Description string `json:"description"`
	MimeType    string `json:"mimeType"`
	PayTo       string `json:"payTo"`
	Timeout     int64  `json:"maxTimeoutSeconds"`
	Asset       string `json:"asset"`
	Extra       extra  `json:"extra"`
}

type wireChallenge struct {
	Version    int       `json:"x402Version"`
	Error      string    `json:"error,omitempty"`
	Resource   *Resource `json:"resource,omitempty"`
	Accepts    any       `json:"accepts"`
	Extensions any       `json:"extensions,omitempty"`
}

func (p Price) v2() wireOffer {
	return wireOffer{
		Scheme: Exact, Network: p.Network.ID(), Amount: FormatAmount(p.Amount), Asset: p.Network.Asset.Hex(), PayTo: p.PayTo.Hex(),
		Timeout: p.Timeout, Extra: extra{p.Network.Token, p.Network.Version},
	}
}

func (p Price) v1() wireOfferV1 {
	return wireOfferV1{
		Scheme: Exact, Network: p.Network.Written(V1), Amount: FormatAmount(p.Amount), Resource: p.Resource.URL,
		Description: p.Resource.Description, MimeType: p.Resource.MimeType, PayTo: p.PayTo.Hex(), Timeout: p.Timeout,
		Asset: p.Network.Asset.Hex(), Extra: extra{p.Network.Token, p.Network.Version},
	}
}

// Demand is the answer 402 to a request without a valid payment.
type Demand struct {
	Price
	Reason string // why the payment of the request is refused; "" without one
}

// missing is the error of a challenge without a payment, as the official packages write it.
const missing = "Payment required"

// Write sets the headers of the demand and returns its body. One answer serves every
// client: those of version 2 read the header, those of version 1 the body, and the
// reference client [HeaderReference], which it prefers to the body.
func (d Demand) Write(h http.Header) []byte {
	reason := d.Reason
	if reason == "" {
		reason = missing
	}
	v2 := d.v2()
	c := wireChallenge{Version: V2, Error: reason, Resource: &d.Resource, Accepts: []wireOffer{v2}, Extensions: declared}
	h.Set(HeaderRequired, encodeBase64(c))
	v2.Legacy = v2.Amount
	c.Accepts, c.Extensions = []wireOffer{v2}, nil
	h.Set(HeaderReference, encodeBase64(c))
	h.Set("Content-Type", "application/json")
	return encode(wireChallenge{Version: V1, Error: reason, Accepts: []wireOfferV1{d.v1()}})
}

// Offer returns the offer that a payment in either shape accepts, for a facilitator.
func (p Price) Offer(of *Payment) Offer {
	version, raw := V1, encode(p.v1())
	if of.Accepted != nil {
		version, raw = V2, of.Accepted.Raw
	}
	o, err := decodeOffer(version, json.RawMessage(raw))
	if err != nil {
		panic(err) // both are valid: the second was decoded before
	}
	return o
}
