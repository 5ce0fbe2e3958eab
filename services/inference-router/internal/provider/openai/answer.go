package openai

import (
	"errors"
	"fmt"
	"strings"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// Bounds on the memory for one answer of a provider. Real answers are far smaller: 32,768
// tokens are about 128 KiB.
const (
	maxAnswer = 8 << 20 // bytes of text and arguments
	maxCalls  = 128
)

// answer accumulates the chunks of one stream.
type answer struct {
	id, model, finish string
	refused           bool
	text              strings.Builder
	calls             []*call
	byIndex           map[int64]*call
	size              int
	reasoning         reasoning
	usage             *provider.Usage
}

type call struct {
	id, name  string
	arguments strings.Builder
}

// add adds one chunk and returns its new text.
func (a *answer) add(c chunk) (string, error) {
	if a.id == "" {
		a.id = c.id
	}
	if a.model == "" {
		a.model = c.model
	}
	// Some servers report usage with each chunk; it grows, so the last one counts.
	if u := c.usage; u != nil && u.prompt > 0 && u.completion >= 0 {
		a.usage = &provider.Usage{
			Input: u.prompt, CachedInput: within(u.cached, u.prompt), CacheWrite: within(u.written, u.prompt-within(u.cached, u.prompt)),
			Output: u.completion, Reasoning: within(u.reasoning, u.completion),
		}
	}
	var delta string
	for _, choice := range c.choices {
		if choice.index != 0 {
			continue
		}
		// A refusal is shown to the reader in place of an answer.
		piece := choice.content + choice.refusal
		text := a.reasoning.text(piece)
		a.refused = a.refused || choice.refusal != ""
		a.text.WriteString(text)
		a.size += len(piece)
		delta += text
		a.reasoning.apart.WriteString(choice.reasoning)
		a.size += len(choice.reasoning)
		for _, p := range choice.calls {
			if err := a.part(p); err != nil {
				return "", err
			}
		}
		if choice.finish != "" {
			a.finish = choice.finish
		}
	}
	if a.size > maxAnswer {
		return "", fmt.Errorf("the answer is larger than %d bytes", maxAnswer)
	}
	return delta, nil
}

// part adds a fragment to its tool call. A fragment refers to its call by index; servers
// that omit the index send each call whole, with an id.
func (a *answer) part(p part) error {
	c := a.byIndex[p.index]
	if c == nil || (p.id != "" && c.id != "" && p.id != c.id) {
		if len(a.calls) == maxCalls {
			return fmt.Errorf("the answer has more than %d tool calls", maxCalls)
		}
		c = &call{}
		if a.byIndex == nil {
			a.byIndex = map[int64]*call{}
		}
		a.byIndex[p.index] = c
		a.calls = append(a.calls, c)
	}
	if c.id == "" {
		c.id = p.id
	}
	if c.name == "" {
		c.name = p.name
	}
	c.arguments.WriteString(p.arguments)
	a.size += len(p.id) + len(p.name) + len(p.arguments)
	return nil
}

// rest returns the text that was held for a tag that did not follow. It is called after
// the last chunk.
func (a *answer) rest() string {
	text := a.reasoning.end()
	a.text.WriteString(text)
	return text
}

func (a *answer) finished() bool { return a.finish != "" }

// response returns the answer. Its usage is estimated if the reported usage is missing or
// implausible, or if it has no output tokens although there is output.
func (a *answer) response(req provider.Request) provider.Response {
	res := provider.Response{ID: a.id, Model: a.model, Text: a.text.String(), Reasoning: a.reasoning.apart.String(), Finish: a.finish, ToolCalls: a.toolCalls()}
	switch {
	case len(res.ToolCalls) > 0 && (res.Finish == provider.FinishStop || res.Finish == "function_call"):
		res.Finish = provider.FinishToolCalls
	case len(res.ToolCalls) == 0 && (res.Finish == provider.FinishToolCalls || res.Finish == "function_call"):
		res.Finish = provider.FinishStop // the model announced tool calls and made none
	}
	if a.refused && res.Finish == provider.FinishStop {
		res.Finish = provider.FinishRefusal
	}
	estimate := provider.Estimate(req, res)
	if a.usage == nil || (a.usage.Output == 0 && estimate.Output > 0) || a.implausible(req) {
		res.Usage = estimate
	} else {
		res.Usage = *a.usage
	}
	return res
}

// implausible reports whether the provider reports more tokens than possible: a token has
// at least one byte, and the output limit includes reasoning that is not shown.
func (a *answer) implausible(req provider.Request) bool {
	const own = 8192 // tokens that a server may add to a prompt or an answer
	return a.usage.Input > req.Size()+own || req.MaxTokens > 0 && a.usage.Output > max(req.MaxTokens, int64(a.size))+own
}

// toolCalls returns the tool calls, each with a unique id, because results refer to it.
func (a *answer) toolCalls() []provider.ToolCall {
	var calls []provider.ToolCall
	seen := map[string]bool{}
	for _, c := range a.calls {
		seen[c.id] = true
	}
	used := map[string]bool{"": true}
	for i, c := range a.calls {
		id := c.id
		for n := i; used[id]; n++ {
			if id = fmt.Sprintf("call_%d", n); seen[id] {
				id = "" // the provider uses it for another call
			}
		}
		used[id] = true
		calls = append(calls, provider.ToolCall{ID: id, Name: c.name, Arguments: c.arguments.String()})
	}
	return calls
}

// partial returns the part of the answer that a broken call received. Its prompt is counted
// as the provider reported it, if it did. Its output is an estimate, raised to the reported
// usage: a report before the end may be incomplete.
func (a *answer) partial(req provider.Request) provider.Response {
	res := a.response(req)
	if a.usage != nil && !a.implausible(req) {
		res.Usage.Input, res.Usage.CachedInput, res.Usage.CacheWrite = a.usage.Input, a.usage.CachedInput, a.usage.CacheWrite
		res.Usage.Output = max(res.Usage.Output, a.usage.Output)
		res.Usage.Estimated = true
	}
	return res
}

func within(n, most int64) int64 { return min(max(n, 0), most) }

// errTruncated reports a stream that ended cleanly before the finish reason.
var errTruncated = errors.New("the stream ended before the answer was complete")

// errNoAnswer reports a success status without an answer, such as 204.
var errNoAnswer = errors.New("the server accepted the request and sent no answer")
