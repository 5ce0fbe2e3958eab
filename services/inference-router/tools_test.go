package router_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/executor/executortest"

	router "github.com/anima-run/anima/services/inference-router"
)

// allowed returns a tool call with a token of policy.
func allowed(t *testing.T, tool, args string) api.Invocation {
	t.Helper()
	return executortest.Allowed(t, api.Invocation{Agent: "lucky", Turn: "r.1", Tool: tool, Args: json.RawMessage(args)})
}

func TestTools(t *testing.T) {
	t.Parallel()
	p := serve(t)
	b := apptest.Start(t, apptest.Options{Env: map[string]string{
		"OPENAI_BASE_URL": p.url, "OPENAI_API_KEY": "sekret-key", "ANIMA_INFERENCE_ROUTER_MODELS": "m=0/0/128000",
	}}, router.Service, executortest.Policy()).Bus
	list, err := bus.Call[api.ToolList](t.Context(), b, api.ListInferenceTools{})
	if err != nil || len(list.Tools) != 4 {
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
