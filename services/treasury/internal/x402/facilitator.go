package x402

import "encoding/json"

// Order is the body of a request to verify or settle a payment.
type Order struct {
	Payment Payment
	Offer   Offer
	Raw     json.RawMessage // the payment as it was received; nil for one made here
}

// DecodeOrder parses the body of a request to a facilitator, of either version.
func DecodeOrder(data []byte) (r Order, err error) {
	o, err := decode(data)
	if err != nil {
		return r, fault(BadPayload, "the request: %v", err)
	}
	if r.Payment, err = DecodePayment(o["paymentPayload"]); err != nil {
		return r, err
	}
	version := r.Payment.Version
	if v, err := o.whole("x402Version", int64(version)); err != nil || int(v) != version {
		return r, fault(BadVersion, "the request and its payment have different versions")
	}
	if r.Payment.Accepted == nil {
		version = V1
	}
	r.Raw = o["paymentPayload"]
	r.Offer, err = decodeOffer(version, o["paymentRequirements"])
	return r, err
}

// MarshalJSON implements [json.Marshaler].
func (r *Order) MarshalJSON() ([]byte, error) {
	raw := r.Raw
	if raw == nil {
		raw = encode(&r.Payment)
	}
	return encode(struct {
		Version int             `json:"x402Version"`
		Payment json.RawMessage `json:"paymentPayload"`
		Offer   json.RawMessage `json:"paymentRequirements"`
	}{r.Payment.Version, raw, r.Offer.Raw}), nil
}

// Terms returns what the payment of the order must fulfil. The token's EIP-712 name and
// version in the offer must be those of the network, because the official packages
// verify the signature with the offer's.
func (r *Order) Terms(known Networks) (Terms, error) {
	t, err := r.Offer.Terms(known)
	switch of := r.Offer; {
	case err != nil:
		return t, err
	case of.Token == "" || of.Domain == "":
		return t, fault(NoDomain, "extra has no name and version of the token")
	case of.Token != t.Network.Token:
		return t, fault(BadTokenName, "the token of %s has another name", t.Network.ID())
	case of.Domain != t.Network.Version:
		return t, fault(BadTokenVer, "the token of %s has another version", t.Network.ID())
	}
	return t, nil
}

// Verdict is the answer to a request to verify a payment.
type Verdict struct {
	Valid  bool   `json:"isValid"`
	Reason Reason `json:"invalidReason,omitempty"` // "" if it is valid
	Text   string `json:"invalidMessage,omitempty"`
	Payer  string `json:"payer,omitempty"`
}

// DecodeVerdict parses the JSON of a verdict.
func DecodeVerdict(data []byte) (v Verdict, err error) {
	o, err := decode(data)
	if err != nil {
		return v, fault(BadPayload, "the verdict: %v", err)
	}
	f, err := o.texts("invalidReason", "payer")
	if err != nil {
		return v, fault(BadPayload, "the verdict: %v", err)
	}
	v = Verdict{Reason: Reason(f[0]).Known(), Payer: f[1]}
	switch string(o["isValid"]) {
	case "true":
		v.Valid = true
	case "false":
	default:
		return v, fault(BadPayload, "the verdict does not say whether the payment is valid")
	}
	return v, nil
}

// Kind is one sort of payment that a facilitator settles.
type Kind struct {
	Version int    `json:"x402Version"`
	Scheme  string `json:"scheme"`
	Network string `json:"network"`
}

// Supported lists what a facilitator settles and the addresses that send its
// transactions, by family of networks.
type Supported struct {
	Kinds      []Kind              `json:"kinds"`
	Extensions []string            `json:"extensions"`
	Signers    map[string][]string `json:"signers"`
}

// SupportedOf returns what a facilitator of the networks supports: both versions.
func SupportedOf(networks Networks, signer string) Supported {
	s := Supported{Kinds: []Kind{}, Extensions: []string{}, Signers: map[string][]string{"eip155:*": {signer}}}
	for _, n := range networks {
		s.Kinds = append(s.Kinds, Kind{Version: V2, Scheme: Exact, Network: n.ID()}, Kind{Version: V1, Scheme: Exact, Network: n.Written(V1)})
	}
	return s
}
