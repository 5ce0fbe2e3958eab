// Package simulatedtest serves the simulated model over OpenAI's protocol, for tests and
// benchmarks of the path from the router to a server.
package simulatedtest

import (
	"context"
	"errors"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/anima-run/anima/services/inference-router/internal/provider/openai/openaitest"
	"github.com/anima-run/anima/services/inference-router/internal/provider/simulated"
)

// Load reads the script of a model, for [Handler].
func Load(path string) (simulated.Script, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return simulated.Script{}, err
	}
	return simulated.Parse(data)
}

// Handler returns a handler for POST /v1/chat/completions and GET /v1/models. It does not
// check keys. It returns an error if the script is invalid. now is the clock for the dates
// of the answers.
func Handler(s simulated.Script, now func() time.Time) (http.Handler, error) {
	p, err := simulated.New(s)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) { complete(w, r, p, now().Unix()) })
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		openaitest.WriteModels(w, "anima", append([]string{s.Model}, s.Aliases...)...)
	})
	return mux, nil
}

func complete(w http.ResponseWriter, r *http.Request, p *simulated.Provider, created int64) {
	body, err := openaitest.Decode(r.Body)
	if err != nil {
		openaitest.WriteError(w, http.StatusBadRequest, openaitest.Error{Message: err.Error()})
		return
	}
	answer, err := p.Answer(r.Context(), body.Neutral())
	var fault *simulated.Fault
	switch {
	case errors.As(err, &fault):
		if fault.RetryAfter > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(fault.RetryAfter))
		}
		openaitest.WriteError(w, fault.Status, openaitest.Error{Message: fault.Message, Code: fault.Code})
	case err != nil: // the client has disconnected
	case body.Stream:
		// An error means that the client has disconnected, so it cannot be reported.
		_ = stream(r.Context(), w, answer, created, body.StreamOptions.IncludeUsage)
	default:
		openaitest.WriteCompletion(w, created, answer.Response)
	}
}

func stream(ctx context.Context, w http.ResponseWriter, answer simulated.Answer, created int64, usage bool) error {
	out, err := openaitest.NewStream(w, answer.ID, answer.Model, created)
	if err != nil {
		return err
	}
	err = answer.Stream(ctx, func(p simulated.Piece) error {
		if p.Text != "" {
			return out.Text(p.Text)
		}
		return out.Call(p.Index, p.Call)
	})
	if err != nil {
		return err
	}
	if err := out.Finish(answer.Finish); err != nil {
		return err
	}
	if usage {
		if err := out.Usage(answer.Usage); err != nil {
			return err
		}
	}
	return out.Done()
}
