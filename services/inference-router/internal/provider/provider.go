// Package provider defines the interface to providers of models: one call in a neutral
// form, and errors that say how to handle them. An adapter for a protocol is a subpackage
// and passes the tests of providertest.
//
// The package makes no decisions: the router selects the model, the number of attempts
// and the payment. An adapter must make at most one answered upstream call for each
// Complete, so that the provider bills no retry that is missing in the ledger.
package provider

import (
	"context"
	"encoding/json"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/chat"

	"github.com/anima-run/anima/services/inference-router/internal/model"
)

// Provider calls the models of one provider. Its methods are safe for concurrent use.
type Provider interface {
	// Name returns the name of the provider in the registry.
	Name() string
	// Complete makes one call and returns when the last byte of the answer was read. It
	// calls onDelta for each piece of text, in order and on the caller's goroutine. An
	// error of onDelta ends the call and is in the chain of the returned error. onDelta
	// may be nil. The context's deadline applies to the whole answer.
	//
	// Errors are [*Error]. With an error, the Response holds the partial answer with
	// estimated usage, because a provider bills a broken stream too. It is zero if no
	// part of an answer was received.
	Complete(ctx context.Context, req Request, onDelta func(string) error) (Response, error)
	// Models returns the models that the provider serves, in the provider's order. Errors
	// are [*Error]; the status 404, 405 or 501 means that the provider has no list.
	Models(ctx context.Context) ([]Listed, error)
}

// Listed is a model in the list of its provider. Values that the provider does not report
// are zero.
type Listed struct {
	ID            string
	ContextWindow int64  // tokens of prompt and answer together
	MaxOutput     int64  // tokens
	Priced        bool   // the provider reports both prices
	InputPrice    int64  // micro-USD per million tokens
	OutputPrice   int64  // micro-USD per million tokens
	CachedPrice   int64  // of prompt tokens read from the cache; 0: not given
	WritePrice    int64  // of prompt tokens written to the cache; 0: not given
	ReasonPrice   int64  // of answer tokens that are not part of the text; 0: not given
	NoTools       bool   // the provider reports that the model takes no tool definitions
	Vision        bool   // the provider reports that the model sees images
	NotChat       bool   // for embeddings, images or speech, not for conversations
	Remote        string // the remote host on which a local provider runs the model
}

// Message is one message of a prompt, with a role of package chat. The arguments of its
// tool calls are the model's text and may not be JSON.
type Message = api.ChatMessage

// Image is an image in a message of the user or in a result.
type Image = api.Image

// ToolCall is a tool call in a model's answer.
type ToolCall = api.ToolCall

// Tool is a tool definition. An empty schema means no arguments.
type Tool = api.Tool

// The four roles.
const (
	System    = chat.System
	User      = chat.User
	Assistant = chat.Assistant
	ToolRole  = chat.ToolRole
)

// EncodedPrompt is a prompt encoded by package chat: normal messages and the tools
// offered with them.
type EncodedPrompt struct {
	Messages, Tools []byte
	Calls           bool // a message has tool calls
	Offered         int  // number of tools
	Tokens          int64
	ToolTokens      int64 // of Tokens, of the tools
}

// Request is one call. Its prompt is in Messages and Tools, or in Raw.
type Request struct {
	Model      string
	Messages   []Message
	Tools      []Tool
	Raw        *EncodedPrompt   // nil: the prompt is in Messages and Tools
	MaxTokens  int64            // output limit; 0 sends none
	TokenParam model.TokenParam // field for the limit; zero is max_tokens

	Options
}

// Options are the settings of a call that callers of the HTTP surfaces choose. Zero values
// are not sent. An adapter leaves out what its protocol does not have.
type Options struct {
	Temperature      *float64
	TopP             *float64
	TopK             *int64   // of Anthropic's protocol
	FrequencyPenalty *float64 // of chat completions, as PresencePenalty
	PresencePenalty  *float64
	Seed             *int64
	Stop             []string        // texts that end the answer
	ToolChoice       string          // one of the constants, or a tool's name after [OneTool]; "" is auto
	SingleCall       bool            // at most one tool call in an answer
	ResponseFormat   json.RawMessage // a [Format] in OpenAI's form; empty: a text
	Effort           string          // of reasoning, in OpenAI's words: minimal, low, medium, high, …
}

// The values of [Options.ToolChoice].
const (
	ToolsAuto     = "auto"
	ToolsNone     = "none"
	ToolsRequired = "required"
	OneTool       = "tool:" // before the name of the tool that has to be called
)

