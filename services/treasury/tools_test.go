package treasury_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/executor/executortest"

	"github.com/anima-run/anima/services/treasury"
)

// allowed returns a tool call with a token of policy.
func allowed(t *testing.T, tool, args string) api.Invocation {
	t.Helper()
	return allowedAt(t, 0, tool, args)
}

// allowedAt returns the call at an index of its turn, with a token of policy.
func allowedAt(t *testing.T, index int, tool, args string) api.Invocation {
	t.Helper()
	return executortest.Allowed(t, api.Invocation{Agent: "lucky", Turn: "r.1", Index: index, Tool: tool, Args: json.RawMessage(args)})
}

func TestTools(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t, apptest.Options{Env: development}, treasury.Service, executortest.Policy()).Bus
	fund(t, b, 3*api.Dollar)
	got := ask[api.ToolList](t, b, api.ListTreasuryTools{}).Tools
	if diff := cmp.Diff([]string{"check_credits", "fund_child", "transfer_credits"}, got); diff != "" {
		t.Errorf("tools (-want +got):\n%s", diff)
	}
	m := allowed(t, "check_credits", `{}`)
	if got := ask[api.Returned](t, b, api.CallTreasuryTool{Invocation: m}).Text; got != "available $3.00, held $0.00, tier normal" {
		t.Errorf("said %q", got)
	}
	m.Agent = "bob" // lucky may not see bob's account
	refused(t, b, api.CallTreasuryTool{Invocation: m}, api.Denied, "")
	refused(t, b, api.CallTreasuryTool{Invocation: allowed(t, "transfer_credits", `{}`)}, api.Invalid, "")
}

// TestTransferTool checks that a call transfers once, that it may be repeated after the
// balance has fallen, and that it gives at most half of the credits.
func TestTransferTool(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t, apptest.Options{Env: development}, treasury.Service, executortest.Policy()).Bus
	own := fund(t, b, 3*api.Dollar)
	bob := ask[api.Account](t, b, api.OpenAccount{Agent: "bob"})
	transfer := func(index int, to string, cents int) api.CallTreasuryTool {
		return api.CallTreasuryTool{Invocation: allowedAt(t, index, "transfer_credits", fmt.Sprintf(`{"to_address":%q,"amount_cents":%d,"reason":"for help"}`, to, cents))}
	}
	for range 2 {
		if got := ask[api.Returned](t, b, transfer(0, strings.ToLower(bob.Address), 150)).Text; !strings.HasPrefix(got, "gave $1.50 to 0x") || !strings.HasSuffix(got, "; $1.50 are left") {
			t.Errorf("said %q", got)
		}
	}
	for _, tt := range []struct {
		m      api.CallTreasuryTool
		code   api.Code
		reason string
	}{
		{transfer(1, bob.Address, 76), api.Denied, ""},
		{transfer(2, bob.Address, 500), api.Denied, api.ReasonInsufficient},
		{transfer(3, own.Address, 1), api.Invalid, ""},
		{transfer(4, "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed", 1), api.Invalid, "unknown_recipient"},
		{transfer(5, "0x5aaeb6053F3E94C9b9A09f33669435E7Ef1BeAed", 1), api.Invalid, ""},
		{transfer(6, bob.Address, 0), api.Invalid, ""},
		{transfer(7, bob.Address, -5), api.Invalid, ""},
		{transfer(0, bob.Address, 10), api.Conflict, ""},
	} {
		refused(t, b, tt.m, tt.code, tt.reason)
	}
	twice := transfer(0, bob.Address, 150) // the token allows one transfer, which has the other key
	twice.Key = "r.1.9"
	refused(t, b, twice, api.Denied, "")
	ask[api.Returned](t, b, transfer(8, bob.Address, 75))
	for agent, want := range map[string]api.Micros{"lucky": 75 * api.Cent, "bob": 225 * api.Cent} {
		if got := ask[api.Balance](t, b, api.GetBalance{Agent: agent}); got.Available != want || got.Held != 0 {
			t.Errorf("%s has %s and %s held, want %s", agent, got.Available, got.Held, want)
		}
	}
	if r := ask[api.LedgerReport](t, b, api.VerifyLedger{}); !r.OK {
		t.Errorf("verify: %+v", r)
	}
}
