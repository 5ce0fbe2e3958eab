// Package x402 has the wire formats of payments over HTTP 402, versions 1 and 2, scheme
// "exact" with EIP-3009 authorizations: offers, payments, receipts, the requests of a
// facilitator, and the verification of an authorization without a chain
// (docs/x402.md). It must not do I/O, sign, or decide whether a payment is allowed.
package x402

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// The versions of the protocol.
const (
	V1 = 1
	V2 = 2
)

// Exact is the only supported scheme: the payer signs a transfer of exactly the price.
const Exact = "exact"

// Header fields. HeaderReference is the challenge for clients that read neither the
// header of version 2 nor integers in a body of version 1 (docs/x402.md, Challenge).
const (
	HeaderRequired  = "PAYMENT-REQUIRED"
	HeaderReference = "X-Payment-Required"
	HeaderPayment   = "PAYMENT-SIGNATURE"
	HeaderPaymentV1 = "X-PAYMENT"
	HeaderReceipt   = "PAYMENT-RESPONSE"
	HeaderReceiptV1 = "X-PAYMENT-RESPONSE"
)

// Limits of encoded values, in bytes. A payment has about 1 KiB.
const (
	MaxChallenge = 64 << 10
	MaxPayment   = 16 << 10
	maxOffers    = 32
)

// Reason is why a payment is refused, as the official packages name it.
type Reason string

// The reasons.
const (
	BadVersion     Reason = "invalid_x402_version"
	BadPayload     Reason = "invalid_payload"
	BadTerms       Reason = "invalid_payment_requirements"
	BadScheme      Reason = "unsupported_scheme"
	BadNetwork     Reason = "invalid_network"
	OtherNetwork   Reason = "invalid_exact_evm_network_mismatch"
	BadTokenName   Reason = "invalid_exact_evm_token_name_mismatch"
	BadTokenVer    Reason = "invalid_exact_evm_token_version_mismatch"
	NoDomain       Reason = "invalid_exact_evm_missing_eip712_domain"
	BadSignature   Reason = "invalid_exact_evm_signature"
	BadRecipient   Reason = "invalid_exact_evm_recipient_mismatch"
	BadValidAfter  Reason = "invalid_exact_evm_payload_authorization_valid_after"
	BadValidBefore Reason = "invalid_exact_evm_payload_authorization_valid_before"
	BadValue       Reason = "invalid_exact_evm_payload_authorization_value_mismatch"
	BadValueV1     Reason = "invalid_exact_evm_authorization_value"
	NonceUsed      Reason = "invalid_exact_evm_nonce_already_used"
	NoFunds        Reason = "invalid_exact_evm_insufficient_balance"
	Simulation     Reason = "invalid_exact_evm_transaction_simulation_failed"
	TxFailed       Reason = "invalid_exact_evm_transaction_failed"
	BadState       Reason = "invalid_transaction_state"
	VerifyError    Reason = "unexpected_verify_error"
	SettleError    Reason = "unexpected_settle_error"
)

// specified maps names of the specification to those that the official packages send.
var specified = map[Reason]Reason{
	"insufficient_funds":                                 NoFunds,
	"invalid_scheme":                                     BadScheme,
	"invalid_exact_evm_payload_signature":                BadSignature,
	"invalid_exact_evm_payload_recipient_mismatch":       BadRecipient,
	"invalid_exact_evm_payload_authorization_value":      BadValue,
	"invalid_exact_evm_payload_authorization_valid_from": BadValidAfter,
}

// Known returns the reason as this package names it: a facilitator may send the names of
// the specification.
func (r Reason) Known() Reason {
	if k, ok := specified[r]; ok {
		return k
	}
	return r
}

// Fault is an error with the reason for the wire. Its text has no values of the payment
// except numbers and addresses.
type Fault struct {
	Reason Reason
	Text   string
}

// Error returns the reason and the text.
func (f *Fault) Error() string { return string(f.Reason) + ": " + f.Text }

func fault(r Reason, format string, args ...any) error {
	return &Fault{Reason: r, Text: fmt.Sprintf(format, args...)}
}

// ReasonOf returns the reason of err, or otherwise if it has none.
func ReasonOf(err error, otherwise Reason) Reason {
	if f, ok := errors.AsType[*Fault](err); ok {
		return f.Reason
	}
	return otherwise
}

// object is a decoded JSON object. Keys are compared exactly: encoding/json ignores their
// case in structs, and other programs do not.
type object map[string]json.RawMessage

// decode parses exactly one JSON object.
func decode(data []byte) (object, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	var o object
	if err := dec.Decode(&o); err != nil || o == nil {
		return nil, errors.New("it is not a JSON object")
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("it is more than one JSON value")
	}
	return o, nil
}

// has reports whether a field is present and not null.
func (o object) has(name string) bool {
	raw, ok := o[name]
	return ok && string(raw) != "null"
}

// text returns a field that must be text, "" if it is absent.
func (o object) text(name string) (string, error) {
	if !o.has(name) {
		return "", nil
	}
	var s string
	if o[name][0] != '"' || json.Unmarshal(o[name], &s) != nil {
		return "", fmt.Errorf("%s is not text", name)
	}
	return s, nil
}

// whole returns a field that must be a whole number from 0 to 2^53-1, written without
// sign, point and exponent; otherwise if it is absent.
func (o object) whole(name string, otherwise int64) (int64, error) {
	if !o.has(name) {
		return otherwise, nil
	}
	n, err := ParseAmount(string(o[name]))
	if err != nil {
		return 0, fmt.Errorf("%s is not a whole number", name)
	}
	return int64(n), nil
}

// texts returns the fields that must be text, in the order of names.
func (o object) texts(names ...string) ([]string, error) {
	all := make([]string, len(names))
	for i, name := range names {
		var err error
		if all[i], err = o.text(name); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// decodeBase64 decodes the standard alphabet, with or without padding.
func decodeBase64(s string, limit int) ([]byte, error) {
	s = strings.TrimSpace(s)
	if len(s) > limit {
		return nil, fmt.Errorf("it has %d bytes, more than %d", len(s), limit)
	}
	data, err := base64.RawStdEncoding.Strict().DecodeString(strings.TrimRight(s, "="))
	if err != nil {
		return nil, errors.New("it is not base64")
	}
	return data, nil
}

// encodeBase64 returns the JSON of v in base64. The types of this package always encode.
func encodeBase64(v any) string { return base64.StdEncoding.EncodeToString(encode(v)) }

// encode returns the JSON of v without escapes for HTML, as other programs write it.
func encode(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err) // texts, numbers and valid raw JSON
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}