// Decode returns the request with its prompt decoded into Messages and Tools.
func (r Request) Decode() (Request, error) {
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

// Offers reports whether the request has tools.
func (r Request) Offers() bool { return len(r.Tools) > 0 || r.Raw != nil && r.Raw.Offered > 0 }

// HasCalls reports whether a message has tool calls or their results.
func (r Request) HasCalls() bool { return r.Raw != nil && r.Raw.Calls || chat.HasCalls(r.Messages) }

// Estimate returns about how many tokens the prompt has, with tool definitions and the
// arguments of tool calls (docs/reference/inference-router.md, Token estimate). Its
// accuracy is that of [chat.Tokens]. The format of the answer is a part of the prompt.
func (r Request) Estimate() int64 {
	total := chat.Tokens([]byte(r.ResponseFormat))
	if r.Raw != nil {
		return total + r.Raw.Tokens
	}
	for _, m := range r.Messages {
		total += model.MessageTokens + chat.Tokens(m.Content) + callTokens(m.ToolCalls)
		for _, picture := range m.Images {
			total += chat.ImageTokens(picture)
		}
	}
	return total + ToolTokens(r.Tools)
}

// ToolTokens returns the share of tool definitions in [Request.Estimate].
func ToolTokens(tools []Tool) int64 {
	var total int64
	for _, t := range tools {
		total += model.ToolTokens + chat.Tokens(t.Name) + chat.Tokens(t.Description) + chat.Tokens([]byte(t.Schema))
	}
	return total
}

// imageSize is the share of an image in [Request.Size]: more than the tokens that any
// provider counts for an image.
const imageSize = 64 << 10

// Size returns a lower bound of the size of the prompt's texts, in bytes. An image adds
// [imageSize].
func (r Request) Size() int64 {
	if r.Raw != nil {
		return int64(len(r.Raw.Messages) + len(r.Raw.Tools) + len(r.ResponseFormat))
	}
	total := len(r.ResponseFormat)
	for _, m := range r.Messages {
		total += len(m.Content) + imageSize*len(m.Images)
		for _, c := range m.ToolCalls {
			total += len(c.ID) + len(c.Name) + len(c.Arguments)
		}
	}
	for _, t := range r.Tools {
		total += len(t.Name) + len(t.Description) + len(t.Schema)
	}
	return int64(total)
}

// Usage is the consumption of a call, in tokens.
type Usage struct {
	Input       int64 // the whole prompt
	CachedInput int64 // of Input, read from the provider's cache
	CacheWrite  int64 // of Input, written to the provider's cache
	Output      int64 // the whole answer
	Reasoning   int64 // of Output, not part of the text
	Estimated   bool  // not reported by the provider, computed from the texts
}

// Tokens returns the numbers of tokens by price.
func (u Usage) Tokens() model.Tokens {
	return model.Tokens{Input: u.Input, Cached: u.CachedInput, Written: u.CacheWrite, Output: u.Output, Reason: u.Reasoning}
}

// Finish reasons to which adapters translate those of the provider. Others pass
// unchanged.
const (
	FinishStop      = "stop"
	FinishToolCalls = "tool_calls"
	FinishLength    = "length"
	FinishFilter    = "content_filter"
	FinishRefusal   = "refusal" // the text is a refusal, marked as such by the protocol
)

// Response is a model's answer.
type Response struct {
	ID        string // the provider's id
	Model     string // the provider's name of the model
	Text      string
	Reasoning string // written before the answer, not part of Text
	ToolCalls []ToolCall
	Finish    string
	Stop      string // the stop sequence that ended the answer, if the provider names it
	Usage     Usage
}

// Estimate returns usage counted from the texts, for a provider that did not report it.
// It lacks reasoning that the provider did not send.
func Estimate(req Request, res Response) Usage {
	return Usage{Input: req.Estimate(), Output: res.Estimate(), Reasoning: chat.Tokens(res.Reasoning), Estimated: true}
}

// Estimate returns about how many tokens the answer has, with its reasoning.
func (r Response) Estimate() int64 {
	return chat.Tokens(r.Text) + callTokens(r.ToolCalls) + chat.Tokens(r.Reasoning)
}

func callTokens(calls []ToolCall) int64 {
	var total int64
	for _, c := range calls {
		total += model.MessageTokens + chat.Tokens(c.Name) + chat.Tokens(c.Arguments)
	}
	return total
}
