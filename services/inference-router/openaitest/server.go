// Package openaitest is the server side of OpenAI's chat completions, for tests: it
// decodes and checks requests and writes answers, whole or as server-sent events.
// [Server] is a strict server whose models answer well, in unusual ways, or not at all.
// [Simulated] serves the simulated model.
package openaitest

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// Play answers one request.
type Play func(*Exchange)

// Part is the sequence of plays of a model, one for each call. After the last play, the
// model answers with [Good], or repeats the last play if Forever is set.
type Part struct {
	Plays   []Play
	Forever bool
}

// Server is an [http.Handler] that answers each request that the protocol does not allow
// with 400. Use [New] to create one. It is safe for concurrent use.
type Server struct {
	parts map[string]Part

	mu      sync.Mutex
	calls   map[string]int
	refused map[string][]string
	gone    map[string]bool
}

// New returns a server of these models, by id.
func New(parts map[string]Part) *Server {
	return &Server{parts: parts, calls: map[string]int{}, refused: map[string][]string{}, gone: map[string]bool{}}
}

// Calls returns the number of completion requests to a model, including refused ones.
func (s *Server) Calls(model string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[model]
}

// Refused returns the error messages of the requests to a model that violated the
// protocol.
func (s *Server) Refused(model string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.refused[model])
}

// window is the context length of each model, in tokens, and pricing its prices in USD
// per token.
const window = 128_000

func pricing() map[string]string {
	return map[string]string{"prompt": "0.000001", "completion": "0.000004"}
}

// Usage of a good answer in tokens, and its cost in micro-USD.
const (
	goodInput  = 1000
	goodOutput = 100
	GoodCost   = goodInput*1 + goodOutput*4
)

// ServeHTTP answers GET /v1/models and POST /v1/chat/completions.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.Method + " " + r.URL.Path {
	case "GET /v1/models":
		s.mu.Lock()
		ids := slices.DeleteFunc(slices.Sorted(maps.Keys(s.parts)), func(id string) bool { return s.gone[id] })
		s.mu.Unlock()
		WriteModels(w, Model{ContextLength: window, Pricing: pricing()}, ids...)
	case "POST /v1/chat/completions":
		s.complete(w, r)
	default:
		WriteError(w, http.StatusNotFound, Error{Message: "unknown request URL: " + r.Method + " " + r.URL.Path})
	}
}

func (s *Server) complete(w http.ResponseWriter, r *http.Request) {
	req, err := Decode(r.Body, r.ContentLength)
	fault := req.Check()
	if err != nil {
		fault = &Error{Message: err.Error()}
	}
	s.mu.Lock()
	n := s.calls[req.Model]
	s.calls[req.Model]++
	if fault != nil {
		s.refused[req.Model] = append(s.refused[req.Model], fault.Message)
	}
	part, ok := s.parts[req.Model]
	ok = ok && !s.gone[req.Model]
	s.mu.Unlock()
	switch {
	case fault != nil:
		WriteError(w, http.StatusBadRequest, *fault)
		return
	case !ok:
		message := fmt.Sprintf("The model %q does not exist or you do not have access to it.", req.Model)
		WriteError(w, http.StatusNotFound, Error{Message: message, Param: "model", Code: "model_not_found"})
		return
	}
	play := Good("fine")
	switch {
	case n < len(part.Plays):
		play = part.Plays[n]
	case part.Forever:
		play = part.Plays[len(part.Plays)-1]
	}
	play(&Exchange{Stream: NewStream(w, "chatcmpl-1", req.Model, 1), Request: req, Writer: w, HTTP: r, server: s})
}

// Exchange is one request and its answer in progress, a stream unless a play writes to
// Writer.
type Exchange struct {
	*Stream

	Request Request
	Writer  http.ResponseWriter
	HTTP    *http.Request
	server  *Server
}

// Vanish removes the model from the server: it is no longer listed, and requests for it
// get 404.
func (x *Exchange) Vanish() {
	x.server.mu.Lock()
	defer x.server.mu.Unlock()
	x.server.gone[x.Request.Model] = true
}

// Usage writes the chunk with the usage, in tokens.
func (x *Exchange) Usage(input, output int64) {
	x.Stream.Usage(provider.Usage{Input: input, Output: output})
}

// End writes the finish reason, the usage if it was requested, and the end of the stream.
func (x *Exchange) End(reason string) {
	x.Finish(reason)
	if x.Request.IncludeUsage {
		x.Usage(goodInput, goodOutput)
	}
	x.Done()
}

// Whole answers with one JSON document.
func (x *Exchange) Whole(text string) {
	WriteCompletion(x.Writer, 1, provider.Response{
		ID: "chatcmpl-1", Model: x.Request.Model, Text: text, Finish: provider.FinishStop, Usage: provider.Usage{Input: goodInput, Output: goodOutput},
	})
}

// Hang keeps the answer open until the client disconnects.
func (x *Exchange) Hang() { <-x.HTTP.Context().Done() }

// Reset aborts the connection.
func (x *Exchange) Reset() { panic(http.ErrAbortHandler) }

// Good returns a play with a good answer, streamed if the request asks for a stream.
func Good(text string) Play {
	return func(x *Exchange) {
		if !x.Request.Stream {
			x.Whole(text)
			return
		}
		for _, word := range strings.SplitAfter(text, " ") {
			x.Text(word)
		}
		x.End(provider.FinishStop)
	}
}
