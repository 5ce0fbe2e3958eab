package router_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	router "github.com/anima-run/anima/services/inference-router"
	"github.com/anima-run/anima/services/inference-router/openaitest"
)

// TestMatrixAtConway checks that the models of the matrix are found at Conway when OpenAI
// is not configured, also with the name of their vendor before them, and at Conway's price.
func TestMatrixAtConway(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"", "openai/"} {
		t.Run(prefix, func(t *testing.T) {
			t.Parallel()
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodGet {
					_, _ = fmt.Fprintf(w, `{"models":[{"id":"%sgpt-5.2","available":true,"pricing":{"input_per_million":2,"output_per_million":16}},
						{"id":"%sgpt-5-mini","available":true,"pricing":{"input_per_million":1,"output_per_million":4}}]}`, prefix, prefix)
					return
				}
				req, err := openaitest.Decode(r.Body, r.ContentLength)
				if err != nil {
					openaitest.WriteError(w, http.StatusBadRequest, openaitest.Error{Message: err.Error()})
					return
				}
				out := openaitest.NewStream(w, "id", req.Model, 0)
				out.Text("from " + req.Model)
				out.Finish("stop")
				out.Usage(openaitest.Usage{Input: 1_000_000, Output: 0})
				out.Done()
			}))
			t.Cleanup(srv.Close)
			b := newBooks()
			w := apptest.Start(t, apptest.Options{Env: map[string]string{"CONWAY_API_URL": srv.URL, "CONWAY_API_KEY": "key"}}, router.Service, b.service())
			for tier, want := range map[api.Tier]string{api.TierHigh: "gpt-5.2", api.TierNormal: "gpt-5.2", api.TierLow: "gpt-5-mini"} {
				call := wish("conway-" + string(tier))
				call.Tier = tier
				got, _, err := complete(t, w.Bus, call)
				if err != nil || got.Provider != "conway" || got.Text != "from "+prefix+want {
					t.Errorf("%s: got %+v, %v, want an answer of %s", tier, got, err, prefix+want)
				}
			}
			route, err := bus.Call[api.Route](t.Context(), w.Bus, api.ExplainRoute{Tier: api.TierHigh, Task: api.TaskTurn})
			if err != nil {
				t.Fatal(err)
			}
			if len(route.Candidates) == 0 || route.Candidates[0].Model != prefix+"gpt-5.2" {
				t.Errorf("explained: got %+v, want %sgpt-5.2 first", route.Candidates, prefix)
			}
		})
	}
}
