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
	// Carries returns the request that arrives if req is sent: without the options that the
	// protocol does not have.
	Carries(req provider.Request) provider.Request
	// Stream returns a streamed answer. It writes nothing.
	Stream(w http.ResponseWriter) Stream
	// Fail answers with a fault. The caller has set Retry-After.
	Fail(w http.ResponseWriter, f Fault)
	// IsModels reports whether the request asks for the list of models.
	IsModels(r *http.Request) bool
	// Models answers with the list of models.
	Models(w http.ResponseWriter, ids []string)
}

// Stream writes the parts of a streamed answer and flushes each. It aborts the connection
// if the client has disconnected.
type Stream interface {
	Text(text string)
	// Call writes a part of the tool call at index: the first part has id and name, each
	// part has some of the arguments.
	Call(index int, id, name, arguments string)
	// Empty writes an event without content.
	Empty()
	// Finish writes a finish reason of package provider.
	Finish(reason string)
	Usage(u provider.Usage)
	// FailInStream writes a fault into the stream.
	FailInStream(f Fault)
	// Raw writes bytes into the stream unchanged.
	Raw(text string)
	// Done writes the end of the stream as the protocol defines it.
	Done()
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

// Carries is that of the dialect.
func (s *Script) Carries(req provider.Request) provider.Request { return s.dialect.Carries(req) }

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
	a := &Answer{Stream: s.dialect.Stream(w), script: s, w: w, r: r}
	if !s.dialect.IsModels(r) {
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
	Stream

	Request provider.Request // zero for a request for the list of models

	script *Script
	w      http.ResponseWriter
	r      *http.Request
}

// Bytewise sends each byte of the stream in a separate packet. It must be called before
// any other method.
func (a *Answer) Bytewise() { a.Stream = a.script.dialect.Stream(bytewise{a.w}) }

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

// Hold keeps the answer open until the client disconnects, then sends a value to
// [Script.Gone].
func (a *Answer) Hold() {
	<-a.r.Context().Done()
	a.script.gone <- struct{}{}
}

// Reset aborts the connection.
func (a *Answer) Reset() { panic(http.ErrAbortHandler) }

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
