package main

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
)

// TestKeyOfNewAgent creates a key for an agent whose address social does not have yet.
func TestKeyOfNewAgent(t *testing.T) {
	t.Parallel()
	var asks atomic.Int32
	m, _ := scripted(
		t,
		bus.Reply(func(_ context.Context, m api.CreateKey) (api.APIKey, error) {
			if m.Agent != "new" || asks.Add(1) < 3 {
				return api.APIKey{}, api.Errorf(api.NotFound, "there is no agent %q with an address", m.Agent)
			}
			return api.APIKey{ID: "k1", Agent: m.Agent, Name: m.Name, Scopes: m.Scopes}, nil
		}),
		bus.Reply(func(_ context.Context, m api.GetAgent) (api.Agent, error) {
			if m.Agent != "new" {
				return api.Agent{}, api.Errorf(api.NotFound, "there is no agent %q", m.Agent)
			}
			return api.Agent{ID: m.Agent}, nil
		}),
	)
	if k := asked[createdKey](m, "key", "create", "new"); k.ID != "k1" || asks.Load() != 3 {
		t.Errorf("got %+v after %d requests, want a key after 3", k, asks.Load())
	}
	if out := m.fails(exitNotFound, "", []string{"key", "create", "other"}); !strings.Contains(out, `"other" with an address`) {
		t.Errorf("unknown agent: got %q, want the error of social", out)
	}
}

// TestVerifyWithoutTreasury checks that a verification without treasury ends as other
// commands do, and not after verifyLimit.
func TestVerifyWithoutTreasury(t *testing.T) {
	t.Parallel()
	m, _ := scripted(t)
	m.fails(exitUnavailable, "", []string{"ledger", "verify"}, "no treasury service is running")
}
