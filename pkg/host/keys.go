package host

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

// How long the answer for an API key is used without asking social again. keyLife is how
// long a revoked key may still be accepted. A refusal is kept for less, because a key is
// often used right after it was created.
const (
	keyLife     = 5 * time.Second
	refusalLife = time.Second
	keyTimeout  = 3 * time.Second // of the request to social
	maxKeys     = 4096            // cached answers
)

// keyring knows the API keys that were used lately. It is safe for concurrent use.
type keyring struct {
	ask func(context.Context, api.AuthenticateKey) (api.KeyIdentity, error)
	now func() time.Time

	mu    sync.Mutex
	known map[string]knownKey // by hash
}

type knownKey struct {
	identity api.KeyIdentity
	err      error // Denied
	until    time.Time
}

func newKeyring(now func() time.Time, ask func(context.Context, api.AuthenticateKey) (api.KeyIdentity, error)) *keyring {
	return &keyring{ask: ask, now: now, known: map[string]knownKey{}}
}

// caller returns the holder of a key with a scope. Errors: Denied, or Unavailable if
// social does not answer.
func (k *keyring) caller(ctx context.Context, key string, scope api.Scope) (Caller, error) {
	hash := api.HashKey(key)
	if hash == "" {
		return Caller{}, &api.Error{Code: api.Denied, Message: "the credential is neither the operator's token nor an API key", Next: "send Authorization: Bearer <token>, or an API key"}
	}
	id, err := k.identity(ctx, hash)
	if err != nil {
		return Caller{}, err
	}
	if !id.May(scope) {
		return Caller{}, &api.Error{
			Code: api.Denied, Reason: api.ReasonScope, Message: fmt.Sprintf("the API key has not the scope %s", scope),
			Next: fmt.Sprintf("create a key with it: anima key create --scopes %s", scope),
		}
	}
	return Caller{Key: id.Key, Account: id.Account, Address: id.Address}, nil
}

func (k *keyring) identity(ctx context.Context, hash string) (api.KeyIdentity, error) {
	now := k.now()
	k.mu.Lock()
	known, ok := k.known[hash]
	k.mu.Unlock()
	if ok && now.Before(known.until) {
		return known.identity, known.err
	}
	ctx, cancel := context.WithTimeout(ctx, keyTimeout)
	defer cancel()
	id, err := k.ask(ctx, api.AuthenticateKey{Hash: hash})
	switch {
	case err == nil:
		known = knownKey{identity: id, until: now.Add(keyLife)}
		if expires := time.UnixMicro(id.ExpiresAt); id.ExpiresAt > 0 && expires.Before(known.until) {
			known.until = expires
		}
	case api.CodeOf(err) == api.Denied:
		known = knownKey{err: err, until: now.Add(refusalLife)}
	default:
		// Without an answer the request is refused, and the next one asks again.
		return id, &api.Error{Code: api.Unavailable, Message: "API keys cannot be checked now", Next: "try again; anima status shows whether social is running", RetryAfter: 1000}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.known) >= maxKeys {
		for h, e := range k.known {
			if !now.Before(e.until) {
				delete(k.known, h)
			}
		}
	}
	if len(k.known) < maxKeys {
		k.known[hash] = known
	}
	return known.identity, known.err
}
