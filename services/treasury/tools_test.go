package treasury_test

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/host"

	"github.com/anima-run/anima/services/treasury"
)

var signing = ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))

// policy is a fake of policy that serves its public key.
func policy() host.Service {
	return host.Define("policy", struct{}{}, nil, func(ctx context.Context, env *host.Env, _ struct{}) error {
		return env.Serve(ctx, bus.Reply(func(context.Context, api.ListKeys) (api.Keys, error) {
			public, _ := signing.Public().(ed25519.PublicKey)
			return api.Keys{Keys: [][]byte{public}}, nil
		}))
	})
}

// allowed returns a tool call with a token of policy.
func allowed(t *testing.T, tool, args string) api.Invocation {
	t.Helper()
	hash, err := api.ArgsHash(json.RawMessage(args))
	if err != nil {
		t.Fatal(err)
	}
	token, err := api.Grant{Decision: "d", Agent: "lucky", Turn: "r.1", Tool: tool, ArgsHash: hash, Expires: time.Now().Add(time.Minute).UnixMicro()}.Sign(signing)
	if err != nil {
		t.Fatal(err)
	}
	return api.Invocation{Agent: "lucky", Turn: "r.1", Tool: tool, Args: json.RawMessage(args), Key: "r.1.0", Token: token}
}

func TestTools(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t, apptest.Options{Env: development}, treasury.Service, policy()).Bus
	fund(t, b, 3*api.Dollar)
	if got := ask[api.ToolList](t, b, api.ListTreasuryTools{}).Tools; len(got) != 1 || got[0] != "check_credits" {
		t.Errorf("executes %v", got)
	}
	m := allowed(t, "check_credits", `{}`)
	if got := ask[api.Returned](t, b, api.CallTreasuryTool{Invocation: m}).Text; got != "available $3.00, held $0.00, tier normal" {
		t.Errorf("said %q", got)
	}
	m.Agent = "bob" // lucky may not see bob's account
	refused(t, b, api.CallTreasuryTool{Invocation: m}, api.Denied, "")
	refused(t, b, api.CallTreasuryTool{Invocation: allowed(t, "transfer_credits", `{}`)}, api.NotFound, "")
}
