package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/anima-run/anima/pkg/api"
)

// TestBalancesOfAllAgents checks that ledger balance reads every page of the agents.
func TestBalancesOfAllAgents(t *testing.T) {
	t.Parallel()
	m := &machine{t: t, env: map[string]string{"HOME": t.TempDir()}}
	m.server(func(q *nats.Msg) {
		var after struct{ After, Agent string }
		_ = json.Unmarshal(q.Data, &after) // a request without the fields
		answer := any(api.Balance{Agent: after.Agent})
		if strings.Contains(q.Subject, ".list_agents.") {
			page := api.Agents{Agents: []api.Agent{{ID: "a"}}, Page: api.Page{More: true, Next: "a"}}
			if after.After != "" {
				page = api.Agents{Agents: []api.Agent{{ID: "b"}}}
			}
			answer = page
		}
		data, err := json.Marshal(answer)
		if err == nil {
			err = q.Respond(data)
		}
		if err != nil {
			t.Error(err)
		}
	})
	got := asked[[]api.Balance](m, "ledger", "balance")
	if len(got) != 2 || got[0].Agent != "a" || got[1].Agent != "b" {
		t.Errorf("got %+v, want the balances of a and b", got)
	}
}
