// Package executortest supplies policy's part in tests of the tools of a service.
package executortest

import (
	"context"
	"crypto/ed25519"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/host"
)

func key() ed25519.PrivateKey { return ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)) }

// Policy returns a fake of policy that serves its public key.
func Policy() host.Service {
	return host.Define("policy", struct{}{}, nil, func(ctx context.Context, env *host.Env, _ struct{}) error {
		return env.Serve(ctx, bus.Reply(func(context.Context, api.ListKeys) (api.Keys, error) {
			public, _ := key().Public().(ed25519.PublicKey)
			return api.Keys{Keys: [][]byte{public}}, nil
		}))
	})
}

// Allowed returns m with its key and a token of [Policy] for it, which is valid for a
// minute.
func Allowed(t *testing.T, m api.Invocation) api.Invocation {
	t.Helper()
	hash, err := api.ArgsHash(m.Args)
	if err != nil {
		t.Fatal(err)
	}
	m.Key = api.CallKey(m.Turn, m.Index)
	m.Token, err = api.Grant{
		Decision: "d", Agent: m.Agent, Turn: m.Turn, Index: m.Index, Tool: m.Tool, ArgsHash: hash, Expires: time.Now().Add(time.Minute).UnixMicro(),
	}.Sign(key())
	if err != nil {
		t.Fatal(err)
	}
	return m
}
