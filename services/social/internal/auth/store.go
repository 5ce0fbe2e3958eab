package auth

import (
	"context"
	"time"
)

// Store stores API keys and used nonces. It is safe for concurrent use, also by several
// replicas.
type Store interface {
	// NonceSecret returns the secret for [NewNonces], the same for all replicas: fresh,
	// unless one is stored.
	NonceSecret(ctx context.Context, fresh []byte) ([]byte, error)
	// SignIn marks a nonce as used and adds the token of the sign-in, in one transaction.
	// It returns false and changes nothing if the nonce has been used.
	SignIn(ctx context.Context, nonce string, expires time.Time, token Key) (bool, error)
	// AddKey adds a key, or returns the stored one with the same hash. Errors: Conflict
	// (another request has the hash), [TooMany].
	AddKey(ctx context.Context, k Key, now time.Time) (Key, error)
	// KeyByHash returns a key, with the agent of its address. Errors: [Unknown].
	KeyByHash(ctx context.Context, hash string) (Key, error)
	// Keys returns API keys, the latest first, without tokens: those of an address ("":
	// all) that are older than after (zero: all).
	Keys(ctx context.Context, address string, after Place, limit int) ([]Key, error)
	// Revoke revokes a key of an address ("": any) and returns it. Errors: NotFound.
	Revoke(ctx context.Context, id, address string, now time.Time) (Key, error)
	// PruneKeys deletes used nonces and tokens that have expired before now, and keys that
	// have ended before then.
	PruneKeys(ctx context.Context, now, then time.Time) error
}

// Place is the position of a key in the list of all keys.
type Place struct {
	CreatedAt int64
	ID        string
}
