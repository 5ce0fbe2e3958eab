package x402

import (
	"net/http"
)

// Receipt is the outcome of a settlement: the answer of a facilitator, and the header
// with which a seller answers a paid request.
type Receipt struct {
	Success     bool   `json:"success"`
	Reason      Reason `json:"errorReason,omitempty"` // "" on success
	Transaction string `json:"transaction"`
	Network     string `json:"network"`
	Payer       string `json:"payer,omitempty"`
}

// Header returns the name and the value of the header field for a payment of a version,
// with the network as that version writes it.
func (r Receipt) Header(p *Payment, n Network) (name, value string) {
	name = HeaderReceipt
	if p.Accepted == nil {
		name = HeaderReceiptV1
	}
	r.Network = n.Written(p.Version)
	return name, encodeBase64(r)
}

// DecodeReceipt parses the JSON of a receipt.
func DecodeReceipt(data []byte) (r Receipt, err error) {
	o, err := decode(data)
	if err != nil {
		return r, fault(BadPayload, "the receipt: %v", err)
	}
	f, err := o.texts("errorReason", "transaction", "network", "payer")
	if err != nil {
		return r, fault(BadPayload, "the receipt: %v", err)
	}
	r = Receipt{Reason: Reason(f[0]).Known(), Transaction: f[1], Network: f[2], Payer: f[3]}
	switch string(o["success"]) {
	case "true":
		r.Success = true
	case "false":
	default:
		return r, fault(BadPayload, "the receipt does not say whether the payment succeeded")
	}
	return r, nil
}

// ReadReceipt returns the receipt in the headers of an answer. ok is false if there is
// none that can be read: the answer of a seller that is no receipt proves nothing.
func ReadReceipt(h http.Header) (r Receipt, ok bool) {
	for _, name := range []string{HeaderReceipt, HeaderReceiptV1} {
		if data, err := decodeBase64(h.Get(name), MaxPayment); err == nil && len(data) > 0 {
			if r, err = DecodeReceipt(data); err == nil {
				return r, true
			}
		}
	}
	return Receipt{}, false
}
