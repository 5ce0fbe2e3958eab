// Package provider is what the router needs of a place that runs models: one
// call in neutral words, and errors that say what to do next. Adapters live
// beside it, one package for each protocol, and pass providertest.
//
// It decides nothing: which model, how often, and who pays is the router's. An
// adapter makes at most one call upstream that is answered for each Complete, so
// that no retry is billed that the ledger never saw.
package provider

import (
	"context"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/chat"

	"github.com/anima-run/anima/services/inference-router/internal/model"
)

// Provider runs models. Its methods may be called concurrently.
type Provider interface {
	// Name of the provider as the registry knows it.
	Name() string
	// Complete makes one call and returns when its last byte was read. It gives
	// each piece of text to onDelta, in order and on the caller's goroutine; an
	// error of onDelta ends the call and is in the chain of the error returned.
	// onDelta may be nil. The context's deadline covers the whole answer.
	//
	// Errors are [*Error]. With an error the Response holds what had arrived
	// until then, with usage estimated: a provider bills a broken stream too.
	// It is zero when the provider had not begun to answer.
	Complete(ctx context.Context, req Request, onDelta func(string) error) (Response, error)
	// Models lists what the provider serves, in its own order. Errors are [*Error];
	// one of status 404, 405 or 501 means that it has no list.
	Models(ctx context.Context) ([]Listed, error)
}

// Listed is a model as its provider lists it. What the provider does not say is
// zero.
type Listed struct {
	ID            string
	ContextWindow int64  // tokens of prompt and answer together
	MaxOutput     int64  // tokens
	Priced        bool   // the two prices are the provider's own
	InputPrice    int64  // micro-USD per million tokens
	OutputPrice   int64  // micro-USD per million tokens
	NoTools       bool   // the provider says that it takes no tool definitions
	NotChat       bool   // for embeddings, images or speech, not for conversations
	Remote        string // the other host at which it runs, though the provider is local
}

// Message is one message of a prompt, in one of the roles of package chat. Arguments of
// its calls are the model's own text and may not be JSON.
type Message = api.ChatMessage

// ToolCall is a call that a model asked for.
type ToolCall = api.ToolCall

// Tool is a tool as a model is told about it. An empty schema is that of no arguments.
type Tool = api.Tool

// The four roles.
const (
	System    = chat.System
	User      = chat.User
	Assistant = chat.Assistant
	ToolRole  = chat.ToolRole
)

// Raw is a prompt as package chat encodes it: normal messages, and the tools that are
// offered with them.
type Raw struct {
	Messages, Tools []byte
	Calls           bool // some message has calls
	Offered         int  // so many tools
	Tokens          int64
}

// Request is one call. Its prompt is Messages and Tools, or Raw.
type Request struct {
	Model       string
	Messages    []Message
	Tools       []Tool
	Raw         *Raw             // nil: the prompt is in Messages and Tools
	MaxTokens   int64            // output limit; 0 sends none
	TokenParam  model.TokenParam // where the limit goes; zero is max_tokens
	Temperature *float64         // nil leaves it to the provider
	Seed        *int64           // nil sends none
}

// Open is the request with its prompt in Messages and Tools.
func (r Request) Open() (Request, error) {
	if r.Raw == nil {
		return r, nil
	}
	var err error
	if r.Messages, err = chat.Decode(r.Raw.Messages); err == nil {
		r.Tools, err = chat.DecodeTools(r.Raw.Tools)
	}
	r.Raw = nil
	return r, err
}

// Offers says whether the request has tools.
func (r Request) Offers() bool { return len(r.Tools) > 0 || r.Raw != nil && r.Raw.Offered > 0 }

// HasCalls says whether some message has calls or their results.
func (r Request) HasCalls() bool { return r.Raw != nil && r.Raw.Calls || chat.HasCalls(r.Messages) }

// Estimate is about how many tokens the prompt is, with tool definitions and
// tool-call arguments (spec 6.9). See [model.Tokens] for how far to trust it.
func (r Request) Estimate() int64 {
	if r.Raw != nil {
		return r.Raw.Tokens
	}
	var total int64
	for _, m := range r.Messages {
		total += model.MessageTokens + model.Tokens(m.Content) + callTokens(m.ToolCalls)
	}
	return total + ToolTokens(r.Tools)
}

// ToolTokens is what tool definitions take of [Request.Estimate].
func ToolTokens(tools []Tool) int64 {
	var total int64
	for _, t := range tools {
		total += model.ToolTokens + model.Tokens(t.Name) + model.Tokens(t.Description) + model.Tokens([]byte(t.Schema))
	}
	return total
}

// Size is how large the prompt's texts are, in bytes, at least.
func (r Request) Size() int64 {
	if r.Raw != nil {
		return int64(len(r.Raw.Messages) + len(r.Raw.Tools))
	}
	var total int
	for _, m := range r.Messages {
		total += len(m.Content)
		for _, c := range m.ToolCalls {
			total += len(c.ID) + len(c.Name) + len(c.Arguments)
		}
	}
	for _, t := range r.Tools {
		total += len(t.Name) + len(t.Description) + len(t.Schema)
	}
	return int64(total)
}

// Usage is what a call consumed, in tokens.
type Usage struct {
	Input       int64 // the whole prompt
	CachedInput int64 // of Input, read from the provider's cache
	Output      int64 // the whole answer
	Reasoning   int64 // of Output, not shown
	Estimated   bool  // the provider did not say; counted here
}

// Finish reasons that adapters translate their own into. Others pass unchanged.
const (
	FinishStop      = "stop"
	FinishToolCalls = "tool_calls"
	FinishLength    = "length"
	FinishFilter    = "content_filter"
	FinishRefusal   = "refusal" // the text is a refusal, which the protocol marks as such
)

// Response is a model's answer.
type Response struct {
	ID        string // the provider's
	Model     string // as the provider names it
	Text      string
	Reasoning string // what the model wrote before its answer; no part of it
	ToolCalls []ToolCall
	Finish    string
	Usage     Usage
}

// Estimate is usage counted from the texts, for a provider that did not report
// it. Reasoning that the provider did not send is not in it.
func Estimate(req Request, res Response) Usage {
	return Usage{Input: req.Estimate(), Output: res.Estimate(), Reasoning: model.Tokens(res.Reasoning), Estimated: true}
}

// Estimate is about how many tokens the answer is, with its reasoning.
func (r Response) Estimate() int64 {
	return model.Tokens(r.Text) + callTokens(r.ToolCalls) + model.Tokens(r.Reasoning)
}

func callTokens(calls []ToolCall) int64 {
	var total int64
	for _, c := range calls {
		total += model.MessageTokens + model.Tokens(c.Name) + model.Tokens(c.Arguments)
	}
	return total
}
