package openai

import (
	"encoding/json"
	"slices"
	"strconv"

	sdk "github.com/openai/openai-go/v3"
	"github.com/tidwall/gjson"
)

// chunk holds the fields of one stream event that an answer needs. It replaces the
// official client's type, which stores each field with its metadata: filling it would
// take most of the processor time of a call.
type chunk struct {
	id, model string
	usage     *tally // nil: not reported
	choices   []choice
}

type tally struct{ prompt, cached, completion, reasoning int64 }

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

// UnmarshalJSON reads an event with gjson, which the official client's decoder is built
// on. If a field does not have the protocol's type, it falls back to that decoder, which
// converts such fields.
func (c *chunk) UnmarshalJSON(data []byte) error {
	*c = chunk{}
	if c.read(gjson.ParseBytes(data)) {
		return nil
	}
	var whole sdk.ChatCompletionChunk
	if err := json.Unmarshal(data, &whole); err != nil {
		return err
	}
	*c = leniently(whole)
	return nil
}

// leniently converts a chunk that the official client has decoded.
func leniently(whole sdk.ChatCompletionChunk) chunk {
	c := chunk{id: whole.ID, model: whole.Model}
	if u := whole.Usage; whole.JSON.Usage.Valid() {
		c.usage = &tally{
			prompt: u.PromptTokens, cached: u.PromptTokensDetails.CachedTokens,
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

// read reads a chunk. It returns false if a field does not have the protocol's type.
func (c *chunk) read(v gjson.Result) bool {
	return v.IsObject() && object(v, func(name string, v gjson.Result) bool {
		switch name {
		case "id":
			return text(v, &c.id)
		case "model":
			return text(v, &c.model)
		case "usage":
			if v.Type == gjson.Null {
				return true
			}
			c.usage = new(tally)
			return c.usage.read(v)
		case "choices":
			return array(v, func(v gjson.Result) bool {
				c.choices = append(c.choices, choice{})
				return c.choices[len(c.choices)-1].read(v)
			})
		}
		return true
	})
}

func (t *tally) read(v gjson.Result) bool {
	return object(v, func(name string, v gjson.Result) bool {
		switch name {
		case "prompt_tokens":
			return number(v, &t.prompt)
		case "completion_tokens":
			return number(v, &t.completion)
		case "prompt_tokens_details":
			return detail(v, "cached_tokens", &t.cached)
		case "completion_tokens_details":
			return detail(v, "reasoning_tokens", &t.reasoning)
		}
		return true
	})
}

func detail(v gjson.Result, field string, out *int64) bool {
	return object(v, func(name string, v gjson.Result) bool { return name != field || number(v, out) })
}

func (c *choice) read(v gjson.Result) bool {
	return object(v, func(name string, v gjson.Result) bool {
		switch name {
		case "index":
			return number(v, &c.index)
		case "finish_reason":
			return text(v, &c.finish)
		case "delta":
			return c.delta(v)
		}
		return true
	})
}

func (c *choice) delta(v gjson.Result) bool {
	var content, reasoning string // JSON of the fields reasoning_content and reasoning
	ok := object(v, func(name string, v gjson.Result) bool {
		switch name {
		case "content":
			return text(v, &c.content)
		case "refusal":
			return text(v, &c.refusal)
		case "reasoning_content":
			content = v.Raw
		case "reasoning":
			reasoning = v.Raw
		case "tool_calls":
			return array(v, func(v gjson.Result) bool {
				c.calls = append(c.calls, part{})
				return c.calls[len(c.calls)-1].read(v)
			})
		}
		return true
	})
	c.reasoning = reasoningOf(content, reasoning)
	return ok
}

func (p *part) read(v gjson.Result) bool {
	return object(v, func(name string, v gjson.Result) bool {
		switch name {
		case "index":
			return number(v, &p.index)
		case "id":
			return text(v, &p.id)
		case "function":
			return object(v, func(name string, v gjson.Result) bool {
				switch name {
				case "name":
					return text(v, &p.name)
				case "arguments":
					return text(v, &p.arguments)
				}
				return true
			})
		}
		return true
	})
}

// maxFields is the most fields of an object that is read here; real ones have ten.
const maxFields = 32

// object calls field for each field of an object until it returns false. null is an
// object without fields. It returns false for any other value, and for an object with a
// repeated field or more than maxFields fields.
func object(v gjson.Result, field func(name string, v gjson.Result) bool) bool {
	if v.Type == gjson.Null {
		return true
	}
	var seen [maxFields]string
	n, ok := 0, v.IsObject()
	if ok {
		v.ForEach(func(name, v gjson.Result) bool {
			if ok = n < maxFields && !slices.Contains(seen[:n], name.Str) && field(name.Str, v); ok {
				seen[n] = name.Str
				n++
			}
			return ok
		})
	}
	return ok
}

// array calls element for each object of an array until it returns false. null is an
// empty array. It returns false for any other value, and for an element that is not an
// object.
func array(v gjson.Result, element func(v gjson.Result) bool) bool {
	if v.Type == gjson.Null {
		return true
	}
	ok := v.IsArray()
	if ok {
		v.ForEach(func(_, v gjson.Result) bool {
			ok = v.IsObject() && element(v)
			return ok
		})
	}
	return ok
}

// text reads a string; null is the empty string.
func text(v gjson.Result, out *string) bool {
	*out = v.Str
	return v.Type == gjson.String || v.Type == gjson.Null
}

// number reads an integer; null is 0.
func number(v gjson.Result, out *int64) bool {
	*out = 0
	if v.Type == gjson.Null {
		return true
	}
	if v.Type != gjson.Number {
		return false
	}
	n, err := strconv.ParseInt(v.Raw, 10, 64)
	*out = n
	return err == nil
}
