package openai

import (
	"encoding/json"
	"errors"

	sdk "github.com/openai/openai-go/v3"
	"github.com/tidwall/gjson"

	"github.com/anima-run/anima/services/inference-router/internal/strictjson"
)

// chunk holds the fields of one stream event that an answer needs. It replaces the
// official client's type, which stores each field with its metadata: filling it would
// take most of the processor time of a call.
type chunk struct {
	id, model string
	usage     *tally // nil: not reported
	choices   []choice
}

type tally struct{ prompt, cached, written, completion, reasoning int64 }

type choice struct {
	index            int64
	content, refusal string
	reasoning        string // from a field beside the content
	calls            []part
	finish           string
}

// part is a fragment of a tool call.
type part struct {
	index               int64
	id, name, arguments string
}

// chunkOf reads an event with gjson, which the official client's decoder is built on. If
// a field does not have the protocol's type, it uses that decoder, which converts such
// fields.
func chunkOf(data []byte) (chunk, error) {
	var c chunk
	if gjson.ValidBytes(data) {
		if v := gjson.ParseBytes(data); v.IsObject() && c.read(v) == nil {
			return c, nil
		}
	}
	var whole sdk.ChatCompletionChunk
	if err := json.Unmarshal(data, &whole); err != nil {
		return chunk{}, err
	}
	return leniently(whole), nil
}

// leniently converts a chunk that the official client has decoded.
func leniently(whole sdk.ChatCompletionChunk) chunk {
	c := chunk{id: whole.ID, model: whole.Model}
	if u := whole.Usage; whole.JSON.Usage.Valid() {
		c.usage = &tally{
			prompt: u.PromptTokens, cached: u.PromptTokensDetails.CachedTokens, written: u.PromptTokensDetails.CacheWriteTokens,
			completion: u.CompletionTokens, reasoning: u.CompletionTokensDetails.ReasoningTokens,
		}
	}
	for _, from := range whole.Choices {
		to := choice{index: from.Index, content: from.Delta.Content, refusal: from.Delta.Refusal, finish: from.FinishReason}
		extra := from.Delta.JSON.ExtraFields
		to.reasoning = reasoningOf(extra["reasoning_content"].Raw(), extra["reasoning"].Raw())
		for _, p := range from.Delta.ToolCalls {
			to.calls = append(to.calls, part{p.Index, p.ID, p.Function.Name, p.Function.Arguments})
		}
		c.choices = append(c.choices, to)
	}
	return c
}

// reasoningOf returns the first text in the JSON of two fields: some gateways send both.
func reasoningOf(fields ...string) string {
	for _, raw := range fields {
		if raw == "" {
			continue
		}
		var apart string
		if json.Unmarshal([]byte(raw), &apart) == nil && apart != "" {
			return apart
		}
	}
	return ""
}

// read reads a chunk. It returns an error if a field does not have the protocol's type.
func (c *chunk) read(v gjson.Result) error {
	return strictjson.Object(v, func(name string, v gjson.Result) error {
		switch name {
		case "id":
			return strictjson.Value(v, &c.id)
		case "model":
			return strictjson.Value(v, &c.model)
		case "usage":
			if v.Type == gjson.Null {
				return nil
			}
			c.usage = new(tally)
			return c.usage.read(v)
		case "choices":
			return strictjson.Array(v, func(v gjson.Result) error {
				c.choices = append(c.choices, choice{})
				return c.choices[len(c.choices)-1].read(v)
			})
		}
		return nil
	})
}

func (t *tally) read(v gjson.Result) error {
	return strictjson.Object(v, func(name string, v gjson.Result) error {
		switch name {
		case "prompt_tokens":
			return strictjson.Value(v, &t.prompt)
		case "completion_tokens":
			return strictjson.Value(v, &t.completion)
		case "prompt_tokens_details":
			return errors.Join(detail(v, "cached_tokens", &t.cached), detail(v, "cache_write_tokens", &t.written))
		case "completion_tokens_details":
			return detail(v, "reasoning_tokens", &t.reasoning)
		}
		return nil
	})
}

func detail(v gjson.Result, field string, out *int64) error {
	return strictjson.Object(v, func(name string, v gjson.Result) error {
		if name != field {
			return nil
		}
		return strictjson.Value(v, out)
	})
}

func (c *choice) read(v gjson.Result) error {
	return strictjson.Object(v, func(name string, v gjson.Result) error {
		switch name {
		case "index":
			return strictjson.Value(v, &c.index)
		case "finish_reason":
			return strictjson.Value(v, &c.finish)
		case "delta":
			return c.delta(v)
		}
		return nil
	})
}

func (c *choice) delta(v gjson.Result) error {
	var content, reasoning string // JSON of the fields reasoning_content and reasoning
	err := strictjson.Object(v, func(name string, v gjson.Result) error {
		switch name {
		case "content":
			return strictjson.Value(v, &c.content)
		case "refusal":
			return strictjson.Value(v, &c.refusal)
		case "reasoning_content":
			content = v.Raw
		case "reasoning":
			reasoning = v.Raw
		case "tool_calls":
			return strictjson.Array(v, func(v gjson.Result) error {
				c.calls = append(c.calls, part{})
				return c.calls[len(c.calls)-1].read(v)
			})
		}
		return nil
	})
	c.reasoning = reasoningOf(content, reasoning)
	return err
}

func (p *part) read(v gjson.Result) error {
	return strictjson.Object(v, func(name string, v gjson.Result) error {
		switch name {
		case "index":
			return strictjson.Value(v, &p.index)
		case "id":
			return strictjson.Value(v, &p.id)
		case "function":
			return strictjson.Object(v, func(name string, v gjson.Result) error {
				switch name {
				case "name":
					return strictjson.Value(v, &p.name)
				case "arguments":
					return strictjson.Value(v, &p.arguments)
				}
				return nil
			})
		}
		return nil
	})
}
