// Package letter knows what a signed message is: its addresses, its canonical
// text, its signature and its identity. It must not know where messages are
// kept.
package letter

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

// How old a signed message or request may be, and how far ahead of our clock
// (spec-social §2.2).
const (
	MaxAge   = 5 * time.Minute
	MaxAhead = time.Minute
)

// maxReplyTo bounds the one field that no signature covers.
const maxReplyTo = 128

// Letter is a signed message as it was handed in.
type Letter struct {
	From      string // as written
	To        string
	Content   string
	SignedAt  string // the literal that was signed
	Signature string
	ReplyTo   string // not covered by the signature
}

// Sealed is a letter that was checked. Addresses are in lower case.
type Sealed struct {
	Letter
	ID   string    // 32 hex digits; the same for every copy of the message
	Time time.Time // SignedAt
}

// Open checks everything about a letter but its age, and returns it with its
// identity. Errors: api.Invalid with what is wrong, api.Denied if somebody
// other than From signed it.
//
// The identity is that of (from, canonical text), never of the signature: one
// message has many valid signatures.
func Open(l Letter) (Sealed, error) {
	from, err := Address(l.From)
	if err != nil {
		return Sealed{}, fmt.Errorf("from: %w", err)
	}
	to, err := Address(l.To)
	if err != nil {
		return Sealed{}, fmt.Errorf("to: %w", err)
	}
	switch {
	case l.Content == "":
		return Sealed{}, api.Errorf(api.Invalid, "the message is empty")
	case len(l.Content) > api.MaxMessageBytes:
		return Sealed{}, api.Errorf(api.Invalid, "the message has %d bytes, at most %d", len(l.Content), api.MaxMessageBytes)
	case !storable(l.Content):
		return Sealed{}, api.Errorf(api.Invalid, "the message is not UTF-8 or has a NUL in it")
	case len(l.ReplyTo) > maxReplyTo || !storable(l.ReplyTo):
		return Sealed{}, api.Errorf(api.Invalid, "reply_to is longer than %d bytes, not UTF-8 or has a NUL in it", maxReplyTo)
	}
	at, err := ParseTime(l.SignedAt)
	if err != nil {
		return Sealed{}, fmt.Errorf("signed_at: %w", err)
	}
	sig, err := parseSignature(l.Signature)
	if err != nil {
		return Sealed{}, err
	}
	for _, hash := range contentHashes(l.Content) {
		canonical := "Conway:send:" + to + ":" + hash + ":" + l.SignedAt
		if sig.signer(canonical) != from {
			continue
		}
		sum := sha256.Sum256([]byte(canonical + from))
		l.From, l.To = from, to
		return Sealed{Letter: l, ID: hex.EncodeToString(sum[:16]), Time: at}, nil
	}
	return Sealed{}, &api.Error{
		Code: api.Denied, Message: "the signature is not that of " + Display(from),
		Next: "sign Conway:send:{to in lower case}:{keccak256 of the content}:{signed_at} with the key of the sender",
	}
}

// storable says whether a text can be a column of type text.
func storable(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }

// Authenticate checks the headers that prove who polls: a fresh signature over
// Conway:poll:{address}:{timestamp}. It returns the address in lower case.
// Errors: api.Denied.
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

// Fresh says whether something signed at the given time is still, or already,
// accepted. Errors: api.Invalid.
func Fresh(signed, now time.Time) error {
	switch age := now.Sub(signed); {
	case age > MaxAge:
		return api.Errorf(api.Invalid, "signed %s ago, at most %s", age.Round(time.Second), MaxAge)
	case age < -MaxAhead:
		return api.Errorf(api.Invalid, "signed %s in the future, at most %s; check the clock", -age.Round(time.Second), MaxAhead)
	}
	return nil
}

// isoMillis is what JavaScript's toISOString writes.
const isoMillis = "2006-01-02T15:04:05.000Z"

// ParseTime reads an ISO 8601 time with milliseconds and Z, in that spelling
// only: other spellings of the same moment would be other canonical texts.
// Errors: api.Invalid.
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

// Address returns an EVM address in its normalised form, lower case. A checksum
// is not asked for (spec-social §1). Errors: api.Invalid.
func Address(s string) (string, error) {
	if !addressForm.MatchString(s) {
		return "", api.Errorf(api.Invalid, "%.50q is not an address: 0x and 40 hex digits", s)
	}
	return strings.ToLower(s), nil
}

// Display is the EIP-55 form of a valid address, for answers.
func Display(address string) string { return common.HexToAddress(address).Hex() }
