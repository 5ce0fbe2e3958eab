package openaitest

import (
	"errors"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/anima-run/anima/services/inference-router/internal/provider/simulated"
)

// LoadScript reads the script of a model, for [Simulated].
func LoadScript(path string) (simulated.Script, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return simulated.Script{}, err
	}
	return simulated.Parse(data)
}

// Simulated returns a handler that serves the simulated model: POST /v1/chat/completions
// and GET /v1/models. It does not check keys. It returns an error if the script is
// invalid. now is the clock for the dates of the answers. If refused is not nil, the
// handler refuses each request for which [Check] returns an error, and calls refused with
// the error of each request that it refuses, possibly concurrently.
func Simulated(s simulated.Script, now func() time.Time, refused func(*Error)) (http.Handler, error) {
	p, err := simulated.New(s)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) { simulate(w, r, p, now().Unix(), refused) })
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		WriteModels(w, Model{OwnedBy: "anima"}, append([]string{s.Model}, s.Aliases...)...)
	})
	return mux, nil
}

func simulate(w http.ResponseWriter, r *http.Request, p *simulated.Provider, created int64, refused func(*Error)) {
	req, err := Decode(r.Body, r.ContentLength)
	var wrong *Error
	switch {
	case err != nil:
		wrong = &Error{Message: err.Error()}
	case refused != nil:
		wrong = Check(req)
	}
	if wrong != nil {
		if refused != nil {
			refused(wrong)
		}
		WriteError(w, http.StatusBadRequest, *wrong)
		return
	}
	answer, err := p.Answer(r.Context(), req.Request)
	var fault *simulated.Fault
	switch {
	case errors.As(err, &fault):
		if fault.RetryAfter > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(fault.RetryAfter))
		}
		WriteError(w, fault.Status, Error{Message: fault.Message, Code: fault.Code})
		return
	case err != nil: // the client has disconnected
		return
	case !req.Stream:
		WriteCompletion(w, created, answer.Response)
		return
	}
	out := NewStream(w, answer.ID, answer.Model, created)
	out.Burst = answer.Pause == 0
	err = answer.Stream(r.Context(), func(p simulated.Piece) error {
		if p.Text != "" {
			out.Text(p.Text)
		} else {
			out.Call(p.Index, p.Call.ID, p.Call.Name, p.Call.Arguments)
		}
		return nil
	})
	if err != nil { // the client has disconnected
		return
	}
	out.Finish(answer.Finish)
	if req.IncludeUsage {
		out.Usage(answer.Usage)
	}
	out.Done()
}
