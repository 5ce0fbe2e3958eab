package social

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/host"
	"github.com/anima-run/anima/services/social/internal/auth"
	"github.com/anima-run/anima/services/social/internal/message"
	"github.com/anima-run/anima/services/social/internal/registration"
)

// registrar stores registrations.
type registrar interface {
	Register(ctx context.Context, r registration.Registration, now time.Time) (registration.Registration, error)
}

// automaton is a registration in a response, in the format of existing clients.
type automaton struct {
	ID      string `json:"automaton_id"`
	Address string `json:"automaton_address"`
	Creator string `json:"creator_address"`
	Name    string `json:"name"`
	Bio     string `json:"bio"`
	Genesis string `json:"genesis_prompt_hash,omitempty"`
	At      string `json:"registered_at"`
}

// registerAutomaton stores what an agent says about itself. Existing clients send it at each
// start until it is accepted (docs/reference/social.md, Registration). A repeated request has
// the same answer.
func (i *identity) registerAutomaton(store registrar) http.HandlerFunc {
	return i.keyed(i.usable, func(w http.ResponseWriter, r *http.Request, k auth.Key) (any, error) {
		if !slices.Contains(k.Scopes, api.ScopeSpend) {
			return nil, &api.Error{Code: api.Denied, Reason: api.ReasonScope, Message: "the API key has not the scope spend", Next: "create a key with it"}
		}
		body, err := host.ReadBody(w, r, maxAuthBody)
		if err != nil {
			return nil, err
		}
		reg, err := registration.Verify(body)
		if err != nil {
			return nil, err
		}
		if reg.Address != k.Address {
			return nil, &api.Error{Code: api.Denied, Message: "the API key belongs to another address than automaton_address", Next: "use a key of the wallet that signs"}
		}
		if reg, err = store.Register(r.Context(), reg, i.now()); err != nil {
			return nil, err
		}
		return map[string]automaton{"automaton": {
			ID: reg.ID, Address: message.Display(reg.Address), Creator: message.Display(reg.Creator), Name: reg.Name, Bio: reg.Bio, Genesis: reg.Genesis,
			At: message.FormatTime(time.UnixMicro(reg.At)),
		}}, nil
	})
}
