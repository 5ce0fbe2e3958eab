// Package simulated is a provider with one scripted model. It serves the whole path from
// loop to a model without a key or a network.
//
// Its answers must depend on the request only, so that they are the same after a restart
// and for a repeated call. The exception is a scripted error with a count, which is kept
// in memory. Like real providers, it refuses unpaired tool results, unknown models and
// prompts larger than the window. Package openaitest serves it over HTTP for tests.
package simulated

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/anima-run/anima/pkg/api/chat"
	"github.com/anima-run/anima/pkg/wait"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// Name is the name of the provider in the registry.
const Name = "simulated"

// Provider is a [provider.Provider] that answers by a script. It is safe for concurrent
// use.
type Provider struct {
	script *compiled

	mu     sync.Mutex
	failed map[*step]int // failures so far of steps with Times
}

// New returns a provider, or an error if the script is invalid.
func New(s Script) (*Provider, error) {
	c, err := compile(s)
	if err != nil {
		return nil, err
	}
	return &Provider{script: c, failed: map[*step]int{}}, nil
}

// Name returns [Name].
func (*Provider) Name() string { return Name }

// Models returns the model of the script and its aliases.
func (p *Provider) Models(context.Context) ([]provider.Listed, error) {
	list := []provider.Listed{{ID: p.script.Model}}
	for _, id := range p.script.Aliases {
		list = append(list, provider.Listed{ID: id})
	}
	return list, nil
}

// Complete answers a request; see [provider.Provider].
func (p *Provider) Complete(ctx context.Context, req provider.Request, onDelta func(string) error) (provider.Response, error) {
	req, err := req.Decode()
	if err != nil {
		return provider.Response{}, &provider.Error{Kind: provider.Fatal, Provider: Name, Message: provider.Clean(err.Error())}
	}
	answer, err := p.Answer(ctx, req)
	var fault *Fault
	switch {
	case errors.As(err, &fault):
		return provider.Response{}, fault.neutral()
	case err != nil:
		return provider.Response{}, provider.CanceledError(Name, err)
	}
	sent := provider.Response{ID: answer.ID, Model: answer.Model}
	var text strings.Builder
	err = answer.Stream(ctx, func(piece Piece) error {
		provider.EventReceived(ctx)
		provider.ContentReceived(ctx)
		if piece.Text == "" {
			sent.ToolCalls = appendPart(sent.ToolCalls, piece)
			return nil
		}
		text.WriteString(piece.Text)
		if onDelta == nil {
			return nil
		}
		return onDelta(piece.Text)
	})
	if err != nil {
		sent.Text = text.String()
		if sent.Text != "" || len(sent.ToolCalls) > 0 {
			sent.Usage = provider.Estimate(req, sent)
		}
		return sent, provider.CanceledError(Name, err)
	}
	return answer.Response, nil
}

// appendPart adds a part of a tool call to the calls.
func appendPart(calls []provider.ToolCall, piece Piece) []provider.ToolCall {
	if piece.Index == len(calls) {
		return append(calls, piece.Call)
	}
	calls[piece.Index].Arguments += piece.Call.Arguments
	return calls
}

// neutral converts the fault to the error of a provider.
func (f *Fault) neutral() *provider.Error {
	return &provider.Error{
		Kind: provider.KindOfStatus(f.Status, f.Code, f.Message), Provider: Name, Status: f.Status,
		RetryAfter: time.Duration(f.RetryAfter) * time.Second, Message: provider.Clean(f.Message),
	}
}

// Answer waits for the delay of the step and returns its answer. The error is a [*Fault]
// for a request that is refused and for a scripted error, else that of ctx. The prompt
// must be in the Messages and Tools of the request.
func (p *Provider) Answer(ctx context.Context, req provider.Request) (Answer, error) {
	size := req.Estimate()
	if err := p.refuse(req, size); err != nil {
		return Answer{}, err
	}
	s, data, text, err := p.script.choose(req)
	if err != nil {
		return Answer{}, broken(err)
	}
	var pause time.Duration
	if s != nil {
		if err := wait.For(ctx, time.Duration(s.DelayMS)*time.Millisecond); err != nil {
			return Answer{}, err
		}
		if f := p.fault(s); f != nil {
			return Answer{}, f
		}
		pause = time.Duration(s.DeltaMS) * time.Millisecond
	}
	res, err := p.script.answer(req, size, s, data, text)
	if err != nil {
		return Answer{}, broken(err)
	}
	return Answer{Response: res, Pause: pause, seed: p.script.Seed}, nil
}

// broken returns the fault for a template that failed.
func broken(err error) *Fault {
	return &Fault{Status: http.StatusInternalServerError, Message: "the script: " + err.Error()}
}

// refuse returns a [*Fault] for a request that any provider refuses. size is the number
// of tokens of the prompt.
func (p *Provider) refuse(req provider.Request, size int64) error {
	s := p.script
	if req.Model != s.Model && !slices.Contains(s.Aliases, req.Model) {
		return &Fault{Status: http.StatusNotFound, Code: "model_not_found", Message: "the model " + strconv.Quote(req.Model) + " does not exist; this is " + s.Model}
	}
	err := chat.Roles(req.Messages)
	if err == nil {
		err = paired(req.Messages)
	}
	if err != nil {
		return &Fault{Status: http.StatusBadRequest, Message: err.Error()}
	}
	if s.ContextWindow > 0 && size+req.MaxTokens > s.ContextWindow {
		return &Fault{
			Status: http.StatusBadRequest, Code: "context_length_exceeded",
			Message: "this model's maximum context length is " + strconv.FormatInt(s.ContextWindow, 10) + " tokens",
		}
	}
	return nil
}

// fault returns the step's error if the step fails this time, else nil.
func (p *Provider) fault(s *step) *Fault {
	if s.Error == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.Error.Times > 0 && p.failed[s] >= s.Error.Times {
		return nil
	}
	p.failed[s]++
	f := *s.Error
	if f.Message == "" {
		f.Message = "an error of the script"
	}
	return &f
}

// Answer is a whole answer that can be sent in pieces.
type Answer struct {
	provider.Response

	Pause time.Duration // before each piece but the first

	seed uint64
}

// Piece is a part of an answer: of its text, or of the tool call at Index if Text is
// empty. The first part of a call has its id and name, later parts only arguments.
type Piece struct {
	Text  string
	Index int
	Call  provider.ToolCall
}

// Stream calls send for each piece, with the pauses of the script. The sizes of the
// pieces are the same for the same answer and seed. It returns the error of send or ctx.
func (a Answer) Stream(ctx context.Context, send func(Piece) error) error {
	size := a.sizes()
	first := true
	next := func(p Piece) error {
		if !first {
			if err := wait.For(ctx, a.Pause); err != nil {
				return err
			}
		}
		first = false
		return send(p)
	}
	for _, text := range pieces(a.Text, size) {
		if err := next(Piece{Text: text}); err != nil {
			return err
		}
	}
	for i, c := range a.ToolCalls {
		part := provider.ToolCall{ID: c.ID, Name: c.Name}
		for _, part.Arguments = range pieces(c.Arguments, size) {
			if err := next(Piece{Index: i, Call: part}); err != nil {
				return err
			}
			part = provider.ToolCall{}
		}
	}
	return nil
}

// sizes returns a function for the sizes of the pieces, in characters: 4 to 31.
func (a Answer) sizes() func() int {
	var state [8]byte
	copy(state[:], a.ID[len(a.ID)-8:])
	r := rand.New(rand.NewPCG(a.seed, binary.BigEndian.Uint64(state[:])))
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
