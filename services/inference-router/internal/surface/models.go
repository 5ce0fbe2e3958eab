package surface

import (
	"net/http"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

// openAIModel is a model in OpenAI's format.
type openAIModel struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"` // unknown
	OwnedBy string `json:"owned_by"`
}

func openAIModelOf(m api.Model) openAIModel {
	return openAIModel{ID: m.ID, Object: "model", OwnedBy: m.Provider}
}

// Model implements [Lister].
func (OpenAI) Model(w http.ResponseWriter, m api.Model) { write(w, http.StatusOK, openAIModelOf(m)) }

// Models implements [Lister].
func (OpenAI) Models(w http.ResponseWriter, all []api.Model) {
	list := []openAIModel{}
	for _, m := range all {
		list = append(list, openAIModelOf(m))
	}
	write(w, http.StatusOK, map[string]any{"object": "list", "data": list})
}

// anthropicModel is a model in Anthropic's format. The protocol has the beginning of the
// epoch for an unknown time.
type anthropicModel struct {
	Type      string    `json:"type"`
	ID        string    `json:"id"`
	Name      string    `json:"display_name"`
	CreatedAt time.Time `json:"created_at"`
	MaxInput  int64     `json:"max_input_tokens,omitempty"`
	MaxOutput int64     `json:"max_tokens,omitempty"`
}

func anthropicModelOf(m api.Model) anthropicModel {
	return anthropicModel{Type: "model", ID: m.ID, Name: m.ID, CreatedAt: time.Unix(0, 0).UTC(), MaxInput: m.ContextWindow, MaxOutput: m.MaxOutput}
}

// Model implements [Lister].
func (Anthropic) Model(w http.ResponseWriter, m api.Model) {
	write(w, http.StatusOK, anthropicModelOf(m))
}

// Models implements [Lister]. All models are in one page.
func (Anthropic) Models(w http.ResponseWriter, all []api.Model) {
	page := struct {
		Data    []anthropicModel `json:"data"`
		HasMore bool             `json:"has_more"`
		FirstID *string          `json:"first_id"`
		LastID  *string          `json:"last_id"`
	}{Data: []anthropicModel{}}
	for _, m := range all {
		page.Data = append(page.Data, anthropicModelOf(m))
	}
	if n := len(all); n > 0 {
		page.FirstID, page.LastID = &all[0].ID, &all[n-1].ID
	}
	write(w, http.StatusOK, page)
}
