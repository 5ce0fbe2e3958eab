package router_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	router "github.com/anima-run/anima/services/inference-router"

	"github.com/anima-run/anima/services/inference-router/internal/provider/anthropic/anthropictest"
)

// TestAnthropic makes a call with Anthropic as the only provider: its list of models is
// joined with their list prices, and an agent that names no model gets one.
func TestAnthropic(t *testing.T) {
	t.Parallel()
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			list := func(id string) anthropictest.Model {
				return anthropictest.Model{ID: id, Type: "model", CreatedAt: "2026-01-01T00:00:00Z"}
			}
			anthropictest.WriteModels(w, false, list("claude-sonnet-4-5-20250929"), list("claude-later-9"))
			return
		}
		req, err := anthropictest.Decode(r.Body)
		if err != nil || r.Header.Get("X-Api-Key") != "sekret" {
			anthropictest.WriteError(w, http.StatusBadRequest, "invalid_request_error", "refused")
			return
		}
		s := anthropictest.NewStream(w, "msg_1", req.Model)
		s.Text("hello from " + req.Model)
		s.Finish("stop")
		s.Done()
	}))
	t.Cleanup(up.Close)
	w := apptest.Start(t, apptest.Options{Env: map[string]string{
		"ANTHROPIC_API_KEY": "sekret", "ANTHROPIC_BASE_URL": up.URL, "ANIMA_INFERENCE_ROUTER_LOCAL": "yes",
	}}, router.Service)
	models, err := bus.Call[api.Models](t.Context(), w.Bus, api.ListModels{})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range models.Models {
		switch m.ID {
		case "claude-sonnet-4-5-20250929":
			if !m.Usable || m.InputPrice != 3*api.Dollar || m.OutputPrice != 15*api.Dollar || m.Provider != "anthropic" {
				t.Errorf("got %+v, want the prices of claude-sonnet-4-5", m)
			}
		case "claude-later-9":
			if m.Usable {
				t.Errorf("a model without a known price is usable: %+v", m)
			}
		default:
			if m.Usable {
				t.Errorf("got %+v, which is not in the list", m)
			}
		}
	}
}
