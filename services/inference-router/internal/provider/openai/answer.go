package openai

import (
	"errors"
	"fmt"
	"strings"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// Bounds on what a provider can make the router hold for one answer. Real ones
// stay far below: 32,768 tokens are about 128 KiB.
const (
	maxAnswer = 8 << 20 // bytes of text and arguments
	maxCalls  = 128
)

// answer collects the chunks of one stream.
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

// add takes one chunk and gives the text that is new in it.
func (a *answer) add(c chunk) (string, error) {
	if a.id == "" {
		a.id = c.id
	}
	if a.model == "" {
		a.model = c.model
	}
	// Some servers report usage with every chunk; it grows, the last one counts.
	if u := c.usage; u != nil && u.prompt > 0 && u.completion >= 0 {
		a.usage = &provider.Usage{
			Input: u.prompt, CachedInput: within(u.cached, u.prompt),
			Output: u.completion, Reasoning: within(u.reasoning, u.completion),
		}
	}
	var delta string
	for _, choice := range c.choices {
		if choice.index != 0 {
			continue
		}
		// A refusal is the text that a reader gets instead of an answer.
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

// part adds a fragment to its call. A fragment names its call by index; servers
// that leave the index out send each call whole, with an id of its own.
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

// rest is text that was held back for a tag that did not come; the stream is over.
func (a *answer) rest() string {
	text := a.reasoning.end()
	a.text.WriteString(text)
	return text
}

func (a *answer) finished() bool { return a.finish != "" }

// response is the whole answer. Usage that cannot be right is no usage: zero for an
// answer with words, or more tokens than the prompt has bytes.
func (a *answer) response(req provider.Request) provider.Response {
	res := provider.Response{ID: a.id, Model: a.model, Text: a.text.String(), Reasoning: a.reasoning.apart.String(), Finish: a.finish, ToolCalls: a.toolCalls()}
	switch {
	case len(res.ToolCalls) > 0 && (res.Finish == provider.FinishStop || res.Finish == "function_call"):
		res.Finish = provider.FinishToolCalls
	case len(res.ToolCalls) == 0 && (res.Finish == provider.FinishToolCalls || res.Finish == "function_call"):
		res.Finish = provider.FinishStop // it announced calls and made none
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

// implausible says that the provider reports more than can have been: a token has
// at least one byte, and the output limit holds for what is not shown too.
func (a *answer) implausible(req provider.Request) bool {
	const own = 8192 // tokens that a server may add to a prompt or an answer by itself
	return a.usage.Input > req.Size()+own || req.MaxTokens > 0 && a.usage.Output > max(req.MaxTokens, int64(a.size))+own
}

// toolCalls are the calls, each with an id of its own: results are matched by it.
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
				id = "" // another call has it from the provider
			}
		}
		used[id] = true
		calls = append(calls, provider.ToolCall{ID: id, Name: c.name, Arguments: c.arguments.String()})
	}
	return calls
}

// partial is what a broken call left. Its usage is estimated: a provider that
// reported some did so before the end.
func (a *answer) partial(req provider.Request) provider.Response {
	res := a.response(req)
	if a.usage != nil && !a.implausible(req) {
		res.Usage.Input = max(res.Usage.Input, a.usage.Input)
		res.Usage.Output = max(res.Usage.Output, a.usage.Output)
		res.Usage.Estimated = true
	}
	return res
}

func within(n, most int64) int64 { return min(max(n, 0), most) }

// errTruncated is a stream that ended cleanly and too early.
var errTruncated = errors.New("the stream ended before the answer was complete")

// errNoAnswer is a success without an answer, such as 204.
var errNoAnswer = errors.New("the server accepted the request and sent no answer")
