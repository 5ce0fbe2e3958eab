package openai

import (
	"context"
	"errors"
	"io"
	"iter"

	"github.com/openai/openai-go/v3/option"
	sdk "github.com/openai/openai-go/v3/responses"
	"github.com/tidwall/gjson"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// responses is the protocol of responses. Its events are read into the chunks of a
// completion. The provider stores no response: each request has the whole conversation.
type responses struct{ sdk.ResponseService }

func (responses) body(req provider.Request, d dialect) ([]byte, error) { return responseBody(req, d) }

func (r responses) post(ctx context.Context, opts ...option.RequestOption) error {
	_, err := r.New(ctx, sdk.ResponseNewParams{}, opts...)
	return err
}

func (responses) chunks(body io.Reader) iter.Seq2[chunk, error] {
	r := responseReader{pieces: map[int64]bool{}}
	return events(body, r.document, r.event)
}

// responseReader reads the events of one response.
type responseReader struct {
	pieces map[int64]bool // calls, by index, whose arguments came in pieces
}

var (
	errNoEvent    = errors.New("the stream has an event that cannot be read")
	errNoResponse = errors.New("the answer is not a response: it has no output")
)

// event reads an event and returns true for the last one. A last event without usage is
// followed by the rest of the stream, where some servers report it. Unknown events are
// empty chunks.
func (r *responseReader) event(data []byte) (chunk, bool, error) {
	if !gjson.ValidBytes(data) {
		return chunk{}, false, errNoEvent
	}
	e := gjson.ParseBytes(data)
	index := e.Get("output_index").Int()
	switch kind := e.Get("type").Str; kind {
	case "response.created", "response.in_progress", "response.queued":
		return chunk{id: e.Get("response.id").Str, model: e.Get("response.model").Str}, false, nil
	case "response.output_text.delta":
		return piece(choice{content: e.Get("delta").Str}), false, nil
	case "response.refusal.delta":
		return piece(choice{refusal: e.Get("delta").Str}), false, nil
	case "response.reasoning_text.delta", "response.reasoning_summary_text.delta":
		return piece(choice{reasoning: e.Get("delta").Str}), false, nil
	case "response.output_item.added":
		if item := e.Get("item"); item.Get("type").Str == "function_call" {
			return piece(choice{calls: []part{{index: index, id: item.Get("call_id").Str, name: item.Get("name").Str}}}), false, nil
		}
	case "response.function_call_arguments.delta":
		return r.arguments(index, e.Get("delta").Str), false, nil
	case "response.function_call_arguments.done":
		if !r.pieces[index] { // a server that sends them whole
			return r.arguments(index, e.Get("arguments").Str), false, nil
		}
	case "response.completed", "response.incomplete":
		c := ended(e.Get("response"))
		return c, c.usage != nil, nil
	case "response.failed":
		return chunk{}, true, failed(e.Get("response.error"))
	case "error":
		return chunk{}, true, failed(e)
	}
	return chunk{}, false, nil
}

// arguments returns a piece of the arguments of a call.
func (r *responseReader) arguments(index int64, text string) chunk {
	r.pieces[index] = true
	return piece(choice{calls: []part{{index: index, arguments: text}}})
}

func piece(c choice) chunk { return chunk{choices: []choice{c}} }

// ended returns the end of a response: its finish reason, and its usage if it reports it.
func ended(response gjson.Result) chunk {
	finish := provider.FinishStop
	if response.Get("status").Str == "incomplete" {
		finish = provider.FinishLength
		if response.Get("incomplete_details.reason").Str == provider.FinishFilter {
			finish = provider.FinishFilter
		}
	}
	c := piece(choice{finish: finish})
	c.id, c.model = response.Get("id").Str, response.Get("model").Str
	if u := response.Get("usage"); u.IsObject() {
		c.usage = &tally{
			prompt: u.Get("input_tokens").Int(), cached: u.Get("input_tokens_details.cached_tokens").Int(), written: u.Get("input_tokens_details.cache_write_tokens").Int(),
			completion: u.Get("output_tokens").Int(), reasoning: u.Get("output_tokens_details.reasoning_tokens").Int(),
		}
	}
	return c
}

// failed returns an error object in the form of a completion's.
func failed(e gjson.Result) error {
	type object struct {
		Message string `json:"message"`
		Type    string `json:"type"`
		Code    string `json:"code"`
	}
	code := e.Get("code").String()
	data, err := api.Encode(map[string]object{"error": {e.Get("message").String(), code, code}})
	if err != nil {
		return err
	}
	return streamError(data)
}

// document reads a response that was not streamed.
func (*responseReader) document(data []byte) (chunk, error) {
	if !gjson.ValidBytes(data) {
		return chunk{}, errors.New("the answer is not a response: its JSON cannot be read")
	}
	response := gjson.ParseBytes(data)
	if e := response.Get("error"); e.IsObject() {
		return chunk{}, failed(e)
	}
	if !response.Get("output").IsArray() {
		return chunk{}, errNoResponse
	}
	c := ended(response)
	out := &c.choices[0]
	for i, item := range response.Get("output").Array() {
		switch item.Get("type").Str {
		case "message":
			for _, p := range item.Get("content").Array() {
				out.content += p.Get("text").Str
				out.refusal += p.Get("refusal").Str
			}
		case "reasoning":
			for _, p := range append(item.Get("summary").Array(), item.Get("content").Array()...) {
				out.reasoning += p.Get("text").Str
			}
		case "function_call":
			out.calls = append(out.calls, part{index: int64(i), id: item.Get("call_id").Str, name: item.Get("name").Str, arguments: item.Get("arguments").Str})
		}
	}
	return c, nil
}
