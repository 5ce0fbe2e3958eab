package anthropic

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// Bounds on the memory for one answer of a provider. Real answers are far smaller: 32,768
// tokens are about 128 KiB.
const (
	maxAnswer = 8 << 20 // bytes of text and arguments
	maxBlocks = 256
)

// maxCount is the largest reported number of tokens that is kept, so that sums of them fit
// int64. It is implausible.
const maxCount = 1 << 40

// event is an event of the stream, with the fields of all its types.
type event struct {
	Type    string `json:"type"`
	Index   int    `json:"index"`
	Message struct {
		ID    string `json:"id"`
		Model string `json:"model"`
		Usage *usage `json:"usage"`
	} `json:"message"` // of message_start
	Block struct {
		Type  string          `json:"type"`
		Text  string          `json:"text"`
		ID    string          `json:"id"`
		Name  string          `json:"name"`
		Input json.RawMessage `json:"input"`
	} `json:"content_block"` // of content_block_start
	Delta struct {
		Text        string `json:"text"`
		PartialJSON string `json:"partial_json"`
		Thinking    string `json:"thinking"`
		StopReason  string `json:"stop_reason"`
		Stop        string `json:"stop_sequence"`
	} `json:"delta"` // of content_block_delta and message_delta
	Usage *usage `json:"usage"` // of message_delta
}

// usage is the consumption that an event reports, in tokens. The numbers of later events
// replace those of earlier ones. Nil numbers are not reported.
type usage struct {
	Input      *int64 `json:"input_tokens"` // without the two below
	CacheWrite *int64 `json:"cache_creation_input_tokens"`
	CacheRead  *int64 `json:"cache_read_input_tokens"`
	Output     *int64 `json:"output_tokens"`
	Details    struct {
		Thinking int64 `json:"thinking_tokens"`
	} `json:"output_tokens_details"`
}

// answer accumulates the events of one stream.
type answer struct {
	id, model, stop string
	sequence        string // the stop sequence that ended the answer
	done            bool   // message_stop was received
	text, thinking  strings.Builder
	calls           []*call
	byIndex         map[int]*call // by the index of their block
	size            int

	input, write, read, output, thought int64 // reported usage
	reported                            bool  // the output of the whole answer is reported
}

type call struct {
	id, name  string
	arguments strings.Builder
}

// add adds one event and returns its new text. It returns an error for an event that is
// not in the protocol and for an answer that is too large. Unknown events are ignored, as
// the protocol requires.
func (a *answer) add(data []byte) (string, error) {
	var e event
	if err := json.Unmarshal(data, &e); err != nil {
		return "", errors.New("the stream has an event that cannot be read")
	}
	var text string
	switch e.Type {
	case "message_start":
		a.id, a.model = e.Message.ID, e.Message.Model
		a.count(e.Message.Usage)
	case "content_block_start":
		text = e.Block.Text
		if e.Block.Type == "tool_use" {
			if err := a.open(e); err != nil {
				return "", err
			}
		}
	case "content_block_delta":
		text = e.Delta.Text
		a.thinking.WriteString(e.Delta.Thinking)
		if c := a.byIndex[e.Index]; c != nil {
			c.arguments.WriteString(e.Delta.PartialJSON)
		}
		a.size += len(e.Delta.Thinking) + len(e.Delta.PartialJSON)
	case "message_delta":
		if e.Delta.StopReason != "" {
			a.stop, a.sequence = e.Delta.StopReason, e.Delta.Stop
		}
		a.count(e.Usage)
		a.reported = a.reported || e.Usage != nil && e.Usage.Output != nil
	case "message_stop":
		a.done = true
	}
	a.text.WriteString(text)
	if a.size += len(text); a.size > maxAnswer {
		return "", fmt.Errorf("the answer is larger than %d bytes", maxAnswer)
	}
	return text, nil
}

