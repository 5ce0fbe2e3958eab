package treasury_test

import (
	"encoding/json"
	"testing"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/executor/executortest"

	"github.com/anima-run/anima/services/treasury"
)

// allowed returns a tool call with a token of policy.
func allowed(t *testing.T, tool, args string) api.Invocation {
	t.Helper()
	return executortest.Allowed(t, api.Invocation{Agent: "lucky", Turn: "r.1", Tool: tool, Args: json.RawMessage(args), Key: "r.1.0"})
}

func TestTools(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t, apptest.Options{Env: development}, treasury.Service, executortest.Policy()).Bus
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
