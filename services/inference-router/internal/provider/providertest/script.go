// Package providertest is the conformance suite of provider adapters. The test of an
// adapter implements [Dialect], the server side of its protocol, and calls [Run]. The
// suite then acts as a provider that answers well, fails, or does not answer.
//
// It tests adapters over real HTTP. It is for tests only.
package providertest

import (
	"fmt"
	"net/http"
	"slices"
	"sync"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// Key is the secret that the adapter under test must send; the suite checks that errors
// do not contain it.
const Key = "sk-conformance-0123456789"

// Dialect is the server side of a protocol.
type Dialect interface {
	// Read decodes a completion request and its key.
	Read(r *http.Request) (req provider.Request, key string, err error)
	// Open begins a streamed answer.
	Open(w http.ResponseWriter) (Writer, error)
	// Fail answers with a fault. The caller has set Retry-After.
	Fail(w http.ResponseWriter, f Fault)
	// IsModels reports whether the request asks for the list of models.
	IsModels(r *http.Request) bool
	// Models answers with the list of models.
	Models(w http.ResponseWriter, ids []string)
}

// Writer writes the parts of a streamed answer and flushes each.
type Writer interface {
	Text(text string) error
	// Call writes a part of the tool call at index: the first part has ID and Name, each
	// part has some of Arguments.
	Call(index int, part provider.ToolCall) error
	// Empty writes an event without content.
	Empty() error
	// Finish writes a finish reason of package provider.
	Finish(reason string) error
	Usage(u provider.Usage) error
	// Fail writes a fault into the stream.
	Fail(f Fault) error
	// Done writes the end of the stream as the protocol defines it.
	Done() error
}

// Fault is an error in a neutral form.
type Fault struct {
	Status         int
	RetryAfter     string // header value
	Message        string
	ContextTooLong bool // with the protocol's code for it
}

// Script is an [http.Handler] that acts as the provider. The suite queues its answers. It
// fails a call for which no answer is queued.
type Script struct {
	dialect Dialect
	gone    chan struct{}

	mu       sync.Mutex
	answers  []func(*Answer)
	always   func(*Answer)
	requests []provider.Request
	keys     []string
}

// NewScript returns a script that answers in the dialect.
func NewScript(d Dialect) *Script { return &Script{dialect: d, gone: make(chan struct{}, 1)} }

// Next queues the answer to one call.
func (s *Script) Next(answer func(*Answer)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers = append(s.answers, answer)
}

// Always sets the answer to all calls for which no answer is queued.
func (s *Script) Always(answer func(*Answer)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.always = answer
}

// Requests returns the completion requests so far and their keys.
func (s *Script) Requests() ([]provider.Request, []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests), slices.Clone(s.keys)
}

// Gone returns the channel that receives a value when a client disconnects during
// [Answer.Hold].
func (s *Script) Gone() <-chan struct{} { return s.gone }

// ServeHTTP runs the next answer.
func (s *Script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a := &Answer{script: s, w: w, r: r, Models: s.dialect.IsModels(r)}
	if !a.Models {
		req, key, err := s.dialect.Read(r)
		if err != nil {
			s.dialect.Fail(w, Fault{Status: http.StatusBadRequest, Message: err.Error()})
			return
		}
		a.Request = req
		s.mu.Lock()
		s.requests, s.keys = append(s.requests, req), append(s.keys, key)
		s.mu.Unlock()
	}
	s.mu.Lock()
	answer := s.always
	if len(s.answers) > 0 {
		answer, s.answers = s.answers[0], s.answers[1:]
	}
	s.mu.Unlock()
	if answer == nil {
		s.dialect.Fail(w, Fault{Status: http.StatusTeapot, Message: "a call that the test does not expect"})
		return
	}
	answer(a)
}

// Answer is one call and its answer in progress.
type Answer struct {
	Request provider.Request
	Models  bool // the call requests the list of models

	script *Script
	w      http.ResponseWriter
	r      *http.Request
	out    Writer
}

// Bytewise sends each byte of the answer in a separate packet. It must be called before
// any other method.
func (a *Answer) Bytewise() { a.w = bytewise{a.w} }

// Text writes text.
func (a *Answer) Text(text string) { a.do(func(w Writer) error { return w.Text(text) }) }

// Call writes a part of a tool call.
func (a *Answer) Call(index int, id, name, arguments string) {
	a.do(func(w Writer) error {
		return w.Call(index, provider.ToolCall{ID: id, Name: name, Arguments: arguments})
	})
}

// Empty writes an event without content.
func (a *Answer) Empty() { a.do(Writer.Empty) }

// Finish writes the finish reason.
func (a *Answer) Finish(reason string) { a.do(func(w Writer) error { return w.Finish(reason) }) }

// Usage writes the usage.
func (a *Answer) Usage(u provider.Usage) { a.do(func(w Writer) error { return w.Usage(u) }) }

// Done ends the answer as the protocol defines it.
func (a *Answer) Done() { a.do(Writer.Done) }

// FailInStream writes a fault into the stream.
func (a *Answer) FailInStream(f Fault) { a.do(func(w Writer) error { return w.Fail(f) }) }

// Fail answers with a fault.
func (a *Answer) Fail(f Fault) {
	if f.RetryAfter != "" {
		a.w.Header().Set("Retry-After", f.RetryAfter)
	}
	a.script.dialect.Fail(a.w, f)
}

// List answers with model ids.
func (a *Answer) List(ids ...string) { a.script.dialect.Models(a.w, ids) }

// Page answers with a status and a body outside the protocol, as proxies do.
func (a *Answer) Page(status int, body string) {
	a.w.Header().Set("Content-Type", "text/html")
	a.w.WriteHeader(status)
	_, _ = fmt.Fprint(a.w, body) // the client has disconnected
}

// Raw writes bytes into the stream unchanged.
func (a *Answer) Raw(text string) {
	a.do(func(Writer) error {
		if _, err := fmt.Fprint(a.w, text); err != nil {
			return err
		}
		return http.NewResponseController(a.w).Flush()
	})
}

// Hold keeps the answer open until the client disconnects, then sends a value to
// [Script.Gone].
func (a *Answer) Hold() {
	<-a.r.Context().Done()
	a.script.gone <- struct{}{}
}

// Reset aborts the connection.
func (a *Answer) Reset() { panic(http.ErrAbortHandler) }

// do opens the stream when its first part is written. It aborts the connection after a
// write error.
func (a *Answer) do(write func(Writer) error) {
	if a.out == nil {
		out, err := a.script.dialect.Open(a.w)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		a.out = out
	}
	if err := write(a.out); err != nil {
		panic(http.ErrAbortHandler)
	}
}

// bytewise flushes after each byte.
type bytewise struct{ http.ResponseWriter }

func (b bytewise) Write(p []byte) (int, error) {
	rc := http.NewResponseController(b.ResponseWriter)
	for i := range p {
		if _, err := b.ResponseWriter.Write(p[i : i+1]); err != nil {
			return i, err
		}
		if err := rc.Flush(); err != nil {
			return i, err
		}
	}
	return len(p), nil
}

func (b bytewise) Unwrap() http.ResponseWriter { return b.ResponseWriter }
