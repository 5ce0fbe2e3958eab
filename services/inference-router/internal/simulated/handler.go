package simulated

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/anima-run/anima/pkg/api/chat"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
	"github.com/anima-run/anima/services/inference-router/internal/provider/openai/wire"
)

// Handler answers POST /v1/chat/completions and GET /v1/models. It does not check keys.
// It is safe for concurrent use.
type Handler struct {
	play *play
	mux  *http.ServeMux
	now  func() time.Time

	requests wire.Decoder

	mu     sync.Mutex
	failed map[*step]int // failures so far of steps with Times
}

// New returns a handler, or an error if the script is invalid. now is the clock for the
// dates of the answers.
func New(s Script, now func() time.Time) (*Handler, error) {
	p, err := compile(s)
	if err != nil {
		return nil, err
	}
	h := &Handler{play: p, mux: http.NewServeMux(), now: now, failed: map[*step]int{}}
	h.mux.HandleFunc("POST /v1/chat/completions", h.complete)
	h.mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		wire.WriteModels(w, "anima", append([]string{s.Model}, s.Aliases...)...)
	})
	h.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		wire.WriteError(w, http.StatusNotFound, wire.Error{Message: "the simulated model has no " + r.Method + " " + r.URL.Path})
	})
	return h, nil
}

// ServeHTTP answers one request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.mux.ServeHTTP(w, r) }

func (h *Handler) complete(w http.ResponseWriter, r *http.Request) {
	body, err := h.requests.Decode(r.Body, r.ContentLength)
	if err != nil {
		wire.WriteError(w, http.StatusBadRequest, wire.Error{Message: err.Error()})
		return
	}
	req := body.Neutral()
	if string(body.ToolChoice) == `"none"` {
		req.Tools = nil
	}
	size := req.Estimate()
	if status, fault := h.refuse(req, size); status != 0 {
		wire.WriteError(w, status, fault)
		return
	}
	s, sc, text, err := h.play.choose(req)
	if err != nil {
		wire.WriteError(w, http.StatusInternalServerError, wire.Error{Message: "the script: " + err.Error()})
		return
	}
	if s != nil {
		if wait(r.Context(), s.DelayMS) != nil {
			return // the client has disconnected
		}
		if f := h.fault(s); f != nil {
			if f.RetryAfter > 0 {
				w.Header().Set("Retry-After", strconv.Itoa(f.RetryAfter))
			}
			message := f.Message
			if message == "" {
				message = "an error of the script"
			}
			wire.WriteError(w, f.Status, wire.Error{Message: message, Code: f.Code})
			return
		}
	}
	res, err := h.play.answer(req, size, s, sc, text)
	if err != nil {
		wire.WriteError(w, http.StatusInternalServerError, wire.Error{Message: "the script: " + err.Error()})
		return
	}
	if !body.Stream {
		wire.WriteCompletion(w, h.now().Unix(), res)
		return
	}
	pause := 0
	if s != nil {
		pause = s.DeltaMS
	}
	// An error means that the client has disconnected, so it cannot be reported.
	_ = h.stream(r.Context(), w, res, pause, body.StreamOptions.IncludeUsage)
}

// refuse returns the status and error for a request that any provider refuses, 0 if there
// is none. size is the number of tokens of the prompt.
func (h *Handler) refuse(req provider.Request, size int64) (int, wire.Error) {
	s := h.play.script
	if req.Model != s.Model && !slices.Contains(s.Aliases, req.Model) {
		return http.StatusNotFound, wire.Error{Message: "the model " + strconv.Quote(req.Model) + " does not exist; this is " + s.Model, Code: "model_not_found", Param: "model"}
	}
	if err := chat.Roles(req.Messages); err != nil {
		return http.StatusBadRequest, wire.Error{Message: err.Error(), Param: "messages"}
	}
	if err := paired(req.Messages); err != nil {
		return http.StatusBadRequest, wire.Error{Message: err.Error(), Param: "messages"}
	}
	if s.ContextWindow > 0 && size+req.MaxTokens > s.ContextWindow {
		return http.StatusBadRequest, wire.Error{
			Message: "this model's maximum context length is " + strconv.FormatInt(s.ContextWindow, 10) + " tokens",
			Code:    "context_length_exceeded", Param: "messages",
		}
	}
	return 0, wire.Error{}
}

// fault returns the step's error if the step fails this time, else nil.
func (h *Handler) fault(s *step) *Fault {
	if s.Error == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if s.Error.Times > 0 && h.failed[s] >= s.Error.Times {
		return nil
	}
	h.failed[s]++
	return s.Error
}

func (h *Handler) stream(ctx context.Context, w http.ResponseWriter, res provider.Response, pauseMS int, usage bool) error {
	begin := wire.NewStream
	if pauseMS == 0 {
		begin = wire.NewBurst // without pauses, a flush for each piece has no use
	}
	out, err := begin(w, res.ID, res.Model, h.now().Unix())
	if err != nil {
		return err
	}
	sizes := h.sizes(res.ID)
	first := true
	send := func(write func() error) error {
		if !first {
			if err := wait(ctx, pauseMS); err != nil {
				return err
			}
		}
		first = false
		return write()
	}
	for _, piece := range pieces(res.Text, sizes) {
		if err := send(func() error { return out.Text(piece) }); err != nil {
			return err
		}
	}
	for i, c := range res.ToolCalls {
		part := provider.ToolCall{ID: c.ID, Name: c.Name}
		for _, piece := range pieces(c.Arguments, sizes) {
			part.Arguments = piece
			if err := send(func() error { return out.Call(i, part) }); err != nil {
				return err
			}
			part = provider.ToolCall{}
		}
	}
	if err := out.Finish(res.Finish); err != nil {
		return err
	}
	if usage {
		if err := out.Usage(res.Usage); err != nil {
			return err
		}
	}
	return out.Done()
}

// sizes returns a function for the sizes of an answer's pieces, in characters: 4 to 31,
// the same sequence for the same answer and seed.
func (h *Handler) sizes(id string) func() int {
	var state [8]byte
	copy(state[:], id[len(id)-8:])
	r := rand.New(rand.NewPCG(h.play.script.Seed, binary.BigEndian.Uint64(state[:])))
	return func() int { return 4 + r.IntN(28) }
}

// pieces splits a text at character boundaries.
func pieces(text string, size func() int) []string {
	var out []string
	for len(text) > 0 {
		end := 0
		for range size() {
			_, n := utf8.DecodeRuneInString(text[end:])
			end += n
		}
		out = append(out, text[:end])
		text = text[end:]
	}
	return out
}

func wait(ctx context.Context, ms int) error {
	if ms == 0 {
		return ctx.Err()
	}
	t := time.NewTimer(time.Duration(ms) * time.Millisecond)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
