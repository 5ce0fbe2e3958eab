package openai_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/anima-run/anima/pkg/api/chat"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
	"github.com/anima-run/anima/services/inference-router/internal/provider/providertest"
	"github.com/anima-run/anima/services/inference-router/openaitest"
)

// TestHistories checks that a strict server accepts every history, and that the history
// sent has every text of the original.
func TestHistories(t *testing.T) {
	t.Parallel()
	for _, h := range providertest.Histories() {
		t.Run(h.Name, func(t *testing.T) {
			t.Parallel()
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
			req := provider.Request{Model: "m", Messages: chat.Normalize(h.Messages, !h.NoTools)}
			if !h.NoTools {
				req.Tools = providertest.Tools()
			}
			if _, err := p.Complete(t.Context(), req, nil); err != nil {
				t.Fatalf("got %v, sent %+v", err, req.Messages)
			}
			var sent strings.Builder
			for _, m := range got.Messages {
				sent.WriteString(m.Content)
				for _, c := range m.ToolCalls {
					sent.WriteString(c.Arguments)
				}
			}
			for _, m := range h.Messages {
				// The number of replacement characters for invalid bytes may differ.
				text := strings.ToValidUTF8(strings.TrimSpace(m.Content), "")
				if !strings.Contains(strings.ReplaceAll(sent.String(), "\uFFFD", ""), text) {
					t.Errorf("the text %q is missing in %q", text, sent.String())
				}
			}
		})
	}
}
