// Package auth contains the rules of sign-ins and API keys. The owner of an address
// signs in with a message in the form of EIP-4361 that contains a nonce of this service,
// gets a token, and creates API keys with it. Package auth must not depend on HTTP or on
// how keys are stored.
package auth

import (
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/anima-run/anima/pkg/api"
)

// Limits of the rules (docs/reference/social.md, Sign-in and API keys).
const (
	NonceLife = 5 * time.Minute     // from the nonce to the signed message
	KeepNonce = time.Hour           // how long a used nonce is stored after its expiry: a replica whose clock is behind still accepts it
	TokenLife = 10 * time.Minute    // of the token of a sign-in
	MaxKeys   = 20                  // usable keys of one address
	KeepEnded = 30 * 24 * time.Hour // how long ended keys are listed
	maxName   = 64                  // of a key, in bytes
)

// Key is a stored API key, or the token of a sign-in, which has only [api.ScopeKeys].
type Key struct {
	api.APIKey        // Address in lower case; Agent is found by it
	Hash       string // see [api.HashKey]
}

// NewKey returns a key for an address. Its id is the beginning of the hash, so that a
// repeated request finds the first key. Errors: Invalid.
func NewKey(hash, hint, address, name string, scopes []api.Scope, expires int64, now time.Time) (Key, error) {
	if len(scopes) == 0 {
		scopes = api.KeyScopes()
	}
	fault := func(next, format string, args ...any) (Key, error) {
		return Key{}, &api.Error{Code: api.Invalid, Message: fmt.Sprintf(format, args...), Next: next}
	}
	switch {
	case !validHash(hash):
		return fault("send the SHA-256 of the key in hex", "%.20q is not the hash of a key", hash)
	case name == "" || len(name) > maxName || !printable(name):
		return fault(fmt.Sprintf("use 1 to %d printable characters", maxName), "the name of the key is empty, too long or not text")
	case !printable(hint) || len(hint) > 16:
		return fault("send the beginning of the key", "%.20q is not the hint of a key", hint)
	case expires != 0 && expires <= now.UnixMicro():
		return fault("name a time after now, or leave it out", "the key would have expired already")
	}
	for _, s := range scopes {
		if !slices.Contains(api.KeyScopes(), s) {
			return fault(fmt.Sprintf("use some of %v", api.KeyScopes()), "%.20q is not a scope of a key", s)
		}
	}
	scopes = slices.Clone(scopes)
	slices.Sort(scopes)
	return Key{Hash: hash, APIKey: api.APIKey{
		ID: hash[:16], Hint: hint, Address: address, Name: name, Scopes: slices.Compact(scopes), CreatedAt: now.UnixMicro(), ExpiresAt: expires,
	}}, nil
}

// NewToken returns the token of a sign-in and its key.
func NewToken(address string, now time.Time) (string, Key) {
	token := api.NewKey()
	hash := api.HashKey(token)
	return token, Key{Hash: hash, APIKey: api.APIKey{
		ID: hash[:16], Hint: api.KeyHint(token), Address: address, Name: "sign-in", Scopes: []api.Scope{api.ScopeKeys},
		CreatedAt: now.UnixMicro(), ExpiresAt: now.Add(TokenLife).UnixMicro(),
	}}
}

// Usable reports whether the key is neither revoked nor expired.
func (k Key) Usable(now time.Time) bool {
	return k.RevokedAt == 0 && (k.ExpiresAt == 0 || now.UnixMicro() < k.ExpiresAt)
}

// Same reports whether k was made by the same request as o.
func (k Key) Same(o Key) bool {
	return k.Hash == o.Hash && k.Address == o.Address && k.Name == o.Name && k.ExpiresAt == o.ExpiresAt && slices.Equal(k.Scopes, o.Scopes)
}

// TooMany returns the error for an address with [MaxKeys] usable keys.
func TooMany() error {
	return &api.Error{
		Code: api.Conflict, Message: fmt.Sprintf("the address has %d API keys", MaxKeys),
		Next: "revoke one: anima key list shows them",
	}
}

// Unknown returns the error for a key that is unknown, revoked or expired. It does not
// tell which.
func Unknown() error {
	return &api.Error{
		Code: api.Denied, Message: "the API key is unknown, revoked or expired",
		Next: "create another one: anima key create, or sign in at POST /v1/auth/verify",
	}
}

func validHash(s string) bool {
	if len(s) != 64 {
		return false
	}
	for _, c := range s {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

func printable(s string) bool {
	for _, c := range s {
		if c < ' ' || c == 0x7f || c == utf8.RuneError {
			return false
		}
	}
	return true
}
