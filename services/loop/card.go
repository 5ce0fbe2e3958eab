package loop

import (
	"cmp"
	"context"
	"net/http"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/host"
)

// Card is the agent card (docs/reference/platform.md, Agent card), in the form that
// existing agents read.
type Card struct {
	Type        string        `json:"type"`
	Name        string        `json:"name"`
	Description string        `json:"description"`
	Services    []CardService `json:"services"`
	X402        bool          `json:"x402Support"`
	Active      bool          `json:"active"`
}

// CardService is a way to reach an agent.
type CardService struct {
	Name     string `json:"name"`
	Endpoint string `json:"endpoint"`
}

// CardOf returns the card of an agent.
func CardOf(g api.Agent) Card {
	return Card{
		Type: "https://eips.ethereum.org/EIPS/eip-8004#registration-v1", Name: g.Name,
		Description: cmp.Or(g.Description, "Autonomous agent: "+g.Name),
		Services:    []CardService{{Name: "agentWallet", Endpoint: "eip155:8453:" + g.Address}}, Active: g.State != api.StateDead,
	}
}

// httpCard answers with the card of the agent that the query names, or of the only one. It
// lists no agents, because the route is public.
func (h *handlers) httpCard(w http.ResponseWriter, r *http.Request) {
	g, err := h.agentOfCard(r.Context(), r.URL.Query().Get("agent"))
	host.WriteJSON(w, CardOf(g), err)
}

func (h *handlers) agentOfCard(ctx context.Context, named string) (api.Agent, error) {
	if named != "" {
		return h.getAgent(ctx, api.GetAgent{Agent: named})
	}
	all, err := h.store.Agents(ctx, "", 2)
	switch {
	case err != nil:
		return api.Agent{}, err
	case len(all) == 0:
		return api.Agent{}, api.Errorf(api.NotFound, "there is no agent here")
	case len(all) > 1:
		return api.Agent{}, &api.Error{Code: api.Invalid, Message: "there are several agents here", Next: "name one: /.well-known/agent-card.json?agent=NAME"}
	}
	return all[0], nil
}
