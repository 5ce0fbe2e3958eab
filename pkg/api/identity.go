package api

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
)

// Messages of social about API keys, by which programs use the HTTP API without the
// operator's token. A key belongs to an address. No message contains a key: keys are
// known by their hash, see [HashKey].
//
// History: v1 2026-11 first version.

// Scope is what the holder of an API key may do.
type Scope string

// The scopes. ScopeKeys is that of the token of a sign-in, which can do nothing else.
const (
	ScopeRead  Scope = "read"  // read the account, the prices and the models
	ScopeSpend Scope = "spend" // spend the credits of the account: transfers and model calls
	ScopeKeys  Scope = "keys"  // create, list and revoke the API keys of the address
)

// KeyScopes returns the scopes that an API key may have, which are also its default.
func KeyScopes() []Scope { return []Scope{ScopeRead, ScopeSpend} }

// keyPrefix begins every API key, so that scanners of repositories can find them.
const keyPrefix = "anima_k_"

// NewKey returns a new API key: 26 random characters (130 bits) behind a prefix. Only its
// holder keeps it.
func NewKey() string { return keyPrefix + strings.ToLower(rand.Text()) }

// HashKey returns the SHA-256 of an API key in hex, and "" for a text that is not a key.
// A key has too many random bits to be guessed from a plain hash.
func HashKey(key string) string {
	if len(key) != len(keyPrefix)+26 || !strings.HasPrefix(key, keyPrefix) {
		return ""
	}
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

// KeyHint returns the beginning of a key, by which its holder recognises it in a list.
func KeyHint(key string) string { return key[:min(len(key), len(keyPrefix)+4)] }

// AuthenticateKey requests the [KeyIdentity] of an API key. Errors: Denied (unknown,
// revoked or expired).
type AuthenticateKey struct {
	Hash string `json:"hash"` // of the key
}

// KeyIdentity is who holds an API key, and what the key permits.
type KeyIdentity struct {
	Key       string  `json:"key"`     // id
	Address   string  `json:"address"` // EIP-55
	Account   string  `json:"account"` // on which the holder acts, see [AccountOf]
	Scopes    []Scope `json:"scopes"`
	ExpiresAt int64   `json:"expiresAt,omitempty"` // 0: never
}

// May reports whether the key has a scope.
func (k KeyIdentity) May(s Scope) bool { return slices.Contains(k.Scopes, s) }

// AccountOf returns the account of the owner of an address: that of the agent with the
// address, or, if agent is "", the account of an address outside this installation, whose
// name is the address in lower case.
func AccountOf(agent, address string) string {
	if agent != "" {
		return agent
	}
	return strings.ToLower(address)
}

// IsAddress reports whether s is 0x and 40 hex digits in any case. No agent has such an
// id.
func IsAddress(s string) bool {
	if len(s) != 42 || s[0] != '0' || s[1] != 'x' {
		return false
	}
	_, err := hex.DecodeString(s[2:])
	return err == nil
}

// CreateKey creates an API key for an agent or, if Agent is "", for an address. The
// caller has made the key with [NewKey] and sends its hash only; a repeated request
// returns the first answer. The answer is the [APIKey]. Errors: Invalid, NotFound (no
// such agent), Conflict (the agent has no address yet, the hash belongs to another key,
// or the address has 20 keys).
type CreateKey struct {
	Hash      string  `json:"hash"`
	Hint      string  `json:"hint"` // see [KeyHint]
	Agent     string  `json:"agent,omitempty"`
	Address   string  `json:"address,omitempty"`
	Name      string  `json:"name"`
	Scopes    []Scope `json:"scopes,omitempty"`    // empty: [KeyScopes]
	ExpiresAt int64   `json:"expiresAt,omitempty"` // 0: never
}

// APIKey describes an API key. It does not contain the key.
type APIKey struct {
	ID        string  `json:"id"`
	Hint      string  `json:"hint"`
	Address   string  `json:"address"`         // EIP-55
	Agent     string  `json:"agent,omitempty"` // with that address; "": the address is not of this installation
	Name      string  `json:"name"`
	Scopes    []Scope `json:"scopes"`
	CreatedAt int64   `json:"createdAt"`
	ExpiresAt int64   `json:"expiresAt,omitempty"` // 0: never
	RevokedAt int64   `json:"revokedAt,omitempty"` // 0: not revoked
}

// ListAPIKeys requests the [APIKeys] of an agent ("": all), the latest first, also those
// that were revoked or have expired in the last 30 days. Limit 0 means 50. Errors:
// Invalid (limit, After).
type ListAPIKeys struct {
	Agent string `json:"agent,omitempty"`
	After string `json:"after,omitempty"` // Next of the previous page
	Limit int    `json:"limit,omitempty"`
}

// APIKeys is a list of API keys.
type APIKeys struct {
	Keys []APIKey `json:"keys"`
	Page
}

// RevokeKey revokes an API key. It is idempotent. HTTP routes refuse the key at the
// latest five seconds afterwards. The answer is the [APIKey]. Errors: NotFound.
type RevokeKey struct {
	ID string `json:"id"`
}

// The implementations of [Message] by the types of this file.

func (AuthenticateKey) Subject() Subject { return request(Social, "authenticate_key") }
func (CreateKey) Subject() Subject       { return request(Social, "create_key") }
func (ListAPIKeys) Subject() Subject     { return request(Social, "list_api_keys") }
func (RevokeKey) Subject() Subject       { return request(Social, "revoke_key") }
