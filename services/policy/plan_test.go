package policy_test

import (
	"testing"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"

	"github.com/anima-run/anima/services/policy"
)

// TestApprovePlan tests the vectors V-33 (docs/reference/policy.md, Test vectors): a plan
// above its limit, and a plan of a peer or an unknown principal, need the creator's
// approval.
func TestApprovePlan(t *testing.T) {
	t.Parallel()
	b := apptest.Bus(t, policy.Service)
	plan := api.ApprovePlan{
		Agent: "lucky", Goal: "g1", Version: 1, Title: "A book", Tasks: 3, Cost: 5000 * api.Cent, Limit: 5000 * api.Cent, Hash: "ab",
		By: api.Principal{Kind: api.Creator},
	}
	with := func(goal string, f func(*api.ApprovePlan)) api.ApprovePlan {
		p := plan
		p.Goal = goal
		f(&p)
		return p
	}
	for _, tt := range []struct {
		name string
		m    api.ApprovePlan
		want api.Action
		code string
	}{
		{"at the limit", plan, api.Allow, "ALLOWED"},
		{"above the limit", with("g2", func(p *api.ApprovePlan) { p.Cost++ }), api.Quarantine, "PLAN_OVER_LIMIT"},
		{"99,999 cents", with("g3", func(p *api.ApprovePlan) { p.Cost = 99_999 * api.Cent }), api.Quarantine, "PLAN_OVER_LIMIT"},
		{"by the agent", with("g4", func(p *api.ApprovePlan) { p.By.Kind = api.Self }), api.Allow, "ALLOWED"},
		{"in a wake", with("g5", func(p *api.ApprovePlan) { p.By.Kind = api.HeartbeatKind }), api.Allow, "ALLOWED"},
		{"by a peer", with("g6", func(p *api.ApprovePlan) { p.By = api.Principal{Kind: api.Peer, Address: "0x1"} }), api.Quarantine, "PLAN_BY_STRANGER"},
		{"no principal", with("g7", func(p *api.ApprovePlan) { p.By = api.Principal{} }), api.Quarantine, "PLAN_BY_STRANGER"},
	} {
		d := must[api.Decision](t, b, tt.m)
		if d.Action != tt.want || d.Code != tt.code || d.Token != "" || d.Turn != tt.m.Goal || d.Index != 1 || d.Tool != api.PlanTool {
			t.Errorf("%s: %+v", tt.name, d)
		}
		if (tt.want == api.Allow) != (d.Message == "") {
			t.Errorf("%s: %q", tt.name, d.Message)
		}
		if again := must[api.Decision](t, b, tt.m); again.ID != d.ID || again.Action != d.Action {
			t.Errorf("%s, asked again: %+v", tt.name, again)
		}
	}
	if _, err := ask[api.Decision](t, b, with("g1", func(p *api.ApprovePlan) { p.Hash = "cd" })); api.CodeOf(err) != api.Conflict {
		t.Errorf("another plan of this version: %v", err)
	}
	for name, m := range map[string]api.ApprovePlan{
		"no goal": with("", func(*api.ApprovePlan) {}), "no version": with("g8", func(p *api.ApprovePlan) { p.Version = 0 }),
		"a cost below zero": with("g8", func(p *api.ApprovePlan) { p.Cost = -1 }), "no hash": with("g8", func(p *api.ApprovePlan) { p.Hash = "" }),
	} {
		if _, err := ask[api.Decision](t, b, m); api.CodeOf(err) != api.Invalid {
			t.Errorf("%s: %v, want invalid", name, err)
		}
	}
	list := must[api.Decisions](t, b, api.ListDecisions{Turn: "g2"}).Decisions
	if len(list) != 1 || list[0].Action != api.Quarantine {
		t.Errorf("recorded: %+v", list)
	}
}
