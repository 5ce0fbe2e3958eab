package router_test

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/host"
	router "github.com/anima-run/anima/services/inference-router"
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
	p := serve(t)
	b := apptest.Start(t, apptest.Options{Env: map[string]string{
		"OPENAI_BASE_URL": p.url, "OPENAI_API_KEY": "sekret-key", "ANIMA_INFERENCE_ROUTER_MODELS": "m=0/0/128000",
	}}, router.Service, policy()).Bus
	list, err := bus.Call[api.ToolList](t.Context(), b, api.ListInferenceTools{})
	if err != nil || len(list.Tools) != 2 {
		t.Errorf("executes %v, %v", list.Tools, err)
	}
	for tool, want := range map[string]string{"list_models": "m: $0.00, $0.00; 128000 tokens", "check_inference_spending": "$0.00 in the last 1 × 24 h"} {
		got, err := bus.Call[api.Returned](t.Context(), b, api.CallInferenceTool{Invocation: allowed(t, tool, `{}`)})
		if err != nil || !strings.Contains(got.Text, want) || strings.Contains(got.Text, "sekret") {
			t.Errorf("%s said %q, %v, want %q in it", tool, got.Text, err, want)
		}
	}
	if _, err := bus.Call[api.Returned](t.Context(), b, api.CallInferenceTool{Invocation: allowed(t, "check_inference_spending", `{"days":0}`)}); api.CodeOf(err) != api.Invalid {
		t.Errorf("days 0: %v, want invalid", err)
	}
}
