package x402

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"

	"github.com/ethereum/go-ethereum/common"

	"github.com/anima-run/anima/pkg/api"
)

// defaultTimeout is the time to pay that an offer without one gives, in seconds, as the
// reference client assumes.
const defaultTimeout = 300

// Resource describes what is paid for.
type Resource struct {
	URL         string `json:"url"`
	Description string `json:"description,omitempty"`
	MimeType    string `json:"mimeType,omitempty"`
}

// Offer is one way to pay, as a seller states it. Nothing in it is trusted: see
// [Offer.Terms].
type Offer struct {
	Version     int // of the challenge that has the offer
	Scheme      string
	Network     string
	Amount      api.Micros
	Asset       common.Address
	PayTo       common.Address
	Timeout     int64 // seconds
	Token       string
	Domain      string          // EIP-712 version of the token
	Resource    string          // of version 1, "" without one
	Method      string          // how the asset is transferred; "" and "eip3009" are supported
	Facilitator string          // host or address of the facilitator, as the seller says; "": it does not
	Raw         json.RawMessage // as it was received: a payment of version 2 repeats it
}

// decodeOffer parses one entry of a challenge, of either version: version 2 has the price
// in amount, version 1 in maxAmountRequired.
func decodeOffer(version int, raw json.RawMessage) (of Offer, err error) {
	o, err := decode(raw)
	if err != nil {
		return of, fault(BadTerms, "an offer: %v", err)
	}
	price := "maxAmountRequired"
	if version >= V2 {
		price = "amount"
	}
	f, err := o.texts("scheme", "network", price, "asset", "payTo", "resource")
	if err != nil {
		return of, fault(BadTerms, "an offer: %v", err)
	}
	of = Offer{Version: version, Scheme: f[0], Network: f[1], Resource: f[5], Raw: raw}
	if of.Timeout, err = o.whole("maxTimeoutSeconds", defaultTimeout); err != nil || of.Timeout == 0 {
		return of, fault(BadTerms, "maxTimeoutSeconds is not a positive whole number")
	}
	if of.Amount, err = ParseAmount(f[2]); err != nil {
		return of, fault(BadTerms, "%s is not an amount in atomic units", price)
	}
	if of.Asset, err = ParseAddress(f[3]); err == nil {
		of.PayTo, err = ParseAddress(f[4])
	}
	if err != nil {
		return of, fault(BadTerms, "asset or payTo is not an address")
	}
	if !o.has("extra") {
		return of, nil
	}
	extra, err := decode(o["extra"])
	if err != nil {
		return of, fault(BadTerms, "extra: %v", err)
	}
	e, err := extra.texts("name", "version", "assetTransferMethod")
	if err != nil {
		return of, fault(BadTerms, "extra: %v", err)
	}
	of.Token, of.Domain, of.Method = e[0], e[1], e[2]
	of.Facilitator = facilitatorOf(extra)
	return of, nil
}

// maxFacilitator bounds the name of a facilitator: a host name has at most 253 bytes.
const maxFacilitator = 253

// facilitatorOf returns the facilitator that an offer names. No version of the protocol has a
// field for it; sellers that name theirs have its address in extra.facilitatorUrl or
// extra.facilitator. Anything that is neither a URL nor one printable word is no name.
func facilitatorOf(extra object) string {
	for _, field := range []string{"facilitatorUrl", "facilitator"} {
		name, err := extra.text(field)
		if err != nil {
			continue
		}
		if strings.Contains(name, "://") {
			u, err := url.Parse(name)
			if err != nil {
				continue
			}
			name = u.Hostname()
		}
		if name != "" && len(name) <= maxFacilitator && !strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return strings.ToLower(name)
		}
	}
	return ""
}

// Terms returns what a payment for the offer must fulfil, with the network as it is
// pinned. It refuses other schemes, networks and tokens.
func (of *Offer) Terms(known Networks) (Terms, error) {
	n, ok := known.Find(of.Network)
	switch {
	case of.Scheme != Exact:
		return Terms{}, fault(BadScheme, "the scheme %.40q is not supported", of.Scheme)
	case !ok:
		return Terms{}, fault(BadNetwork, "the network %.40q is not supported", of.Network)
	case of.Asset != n.Asset:
		return Terms{}, fault(BadTerms, "%s is not the token of %s", of.Asset, n.ID())
	case of.Method != "" && !strings.EqualFold(of.Method, "eip3009"):
		return Terms{}, fault(BadTerms, "transfers by %.40q are not supported", of.Method)
	case of.PayTo == common.Address{} || of.PayTo == n.Asset:
		return Terms{}, fault(BadTerms, "%s cannot be paid", of.PayTo)
	}
	return Terms{Network: n, PayTo: of.PayTo, Amount: of.Amount, Timeout: of.Timeout, Version: of.Version, Facilitator: of.Facilitator}, nil
}

// Challenge is the answer of a seller that wants to be paid.
type Challenge struct {
	Version    int
	Error      string
	Resource   json.RawMessage // of version 2, as it was received; nil without one
	Offers     []Offer         // the valid ones
	Extensions map[string]json.RawMessage
}

// DecodeChallenge parses a challenge of either version. Offers that are not valid are
// left out; a challenge without offers is valid.
func DecodeChallenge(data []byte) (c Challenge, err error) {
	if len(data) > MaxChallenge {
		return c, fault(BadTerms, "the challenge has %d bytes, more than %d", len(data), MaxChallenge)
	}
	o, err := decode(data)
	if err != nil {
		return c, fault(BadTerms, "the challenge: %v", err)
	}
	version, err := o.whole("x402Version", V1)
	if err != nil || version != V1 && version != V2 {
		return c, fault(BadVersion, "the challenge has an unknown version")
	}
	c.Version = int(version)
	if c.Error, err = o.text("error"); err != nil {
		c.Error = "" // some sellers send an object; it is only shown
	}
	if o.has("resource") {
		c.Resource = o["resource"]
	}
	if o.has("extensions") {
		if c.Extensions, err = decode(o["extensions"]); err != nil {
			return c, fault(BadTerms, "extensions: %v", err)
		}
	}
	var entries []json.RawMessage
	if err := json.Unmarshal(o["accepts"], &entries); err != nil || len(entries) > maxOffers {
		return c, fault(BadTerms, "accepts is not a list of at most %d offers", maxOffers)
	}
	for _, raw := range entries {
		if of, err := decodeOffer(c.Version, raw); err == nil {
			c.Offers = append(c.Offers, of)
		}
	}
	return c, nil
}

// ReadChallenges returns the challenges of an answer with status 402: of version 2 from
// the header, then of version 1 from the body. A seller may send both. It returns an
// error if the answer has neither.
func ReadChallenges(h http.Header, body []byte) (all []Challenge, err error) {
	if v := h.Get(HeaderRequired); v != "" {
		data, err := decodeBase64(v, MaxChallenge)
		if err != nil {
			return nil, fault(BadTerms, "the header %s: %v", HeaderRequired, err)
		}
		c, err := DecodeChallenge(data)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	if c, err := DecodeChallenge(body); err == nil && len(c.Offers) > 0 {
		all = append(all, c)
	} else if len(all) == 0 {
		if err == nil {
			err = fault(BadTerms, "the answer has no valid offer")
		}
		return nil, err
	}
	return all, nil
}
