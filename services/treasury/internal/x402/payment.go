package x402

import (
	"encoding/json"
	"net/http"
)

// Payment is an authorization with its signature, as it is sent to a seller or a
// facilitator.
type Payment struct {
	Version       int
	Scheme        string
	Network       string // as it was written
	Authorization Authorization
	Signature     Signature

	// Accepted is the offer that is paid, and Resource what it is for; of version 2 only.
	// A payment in the shape of version 1 may have version 2 (docs/x402.md, Payment).
	Accepted   *Offer
	Resource   json.RawMessage
	Extensions map[string]json.RawMessage
}

type wirePayload struct {
	Signature     string         `json:"signature"`
	Authorization *Authorization `json:"authorization"`
}

// MarshalJSON implements [json.Marshaler], with the fields in the order in which clients
// write them.
func (p *Payment) MarshalJSON() ([]byte, error) {
	inner := wirePayload{Signature: p.Signature.String(), Authorization: &p.Authorization}
	if p.Accepted == nil {
		return encode(struct {
			Version int         `json:"x402Version"`
			Scheme  string      `json:"scheme"`
			Network string      `json:"network"`
			Payload wirePayload `json:"payload"`
		}{p.Version, p.Scheme, p.Network, inner}), nil
	}
	return encode(struct {
		Version    int                        `json:"x402Version"`
		Payload    wirePayload                `json:"payload"`
		Resource   json.RawMessage            `json:"resource,omitempty"`
		Accepted   json.RawMessage            `json:"accepted"`
		Extensions map[string]json.RawMessage `json:"extensions,omitempty"`
	}{p.Version, inner, p.Resource, p.Accepted.Raw, p.Extensions}), nil
}

// Header returns the name and the value of the header field that carries the payment.
func (p *Payment) Header() (name, value string) {
	name = HeaderPayment
	if p.Accepted == nil {
		name = HeaderPaymentV1
	}
	return name, encodeBase64(p)
}

// DecodePayment parses the JSON of a payment in either shape.
func DecodePayment(data []byte) (p Payment, err error) {
	o, err := decode(data)
	if err != nil {
		return p, fault(BadPayload, "the payment: %v", err)
	}
	version, err := o.whole("x402Version", 0)
	if err != nil || version != V1 && version != V2 {
		return p, fault(BadVersion, "the payment has an unknown version")
	}
	p.Version = int(version)
	if p.Version == V2 && o.has("accepted") {
		of, err := decodeOffer(V2, o["accepted"])
		if err != nil {
			return p, err
		}
		p.Accepted, p.Scheme, p.Network = &of, of.Scheme, of.Network
		if o.has("resource") {
			p.Resource = o["resource"]
		}
		if o.has("extensions") {
			if p.Extensions, err = decode(o["extensions"]); err != nil {
				return p, fault(BadPayload, "extensions: %v", err)
			}
		}
	} else {
		f, err := o.texts("scheme", "network")
		if err != nil {
			return p, fault(BadPayload, "the payment: %v", err)
		}
		p.Scheme, p.Network = f[0], f[1]
	}
	inner, err := decode(o["payload"])
	if err != nil {
		return p, fault(BadPayload, "the payload: %v", err)
	}
	signature, err := inner.text("signature")
	if err != nil {
		return p, fault(BadPayload, "the payload: %v", err)
	}
	if p.Authorization, err = decodeAuthorization(inner["authorization"]); err != nil {
		return p, err
	}
	p.Signature, err = ParseSignature(signature)
	return p, err
}

// ReadPayment returns the payment in the headers of a request. ok is false if there is
// none.
func ReadPayment(h http.Header) (p Payment, ok bool, err error) {
	v := h.Get(HeaderPayment)
	if v == "" {
		v = h.Get(HeaderPaymentV1)
	}
	if v == "" {
		return p, false, nil
	}
	data, err := decodeBase64(v, MaxPayment)
	if err != nil {
		return p, true, fault(BadPayload, "the payment: %v", err)
	}
	p, err = DecodePayment(data)
	return p, true, err
}

// ResourceURL returns the address that the payment is for, "" if it does not say.
func (p *Payment) ResourceURL() (string, error) {
	if p.Resource == nil {
		return "", nil
	}
	o, err := decode(p.Resource)
	if err != nil {
		return "", fault(BadPayload, "the resource: %v", err)
	}
	url, err := o.text("url")
	if err != nil {
		return "", fault(BadPayload, "the resource: %v", err)
	}
	return url, nil
}
