package executor

import (
	"context"
	"crypto/ed25519"
	"sync"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
)

// Keys verifies decision tokens with policy's public keys, which it caches. It is safe
// for concurrent use.
type Keys struct {
	bus *bus.Bus

	mu    sync.Mutex
	known []ed25519.PublicKey
}

// NewKeys returns a Keys that requests the keys for the first token.
func NewKeys(b *bus.Bus) *Keys { return &Keys{bus: b} }

// Verify returns the grant of a decision token. If no cached key verifies it, Verify
// requests the keys from policy once, because they may have changed.
func (k *Keys) Verify(ctx context.Context, token string) (api.Grant, error) {
	k.mu.Lock()
	known := k.known
	k.mu.Unlock()
	if g, err := api.VerifyGrant(token, known...); err == nil {
		return g, nil
	}
	answer, err := bus.Call[api.Keys](ctx, k.bus, api.ListKeys{})
	if err != nil {
		return api.Grant{}, err
	}
	known = nil
	for _, key := range answer.Keys {
		known = append(known, key)
	}
	k.mu.Lock()
	k.known = known
	k.mu.Unlock()
	return api.VerifyGrant(token, known...)
}