// open adds the call of a tool_use block. Its arguments follow in pieces; some servers
// send them whole with the block.
func (a *answer) open(e event) error {
	if len(a.calls) == maxBlocks {
		return fmt.Errorf("the answer has more than %d tool calls", maxBlocks)
	}
	c := &call{id: e.Block.ID, name: e.Block.Name}
	if whole := string(e.Block.Input); whole != "" && whole != "{}" && whole != "null" {
		c.arguments.WriteString(whole)
	}
	if a.byIndex == nil {
		a.byIndex = map[int]*call{}
	}
	a.byIndex[e.Index] = c
	a.calls = append(a.calls, c)
	a.size += len(c.id) + len(c.name) + c.arguments.Len()
	return nil
}

func (a *answer) count(u *usage) {
	if u == nil {
		return
	}
	for _, n := range []struct {
		to   *int64
		from *int64
	}{{&a.input, u.Input}, {&a.write, u.CacheWrite}, {&a.read, u.CacheRead}, {&a.output, u.Output}} {
		if n.from != nil && *n.from >= 0 {
			*n.to = min(*n.from, maxCount)
		}
	}
	a.thought = max(a.thought, u.Details.Thinking)
}

// finishes maps stop reasons to those of package provider.
//
//nolint:gochecknoglobals // a table
var finishes = map[string]string{
	"end_turn": provider.FinishStop, "stop_sequence": provider.FinishStop, "pause_turn": provider.FinishStop,
	"tool_use": provider.FinishToolCalls, "refusal": provider.FinishRefusal,
	"max_tokens": provider.FinishLength, "model_context_window_exceeded": provider.FinishLength,
}

// response returns the answer. Its usage is estimated if the provider did not report it or
// reported more tokens than possible.
func (a *answer) response(req provider.Request) provider.Response {
	res := provider.Response{ID: a.id, Model: a.model, Text: a.text.String(), Reasoning: a.thinking.String(), Finish: a.stop, Stop: a.sequence}
	if finish, ok := finishes[a.stop]; ok {
		res.Finish = finish
	}
	for _, c := range a.calls {
		res.ToolCalls = append(res.ToolCalls, provider.ToolCall{ID: c.id, Name: c.name, Arguments: c.arguments.String()})
	}
	if len(res.ToolCalls) == 0 && res.Finish == provider.FinishToolCalls {
		res.Finish = provider.FinishStop // the model announced calls and made none
	}
	res.Usage = provider.Usage{
		Input: a.input + a.write + a.read, CachedInput: a.read, CacheWrite: a.write,
		Output: a.output, Reasoning: min(a.thought, a.output),
	}
	if estimate := provider.Estimate(req, res); !a.reported || res.Usage.Input == 0 || res.Usage.Output == 0 && estimate.Output > 0 || a.implausible(req) {
		res.Usage = estimate
	}
	return res
}

// implausible reports whether the provider reports more tokens than possible: a token has
// at least one byte, and the output limit includes thinking that is not shown.
func (a *answer) implausible(req provider.Request) bool {
	const own = 8192 // tokens that a server may add to a prompt or an answer
	return a.input+a.write+a.read > req.Size()+own || req.MaxTokens > 0 && a.output > max(req.MaxTokens, int64(a.size))+own
}

// partial returns the part of the answer that a broken call received. The prompt is counted
// as message_start reports it. The output is an estimate, raised to the reported usage: a
// report before the end may be incomplete.
func (a *answer) partial(req provider.Request) provider.Response {
	reported := a.reported
	a.reported = false
	res := a.response(req)
	a.reported = reported
	if prompt := a.input + a.write + a.read; prompt > 0 && !a.implausible(req) {
		res.Usage.Input, res.Usage.CachedInput, res.Usage.CacheWrite = prompt, a.read, a.write
		res.Usage.Output = max(res.Usage.Output, a.output)
	}
	if a.stop == "" {
		res.Finish = ""
	}
	return res
}
