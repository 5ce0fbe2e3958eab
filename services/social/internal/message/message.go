// Package message defines signed messages: addresses, canonical text, signature and
// identity. It must not depend on where messages are stored.
package message

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ethereum/go-ethereum/common"

	"github.com/anima-run/anima/pkg/api"
)

// MaxAge and MaxAhead are how old a signed message or request may be, and how far ahead
// of this machine's clock (docs/reference/social.md, Times).
const (
	MaxAge   = 5 * time.Minute
	MaxAhead = time.Minute
)

// maxReplyTo is the maximum length in bytes of ReplyTo, which the signature does not
// cover.
const maxReplyTo = 128

// Signed is a signed message as it was received.
type Signed struct {
	From      string // as written by the sender
	To        string
	Content   string
	SignedAt  string // the text that was signed
	Signature string
	ReplyTo   string // not covered by the signature
}

// Verified is a message whose fields and signature are valid. Addresses are in lower case.
type Verified struct {
	Signed
	ID   string    // 32 hex digits; the same for all copies of the message
	Time time.Time // SignedAt
}

// Verify checks a message except for its age, and returns it with its identity. It
// returns an api.Invalid error for an invalid field, and api.Denied if the signature is
// not that of From.
//
// The identity is derived from the canonical text and from, not from the signature: one
// message has many valid signatures.
func Verify(m Signed) (Verified, error) {
	from, err := Address(m.From)
	if err != nil {
		return Verified{}, fmt.Errorf("from: %w", err)
	}
	to, err := Address(m.To)
	if err != nil {
		return Verified{}, fmt.Errorf("to: %w", err)
	}
	switch {
	case m.Content == "":
		return Verified{}, api.Errorf(api.Invalid, "the message is empty")
	case len(m.Content) > api.MaxMessageBytes:
		return Verified{}, api.Errorf(api.Invalid, "the message has %d bytes, at most %d", len(m.Content), api.MaxMessageBytes)
	case !storable(m.Content):
		return Verified{}, api.Errorf(api.Invalid, "the message is not UTF-8 or has a NUL in it")
	case len(m.ReplyTo) > maxReplyTo || !storable(m.ReplyTo):
		return Verified{}, api.Errorf(api.Invalid, "reply_to is longer than %d bytes, not UTF-8 or has a NUL in it", maxReplyTo)
	}
	at, err := ParseTime(m.SignedAt)
	if err != nil {
		return Verified{}, fmt.Errorf("signed_at: %w", err)
	}
	sig, err := parseSignature(m.Signature)
	if err != nil {
		return Verified{}, err
	}
	for _, hash := range contentHashes(m.Content) {
		canonical := "Conway:send:" + to + ":" + hash + ":" + m.SignedAt
		if sig.signer(canonical) != from {
			continue
		}
		sum := sha256.Sum256([]byte(canonical + from))
		m.From, m.To = from, to
		return Verified{Signed: m, ID: hex.EncodeToString(sum[:16]), Time: at}, nil
	}
	return Verified{}, &api.Error{
		Code: api.Denied, Message: "the signature is not that of " + Display(from),
		Next: "sign Conway:send:{to in lower case}:{keccak256 of the content}:{signed_at} with the key of the sender",
	}
}

// storable reports whether a text can be stored in a column of type text.
func storable(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }

// Authenticate checks the headers that authenticate a poll: a recent signature of
// Conway:poll:{address}:{timestamp}. It returns the address in lower case, or an
// api.Denied error.
func Authenticate(address, signature, timestamp string, now time.Time) (string, error) {
	addr, err := Address(address)
	if err != nil {
		return "", denied("X-Wallet-Address", err)
	}
	at, err := ParseTime(timestamp)
	if err != nil {
		return "", denied("X-Timestamp", err)
	}
	if err := Fresh(at, now); err != nil {
		return "", denied("X-Timestamp", err)
	}
	sig, err := parseSignature(signature)
	if err != nil {
		return "", denied("X-Signature", err)
	}
	if sig.signer("Conway:poll:"+addr+":"+timestamp) != addr {
		return "", api.Errorf(api.Denied, "the signature is not that of %s", Display(addr))
	}
	return addr, nil
}

func denied(header string, err error) error {
	return api.Errorf(api.Denied, "%s: %s", header, api.Wire(err).Message)
}

// Fresh returns an api.Invalid error if a signature of the given time is too old, or too
// far in the future.
func Fresh(signed, now time.Time) error {
	switch age := now.Sub(signed); {
	case age > MaxAge:
		return api.Errorf(api.Invalid, "signed %s ago, at most %s", age.Round(time.Second), MaxAge)
	case age < -MaxAhead:
		return api.Errorf(api.Invalid, "signed %s in the future, at most %s; check the clock", -age.Round(time.Second), MaxAhead)
	}
	return nil
}

// isoMillis is the format of JavaScript's toISOString.
const isoMillis = "2006-01-02T15:04:05.000Z"

// ParseTime parses an ISO 8601 time with milliseconds and Z. Other formats of the same
// time are refused, because they would result in another canonical text. It returns an
// api.Invalid error.
func ParseTime(s string) (time.Time, error) {
	t, err := time.Parse(isoMillis, s)
	if err != nil || t.Format(isoMillis) != s {
		return time.Time{}, api.Errorf(api.Invalid, "%.40q is not a time like 2026-01-02T03:04:05.678Z", s)
	}
	return t, nil
}

// FormatTime is the inverse of [ParseTime].
func FormatTime(t time.Time) string { return t.UTC().Format(isoMillis) }

var addressForm = regexp.MustCompile(`^0x[0-9a-fA-F]{40}$`)

// Address returns an EVM address in its normalised form, lower case. It does not check
// the checksum (docs/reference/social.md, Addresses). It returns an api.Invalid error.
func Address(s string) (string, error) {
	if !addressForm.MatchString(s) {
		return "", api.Errorf(api.Invalid, "%.50q is not an address: 0x and 40 hex digits", s)
	}
	return strings.ToLower(s), nil
}

// Display returns the EIP-55 form of a valid address, for responses.
func Display(address string) string { return common.HexToAddress(address).Hex() }

// SignedBy reports whether signature is a signature of a text, in the form of EIP-191, by
// the key of an address. It returns an api.Invalid error for a signature in the wrong
// form.
func SignedBy(address, text, signature string) (bool, error) {
	return SignedDigest(address, personal(text), signature)
}

// SignedDigest is [SignedBy] for a digest of 32 bytes.
func SignedDigest(address string, digest []byte, signature string) (bool, error) {
	sig, err := parseSignature(signature)
	if err != nil {
		return false, err
	}
	return sig.signerOf(digest) == strings.ToLower(address), nil
}
