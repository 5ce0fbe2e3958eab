package e2e

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/services/inference-router/openaitest"
)

// play answers one request.
type play func(*exchange)

// part is the sequence of plays of a model, one for each call. After the last play, the
// model answers with [goodAnswer], or repeats the last play if forever is set.
type part struct {
	plays   []play
	forever bool
}

// strictServer is an [http.Handler] with OpenAI's protocol whose models answer well, in
// unusual ways, or not at all. It answers each request that the protocol does not allow
// with 400. Use [newStrictServer] to create one. It is safe for concurrent use.
type strictServer struct {
	parts map[string]part

	mu      sync.Mutex
	calls   map[string]int
	refused map[string][]string
	gone    map[string]bool
}

// newStrictServer returns a server of these models, by id.
func newStrictServer(parts map[string]part) *strictServer {
	return &strictServer{parts: parts, calls: map[string]int{}, refused: map[string][]string{}, gone: map[string]bool{}}
}

// callsOf returns the number of completion requests to a model, including refused ones.
func (s *strictServer) callsOf(model string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[model]
}

// refusals returns the error messages of the requests to a model that violated the
// protocol.
func (s *strictServer) refusals(model string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.refused[model])
}

// Usage of a good answer in tokens, and its cost in micro-USD with the prices of
// [strictServer.list].
const (
	goodInput  = 1000
	goodOutput = 100
	goodCost   = goodInput*1 + goodOutput*4
)

// ServeHTTP answers GET /v1/models and POST /v1/chat/completions.
func (s *strictServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.Method + " " + r.URL.Path {
	case "GET /v1/models":
		s.list(w)
	case "POST /v1/chat/completions":
		s.complete(w, r)
	default:
		openaitest.WriteError(w, http.StatusNotFound, openaitest.Error{Message: "unknown request URL: " + r.Method + " " + r.URL.Path})
	}
}

func (s *strictServer) list(w http.ResponseWriter) {
	s.mu.Lock()
	ids := slices.DeleteFunc(slices.Sorted(maps.Keys(s.parts)), func(id string) bool { return s.gone[id] })
	s.mu.Unlock()
	// The prices are in USD per token.
	openaitest.WriteModels(w, openaitest.Model{ContextLength: 128_000, Pricing: map[string]string{"prompt": "0.000001", "completion": "0.000004"}}, ids...)
}

func (s *strictServer) complete(w http.ResponseWriter, r *http.Request) {
	req, err := openaitest.Decode(r.Body, r.ContentLength)
	fault := openaitest.Check(req)
	if err != nil {
		fault = &openaitest.Error{Message: err.Error()}
	}
	s.mu.Lock()
	n := s.calls[req.Model]
	s.calls[req.Model]++
	if fault != nil {
		s.refused[req.Model] = append(s.refused[req.Model], fault.Message)
	}
	all, ok := s.parts[req.Model]
	ok = ok && !s.gone[req.Model]
	s.mu.Unlock()
	switch {
	case fault != nil:
		openaitest.WriteError(w, http.StatusBadRequest, *fault)
		return
	case !ok:
		message := fmt.Sprintf("The model %q does not exist or you do not have access to it.", req.Model)
		openaitest.WriteError(w, http.StatusNotFound, openaitest.Error{Message: message, Param: "model", Code: "model_not_found"})
		return
	}
	answer := goodAnswer("fine")
	switch {
	case n < len(all.plays):
		answer = all.plays[n]
	case all.forever:
		answer = all.plays[len(all.plays)-1]
	}
	answer(&exchange{Stream: openaitest.NewStream(w, "chatcmpl-1", req.Model, 1), Request: req, Writer: w, HTTP: r, server: s})
}

// exchange is one request and its answer in progress, a stream unless a play writes to
// Writer.
type exchange struct {
	*openaitest.Stream

	Request openaitest.Request
	Writer  http.ResponseWriter
	HTTP    *http.Request
	server  *strictServer
}

// Vanish removes the model from the server: it is no longer listed, and requests for it
// get 404.
func (x *exchange) Vanish() {
	x.server.mu.Lock()
	defer x.server.mu.Unlock()
	x.server.gone[x.Request.Model] = true
}

// Usage writes the chunk with the usage, in tokens.
func (x *exchange) Usage(input, output int64) {
	x.Stream.Usage(openaitest.Usage{Input: input, Output: output})
}

// End writes the finish reason, the usage if it was requested, and the end of the stream.
func (x *exchange) End(reason string) {
	x.Finish(reason)
	if x.Request.IncludeUsage {
		x.Usage(goodInput, goodOutput)
	}
	x.Done()
}

// Whole answers with one JSON document.
func (x *exchange) Whole(text string) {
	openaitest.WriteCompletion(x.Writer, 1, openaitest.Response{
		ID: "chatcmpl-1", Model: x.Request.Model, Text: text, Finish: api.FinishStop, Usage: openaitest.Usage{Input: goodInput, Output: goodOutput},
	})
}

// Hang keeps the answer open until the client disconnects.
func (x *exchange) Hang() { <-x.HTTP.Context().Done() }

// Reset aborts the connection.
func (x *exchange) Reset() { panic(http.ErrAbortHandler) }

// goodAnswer returns a play with a good answer, streamed if the request asks for a stream.
func goodAnswer(text string) play {
	return func(x *exchange) {
		if !x.Request.Stream {
			x.Whole(text)
			return
		}
		for _, word := range strings.SplitAfter(text, " ") {
			x.Text(word)
		}
		x.End(api.FinishStop)
	}
}
