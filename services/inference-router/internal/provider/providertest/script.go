// Package providertest is the conformance suite of provider adapters. An
// adapter's test brings a [Dialect], the server's side of its protocol, and runs
// [Run]; the suite plays a provider that answers well, badly or not at all.
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

// Key is the secret that the adapter under test must send; the suite looks for
// it in errors.
const Key = "sk-conformance-0123456789"

// Dialect is the server's side of a protocol.
type Dialect interface {
	// Read decodes a request for a completion, and the key that came with it.
	Read(r *http.Request) (req provider.Request, key string, err error)
	// Open begins a streamed answer.
	Open(w http.ResponseWriter) (Writer, error)
	// Fail answers with a fault instead. Retry-After is set already.
	Fail(w http.ResponseWriter, f Fault)
	// IsModels says whether the request asks for the list of models.
	IsModels(r *http.Request) bool
	// Models answers it.
	Models(w http.ResponseWriter, ids []string)
}

// Writer writes the parts of a streamed answer, each visible at once.
type Writer interface {
	Text(text string) error
	// Call writes a part of the call at index: the first part has ID and Name,
	// all have some of Arguments.
	Call(index int, part provider.ToolCall) error
	// Empty writes an event that carries nothing.
	Empty() error
	// Finish takes one of the provider package's reasons.
	Finish(reason string) error
	Usage(u provider.Usage) error
	// Fail writes a fault into the stream.
	Fail(f Fault) error
	// Done writes the protocol's own end.
	Done() error
}

// Fault is an error in neutral words.
type Fault struct {
	Status         int
	RetryAfter     string // header value
	Message        string
	ContextTooLong bool // with the protocol's own mark for it
}

// Script is the provider's behaviour: an [http.Handler] whose answers the suite
// lines up. It fails calls that nobody lined up an answer for.
type Script struct {
	dialect Dialect
	gone    chan struct{}

	mu       sync.Mutex
	answers  []func(*Answer)
	always   func(*Answer)
	requests []provider.Request
	keys     []string
}

// NewScript answers in the dialect.
func NewScript(d Dialect) *Script { return &Script{dialect: d, gone: make(chan struct{}, 1)} }

// Next lines up the answer to the next call that has none.
func (s *Script) Next(answer func(*Answer)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers = append(s.answers, answer)
}

// Always answers all calls that have no answer lined up.
func (s *Script) Always(answer func(*Answer)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.always = answer
}

// Requests are the calls so far and the keys that came with them.
func (s *Script) Requests() ([]provider.Request, []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests), slices.Clone(s.keys)
}

// Gone receives when a client left during [Answer.Hold].
func (s *Script) Gone() <-chan struct{} { return s.gone }

// ServeHTTP plays the next answer.
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

// Answer is one call being answered.
type Answer struct {
	Request provider.Request
	Models  bool // the call asks for the list of models

	script *Script
	w      http.ResponseWriter
	r      *http.Request
	out    Writer
}

// Bytewise sends every byte from here on in a packet of its own. It comes before
// anything is written.
func (a *Answer) Bytewise() { a.w = bytewise{a.w} }

// Text writes text.
func (a *Answer) Text(text string) { a.do(func(w Writer) error { return w.Text(text) }) }

// Call writes a part of a call.
func (a *Answer) Call(index int, id, name, arguments string) {
	a.do(func(w Writer) error {
		return w.Call(index, provider.ToolCall{ID: id, Name: name, Arguments: arguments})
	})
}

// Empty writes an event without content.
func (a *Answer) Empty() { a.do(Writer.Empty) }

// Finish writes the reason.
func (a *Answer) Finish(reason string) { a.do(func(w Writer) error { return w.Finish(reason) }) }

// Usage writes the usage.
func (a *Answer) Usage(u provider.Usage) { a.do(func(w Writer) error { return w.Usage(u) }) }

// Done ends the answer as the protocol does.
func (a *Answer) Done() { a.do(Writer.Done) }

// FailInStream writes a fault after the answer began.
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

// Page answers with a status and a body that is not of the protocol, as proxies
// do.
func (a *Answer) Page(status int, body string) {
	a.w.Header().Set("Content-Type", "text/html")
	a.w.WriteHeader(status)
	_, _ = fmt.Fprint(a.w, body) // a client that left is not this test's matter
}

// Raw writes bytes into the stream as they are.
func (a *Answer) Raw(text string) {
	a.do(func(Writer) error {
		if _, err := fmt.Fprint(a.w, text); err != nil {
			return err
		}
		return http.NewResponseController(a.w).Flush()
	})
}

// Hold keeps the answer open until the client leaves, and says so on
// [Script.Gone].
func (a *Answer) Hold() {
	<-a.r.Context().Done()
	a.script.gone <- struct{}{}
}

// Reset breaks the connection.
func (a *Answer) Reset() { panic(http.ErrAbortHandler) }

// do opens the stream when its first part is written. A client that left ends
// the answer.
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
