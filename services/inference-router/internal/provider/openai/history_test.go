package openai_test

import (
	"net/http"
	"testing"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
	"github.com/anima-run/anima/services/inference-router/internal/provider/providertest"
	"github.com/anima-run/anima/services/inference-router/openaitest"
)

func TestHistories(t *testing.T) {
	t.Parallel()
	providertest.RunHistories(t, func(t *testing.T) (provider.Provider, func() []provider.Message) {
		var got openaitest.Request
		p := connect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var err error
			if got, err = openaitest.Decode(r.Body, r.ContentLength); err != nil {
				openaitest.WriteError(w, http.StatusBadRequest, openaitest.Error{Message: err.Error()})
				return
			}
			if fault := openaitest.Check(got); fault != nil {
				openaitest.WriteError(w, http.StatusBadRequest, *fault)
				return
			}
			s := openaitest.NewStream(w, "c", got.Model, 1)
			s.Text("fine")
			s.Finish("stop")
			s.Usage(provider.Usage{Input: 1, Output: 1})
			s.Done()
		}))
		return p, func() []provider.Message { return got.Messages }
	})
}
