// Package stricttest provides a strict model server for tests of other packages. It
// serves OpenAI's chat completions over HTTP and answers each request that the protocol
// does not allow with 400. Otherwise each model follows its [Part]: good answers, unusual
// answers and failures.
//
// It is for tests only.
package stricttest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// Play answers one request.
type Play func(*Exchange)

// Part is the sequence of plays of a model, one for each call. After the last play, the
// model answers with [Good], or repeats the last play if Forever is set.
type Part struct {
	Plays   []Play
	Forever bool
}

// Server is an [http.Handler]. Use [New] to create one. It is safe for concurrent use.
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

// Prices of each model, in micro-USD per million tokens.
const (
	InputPrice  = 1_000_000
	OutputPrice = 4_000_000
)

// Window is the context window of each model, in tokens.
const Window = 128_000

// ServeHTTP answers GET /v1/models and POST /v1/chat/completions.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.Method + " " + r.URL.Path {
	case "GET /v1/models":
		s.list(w)
	case "POST /v1/chat/completions":
		s.complete(w, r)
	default:
		Refuse(w, http.StatusNotFound, "", "unknown request URL: "+r.Method+" "+r.URL.Path)
	}
}

func (s *Server) list(w http.ResponseWriter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	data := []map[string]any{}
	for id := range s.parts {
		if !s.gone[id] {
			data = append(data, map[string]any{
				"id": id, "object": "model", "context_length": Window, "pricing": map[string]string{"prompt": "0.000001", "completion": "0.000004"},
			})
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"object": "list", "data": data}) // the client has disconnected
}

func (s *Server) complete(w http.ResponseWriter, r *http.Request) {
	req, err := decode(r.Body)
	s.mu.Lock()
	s.calls[req.Model]++
	n := s.calls[req.Model]
	if err != nil {
		s.refused[req.Model] = append(s.refused[req.Model], err.Error())
	}
	part, ok := s.parts[req.Model]
	ok = ok && !s.gone[req.Model]
	s.mu.Unlock()
	switch f := (*fault)(nil); {
	case errors.As(err, &f):
		Refuse(w, http.StatusBadRequest, f.param, f.message)
		return
	case !ok:
		refuse(w, http.StatusNotFound, "model", "model_not_found", fmt.Sprintf("The model %q does not exist or you do not have access to it.", req.Model))
		return
	}
	play := Good("fine")
	switch {
	case n <= len(part.Plays):
		play = part.Plays[n-1]
	case part.Forever:
		play = part.Plays[len(part.Plays)-1]
	}
	play(&Exchange{Request: req, Writer: w, HTTP: r, server: s})
}

// Refuse answers with OpenAI's error object.
func Refuse(w http.ResponseWriter, status int, param, message string) {
	refuse(w, status, param, "", message)
}

func refuse(w http.ResponseWriter, status int, param, code, message string) {
	kind := "invalid_request_error"
	if status >= http.StatusInternalServerError {
		kind = "server_error"
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{ // as above
		"message": message, "type": kind, "param": orNull(param), "code": orNull(code),
	}})
}

func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// Exchange is one request and its answer in progress.
type Exchange struct {
	Request Request
	Writer  http.ResponseWriter
	HTTP    *http.Request
	server  *Server
	begun   bool
}

// Vanish removes the model from the server: it is no longer listed, and requests for it
// get 404.
func (x *Exchange) Vanish() {
	x.server.mu.Lock()
	defer x.server.mu.Unlock()
	x.server.gone[x.Request.Model] = true
}

// Raw writes bytes of the event stream and flushes them.
func (x *Exchange) Raw(text string) {
	if !x.begun {
		x.begun = true
		if x.Writer.Header().Get("Content-Type") == "" {
			x.Writer.Header().Set("Content-Type", "text/event-stream")
		}
		x.Writer.WriteHeader(http.StatusOK)
	}
	if _, err := x.Writer.Write([]byte(text)); err != nil {
		panic(http.ErrAbortHandler) // the client has disconnected
	}
	if err := http.NewResponseController(x.Writer).Flush(); err != nil {
		panic(http.ErrAbortHandler)
	}
}

// Event writes one event.
func (x *Exchange) Event(v any) {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err) // a mistake in the test
	}
	x.Raw("data: " + string(data) + "\n\n")
}

// Delta writes a chunk with a delta.
func (x *Exchange) Delta(delta map[string]any) { x.chunk(delta, nil) }

func (x *Exchange) chunk(delta map[string]any, finish any) {
	x.Event(map[string]any{
		"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": x.Request.Model,
		"choices": []any{map[string]any{"index": 0, "delta": delta, "finish_reason": finish}},
	})
}

// Text writes a piece of text.
func (x *Exchange) Text(text string) { x.Delta(map[string]any{"content": text}) }

// Call writes a piece of a tool call; only the first piece has id and name.
func (x *Exchange) Call(index int, id, name, arguments string) {
	function := map[string]any{"arguments": arguments}
	call := map[string]any{"index": index, "function": function}
	if name != "" {
		function["name"], call["type"] = name, "function"
	}
	if id != "" {
		call["id"] = id
	}
	x.Delta(map[string]any{"tool_calls": []any{call}})
}

// Finish writes the finish reason.
func (x *Exchange) Finish(reason string) { x.chunk(map[string]any{}, reason) }

// Usage writes the chunk with the usage.
func (x *Exchange) Usage(input, output int64) {
	x.Event(map[string]any{
		"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": x.Request.Model, "choices": []any{},
		"usage": map[string]any{"prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output},
	})
}

// Done writes the end of the stream.
func (x *Exchange) Done() { x.Raw("data: [DONE]\n\n") }

// End writes the finish reason, the usage if it was requested, and the end of the stream.
func (x *Exchange) End(reason string) {
	x.Finish(reason)
	if x.Request.StreamOptions != nil && x.Request.StreamOptions.IncludeUsage {
		x.Usage(GoodInput, GoodOutput)
	}
	x.Done()
}

// Usage of a good answer in tokens, and its cost in micro-USD.
const (
	GoodInput  = 1000
	GoodOutput = 100
	GoodCost   = (GoodInput*InputPrice + GoodOutput*OutputPrice) / 1_000_000
)

// Whole answers with one JSON document.
func (x *Exchange) Whole(text string) {
	x.Writer.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(x.Writer).Encode(map[string]any{ // a write error means that the client has disconnected
		"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": x.Request.Model,
		"choices": []any{map[string]any{"index": 0, "message": map[string]any{"role": "assistant", "content": text}, "finish_reason": "stop"}},
		"usage":   map[string]any{"prompt_tokens": GoodInput, "completion_tokens": GoodOutput, "total_tokens": GoodInput + GoodOutput},
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
		x.Delta(map[string]any{"role": "assistant", "content": ""})
		for _, word := range strings.SplitAfter(text, " ") {
			x.Text(word)
		}
		x.End("stop")
	}
}
