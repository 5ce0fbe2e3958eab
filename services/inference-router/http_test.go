package router_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	anthropic "github.com/anthropics/anthropic-sdk-go"
	anthropicoption "github.com/anthropics/anthropic-sdk-go/option"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	router "github.com/anima-run/anima/services/inference-router"

	"github.com/anima-run/anima/services/inference-router/openaitest"
)

// caller makes the same calls in one protocol with its official client.
type caller interface {
	// plain returns the text, the finish reason, the arguments of the calls, and the
	// tokens of prompt and answer.
	plain(ctx context.Context, model, text string) (said, error)
	// stream is plain for a streamed answer. It calls first when the first text has
	// arrived.
	stream(ctx context.Context, model, text string, first func()) (said, error)
	// status returns the HTTP status and the type of an error of the client.
	status(err error) (int, string)
}

type said struct {
	text, finish string
	calls        []string
	input        int64
	output       int64
}

type openaiCaller struct{ c openai.Client }

// shapeSchema is the schema of the answers to calls with the text [shape].
var shapeSchema = map[string]any{"type": "object", "properties": map[string]any{}, "additionalProperties": false}

func (o openaiCaller) params(model, text string) openai.ChatCompletionNewParams {
	if text == shape {
		return openai.ChatCompletionNewParams{
			Model: model, User: openai.String("lucky"),
			Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage([]openai.ChatCompletionContentPartUnionParam{
				openai.TextContentPart(text), openai.ImageContentPart(openai.ChatCompletionContentPartImageImageURLParam{URL: "data:image/gif;base64," + dotBase64}),
			})},
			ResponseFormat: openai.ChatCompletionNewParamsResponseFormatUnion{OfJSONSchema: &shared.ResponseFormatJSONSchemaParam{
				JSONSchema: shared.ResponseFormatJSONSchemaJSONSchemaParam{Name: "n", Schema: shapeSchema, Strict: openai.Bool(true)},
			}},
		}
	}
	return openai.ChatCompletionNewParams{
		Model: model, User: openai.String("lucky"), Messages: []openai.ChatCompletionMessageParamUnion{openai.SystemMessage("be brief"), openai.UserMessage(text)},
		Tools: []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{Name: "look", Parameters: shared.FunctionParameters{"type": "object"}})},
	}
}

func openaiSaid(m openai.ChatCompletion) said {
	out := said{text: m.Choices[0].Message.Content, finish: m.Choices[0].FinishReason, input: m.Usage.PromptTokens, output: m.Usage.CompletionTokens}
	for _, c := range m.Choices[0].Message.ToolCalls {
		out.calls = append(out.calls, c.Function.Name+c.Function.Arguments)
	}
	return out
}

func (o openaiCaller) plain(ctx context.Context, model, text string) (said, error) {
	m, err := o.c.Chat.Completions.New(ctx, o.params(model, text))
	if err != nil {
		return said{}, err
	}
	return openaiSaid(*m), nil
}

func (o openaiCaller) stream(ctx context.Context, model, text string, first func()) (said, error) {
	params := o.params(model, text)
	params.StreamOptions.IncludeUsage = openai.Bool(true)
	s := o.c.Chat.Completions.NewStreaming(ctx, params)
	var all openai.ChatCompletionAccumulator
	for s.Next() {
		if !all.AddChunk(s.Current()) {
			return said{}, errors.New("the chunks do not fit together")
		}
		if first != nil && len(all.Choices) > 0 && all.Choices[0].Message.Content != "" {
			first()
			first = nil
		}
	}
	if err := s.Err(); err != nil {
		return said{}, err
	}
	return openaiSaid(all.ChatCompletion), nil
}

func (o openaiCaller) status(err error) (int, string) {
	if e, ok := errors.AsType[*openai.Error](err); ok {
		return e.StatusCode, e.Type
	}
	return 0, err.Error()
}

type responsesCaller struct{ openaiCaller }

func (o responsesCaller) params(model, text string) responses.ResponseNewParams {
	if text == shape {
		image := responses.ResponseInputContentParamOfInputImage(responses.ResponseInputImageDetailAuto)
		image.OfInputImage.ImageURL = openai.String("data:image/gif;base64," + dotBase64)
		return responses.ResponseNewParams{
			Model: model, User: openai.String("lucky"),
			Input: responses.ResponseNewParamsInputUnion{OfInputItemList: responses.ResponseInputParam{responses.ResponseInputItemParamOfMessage(
				responses.ResponseInputMessageContentListParam{responses.ResponseInputContentParamOfInputText(text), image}, responses.EasyInputMessageRoleUser,
			)}},
			Text: responses.ResponseTextConfigParam{Format: responses.ResponseFormatTextConfigParamOfJSONSchema("n", shapeSchema)},
		}
	}
	return responses.ResponseNewParams{
		Model: model, User: openai.String("lucky"), Instructions: openai.String("be brief"),
		Input: responses.ResponseNewParamsInputUnion{OfString: openai.String(text)},
		Tools: []responses.ToolUnionParam{responses.ToolParamOfFunction("look", map[string]any{"type": "object"}, false)},
	}
}

func responsesSaid(r responses.Response) said {
	out := said{text: r.OutputText(), finish: string(r.Status), input: r.Usage.InputTokens, output: r.Usage.OutputTokens}
	for _, item := range r.Output {
		if c, ok := item.AsAny().(responses.ResponseFunctionToolCall); ok {
			out.calls = append(out.calls, c.Name+c.Arguments)
		}
	}
	return out
}

func (o responsesCaller) plain(ctx context.Context, model, text string) (said, error) {
	r, err := o.c.Responses.New(ctx, o.params(model, text))
	if err != nil {
		return said{}, err
	}
	return responsesSaid(*r), nil
}

// stream compares the pieces with the response at the end.
func (o responsesCaller) stream(ctx context.Context, model, text string, first func()) (said, error) {
	s := o.c.Responses.NewStreaming(ctx, o.params(model, text))
	var out said
	var pieces strings.Builder
	var calls []string
	for next := int64(0); s.Next(); next++ {
		if got := s.Current().SequenceNumber; got != next {
			return said{}, fmt.Errorf("event %s has number %d, want %d", s.Current().Type, got, next)
		}
		switch e := s.Current().AsAny().(type) {
		case responses.ResponseTextDeltaEvent:
			pieces.WriteString(e.Delta)
			if first != nil {
				first()
				first = nil
			}
		case responses.ResponseTextDoneEvent:
			if e.Text != pieces.String() {
				return said{}, fmt.Errorf("the text is %q after the pieces %q", e.Text, pieces.String())
			}
		case responses.ResponseFunctionCallArgumentsDoneEvent:
			calls = append(calls, "look"+e.Arguments)
		case responses.ResponseCompletedEvent:
			out = responsesSaid(e.Response)
		}
	}
	if err := s.Err(); err != nil {
		return said{}, err
	}
	if pieces.String() != out.text || !slices.Equal(calls, out.calls) {
		return said{}, fmt.Errorf("the response is %+v after the pieces %q and the calls %q", out, pieces.String(), calls)
	}
	return out, nil
}

type anthropicCaller struct{ c anthropic.Client }

func (a anthropicCaller) params(model, text string) anthropic.MessageNewParams {
	if text == shape {
		return anthropic.MessageNewParams{
			Model: model, MaxTokens: 100, Metadata: anthropic.MetadataParam{UserID: anthropic.String("lucky")},
			Messages:     []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock(text), anthropic.NewImageBlockBase64("image/gif", dotBase64))},
			OutputConfig: anthropic.OutputConfigParam{Format: anthropic.JSONOutputFormatParam{Schema: shapeSchema}},
		}
	}
	return anthropic.MessageNewParams{
		Model: model, MaxTokens: 100, System: []anthropic.TextBlockParam{{Text: "be brief"}},
		Metadata: anthropic.MetadataParam{UserID: anthropic.String("lucky")},
		Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock(text))},
		Tools:    []anthropic.ToolUnionParam{anthropic.ToolUnionParamOfTool(anthropic.ToolInputSchemaParam{}, "look")},
	}
}

func anthropicSaid(m anthropic.Message) said {
	out := said{finish: string(m.StopReason), input: m.Usage.InputTokens, output: m.Usage.OutputTokens}
	for _, b := range m.Content {
		switch b := b.AsAny().(type) {
		case anthropic.TextBlock:
			out.text += b.Text
		case anthropic.ToolUseBlock:
			out.calls = append(out.calls, b.Name+string(b.Input))
		}
	}
	return out
}

func (a anthropicCaller) plain(ctx context.Context, model, text string) (said, error) {
	m, err := a.c.Messages.New(ctx, a.params(model, text))
	if err != nil {
		return said{}, err
	}
	return anthropicSaid(*m), nil
}

func (a anthropicCaller) stream(ctx context.Context, model, text string, first func()) (said, error) {
	s := a.c.Messages.NewStreaming(ctx, a.params(model, text))
	var all anthropic.Message
	for s.Next() {
		if err := all.Accumulate(s.Current()); err != nil {
			return said{}, err
		}
		if first != nil && len(all.Content) > 0 && all.Content[0].Text != "" {
			first()
			first = nil
		}
	}
	if err := s.Err(); err != nil {
		return said{}, err
	}
	if all.StopReason == "" {
		return said{}, errors.New("the stream ended without a stop reason")
	}
	return anthropicSaid(all), nil
}

func (a anthropicCaller) status(err error) (int, string) {
	if e, ok := errors.AsType[*anthropic.Error](err); ok {
		return e.StatusCode, string(e.Type())
	}
	return 0, err.Error()
}

// TestModelLists reads the models with the official client of each protocol.
func TestModelLists(t *testing.T) {
	t.Parallel()
	w := start(t, serve(t), nil)
	ours := openai.NewClient(option.WithBaseURL(w.HTTP+"/v1"), option.WithAPIKey(w.Token), option.WithMaxRetries(0))
	theirs := anthropic.NewClient(anthropicoption.WithBaseURL(w.HTTP+"/anthropic"), anthropicoption.WithAPIKey(w.Token), anthropicoption.WithMaxRetries(0))
	all := map[string][]string{}
	for list := ours.Models.ListAutoPaging(t.Context()); list.Next(); {
		all["openai"] = append(all["openai"], list.Current().ID)
	}
	for list := theirs.Models.ListAutoPaging(t.Context(), anthropic.ModelListParams{}); list.Next(); {
		all["anthropic"] = append(all["anthropic"], list.Current().ID)
	}
	if !slices.Contains(all["openai"], "m") || !slices.Equal(all["openai"], all["anthropic"]) {
		t.Errorf("got the models %v, want the same with m", all)
	}
	if m, err := ours.Models.Get(t.Context(), "m"); err != nil || m.ID != "m" || m.OwnedBy != "openai" {
		t.Errorf("openai: got %+v, %v", m, err)
	}
	if m, err := theirs.Models.Get(t.Context(), "m", anthropic.ModelGetParams{}); err != nil || m.ID != "m" || m.DisplayName != "m" || m.MaxInputTokens != 128_000 || m.CreatedAt.Unix() != 0 {
		t.Errorf("anthropic: got %+v, %v", m, err)
	}
	if _, err := theirs.Models.Get(t.Context(), "mm", anthropic.ModelGetParams{}); err == nil {
		t.Error("a model that does not exist: got no error")
	} else if status, word := (anthropicCaller{}).status(err); status != http.StatusNotFound || word != "not_found_error" {
		t.Errorf("a model that does not exist: got %d %s, want 404 not_found_error", status, word)
	}
}

// TestCountTokens counts the tokens of prompts with the official client, and checks that
// nothing is held and no model is called.
func TestCountTokens(t *testing.T) {
	t.Parallel()
	p := serve(t)
	w, b := paid(t, p.url, map[string]string{"ANIMA_INFERENCE_ROUTER_MODELS": "m=1/4/1000,gpt-4o-mini=1/4/128000/vision"})
	withBalances(t, w)
	c := anthropic.NewClient(anthropicoption.WithBaseURL(w.HTTP+"/anthropic"), anthropicoption.WithAPIKey(w.Token), anthropicoption.WithMaxRetries(0), anthropicoption.WithHeader("Anima-Agent", "lucky"))
	count := func(params anthropic.MessageCountTokensParams) (int64, error) {
		n, err := c.Messages.CountTokens(t.Context(), params)
		if err != nil {
			return 0, err
		}
		return n.InputTokens, nil
	}
	ask := func(model string, content ...anthropic.ContentBlockParamUnion) anthropic.MessageCountTokensParams {
		return anthropic.MessageCountTokensParams{Model: model, Messages: []anthropic.MessageParam{anthropic.NewUserMessage(content...)}}
	}
	plain := ask("m", anthropic.NewTextBlock("hello")) // 4 for the message, 2 for five bytes
	whole := ask("m", anthropic.NewTextBlock("hello"))
	whole.System = anthropic.MessageCountTokensParamsSystemUnion{OfString: anthropic.String("be brief")} // 4 + 2
	whole.Tools = []anthropic.MessageCountTokensToolUnionParam{anthropic.MessageCountTokensToolParamOfTool(anthropic.ToolInputSchemaParam{}, "look")}
	for name, c := range map[string]struct {
		params anthropic.MessageCountTokensParams
		want   func(n int64) bool
	}{
		"a text":                    {plain, func(n int64) bool { return n == 6 }},
		"with a system and a tool":  {whole, func(n int64) bool { return n == 6+6+8+1 }},
		"longer than the window":    {ask("m", anthropic.NewTextBlock(strings.Repeat("text ", 200_000))), func(n int64) bool { return n == 250_004 }},
		"an image for a dear model": {ask("gpt-4o-mini", anthropic.NewImageBlockBase64("image/gif", dotBase64)), func(n int64) bool { return n == 4+1502+48_169 }},
	} {
		got, err := count(c.params)
		if err != nil || !c.want(got) {
			t.Errorf("%s: got %d tokens, %v", name, got, err)
		}
	}
	for name, c := range map[string]struct {
		params anthropic.MessageCountTokensParams
		status int
		word   string
	}{
		"unknown model": {ask("mm", anthropic.NewTextBlock("hello")), http.StatusNotFound, "not_found_error"},
		"no messages":   {anthropic.MessageCountTokensParams{Model: "m", Messages: []anthropic.MessageParam{}}, http.StatusBadRequest, "invalid_request_error"},
		"not an image":  {ask("gpt-4o-mini", anthropic.NewImageBlockBase64("image/png", dotBase64)), http.StatusBadRequest, "invalid_request_error"},
	} {
		_, err := count(c.params)
		if status, word := (anthropicCaller{}).status(err); status != c.status || word != c.word {
			t.Errorf("%s: got %d %s, want %d %s", name, status, word, c.status, c.word)
		}
	}
	if settled, released, active, _ := b.sums(); settled+released+active != 0 || p.calls.Load() != 0 {
		t.Errorf("got %d settled, %d released and %d active holds and %d calls of the provider, want none", settled, released, active, p.calls.Load())
	}
}

// TestUnknownPaths checks that a path without a route below that of Anthropic's protocol has
// an error of the protocol, with and without a key.
func TestUnknownPaths(t *testing.T) {
	t.Parallel()
	w := start(t, serve(t), nil)
	for _, route := range []string{"POST /anthropic/v1/messages/batches", "GET /anthropic/v1/files", "GET /anthropic/v1/messages", "POST /anthropic/"} {
		for _, key := range []string{"", w.Token} {
			got := fetch(t, w, route, "", "X-Api-Key", key)
			if got.status != http.StatusNotFound || got.Type != "error" || got.Error.Type != "not_found_error" || !strings.Contains(got.Error.Message, route) {
				t.Errorf("%s with the key %q: got %d %s, want 404 not_found_error", route, key, got.status, got.body)
			}
		}
	}
}

// withBalances answers requests for the balance of agents as treasury does: lucky has
// credits, and no other agent has an account.
func withBalances(t *testing.T, w *apptest.World) *apptest.World {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- w.Bus.Serve(ctx, time.Second, func() { close(ready) }, bus.Reply(func(_ context.Context, m api.GetBalance) (api.Balance, error) {
			if m.Agent != "lucky" {
				return api.Balance{}, api.Errorf(api.NotFound, "no account %s", m.Agent)
			}
			return api.Balance{Agent: m.Agent, Available: 9 * api.Dollar, Tier: api.TierHigh}, nil
		}))
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-ready:
	case err := <-done:
		done <- nil
		t.Fatal(err)
	}
	return w
}

// surfaceWords are the finish reasons and types of errors in each protocol.
var surfaceWords = map[string]map[string]string{
	"openai":    {"stop": "stop", "calls": "tool_calls", "401": "invalid_request_error", "400": "invalid_request_error"},
	"responses": {"stop": "completed", "calls": "completed", "401": "invalid_request_error", "400": "invalid_request_error"},
	"anthropic": {"stop": "end_turn", "calls": "tool_use", "401": "authentication_error", "400": "invalid_request_error"},
}

// TestSurfaces makes the same calls with the official clients for Go of each protocol.
func TestSurfaces(t *testing.T) {
	t.Parallel()
	openAI := func(base, key string) openaiCaller {
		return openaiCaller{openai.NewClient(option.WithBaseURL(base+"/v1"), option.WithAPIKey(key), option.WithMaxRetries(0))}
	}
	for name, open := range map[string]func(base, key string) caller{
		"openai":    func(base, key string) caller { return openAI(base, key) },
		"responses": func(base, key string) caller { return responsesCaller{openAI(base, key)} },
		"anthropic": func(base, key string) caller {
			return anthropicCaller{anthropic.NewClient(anthropicoption.WithBaseURL(base+"/anthropic"), anthropicoption.WithAPIKey(key), anthropicoption.WithMaxRetries(0))}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testSurface(t, surfaceWords[name], open)
			testShape(t, open)
		})
	}
}

// testSurface makes plain and streamed calls with and without tools, calls that fail, and
// a call that its caller cancels.
func testSurface(t *testing.T, words map[string]string, open func(base, key string) caller) {
	t.Helper()
	up := serve(t)
	w := withBalances(t, start(t, up, nil))
	c := open(w.HTTP, w.Token)
	const want = "You said: hello. These are enough words to come in several pieces."
	for kind, call := range map[string]func(text string) (said, error){
		"plain":  func(text string) (said, error) { return c.plain(t.Context(), "m", text) },
		"stream": func(text string) (said, error) { return c.stream(t.Context(), "m", text, nil) },
	} {
		got, err := call("hello")
		if err != nil || got.text != want || got.finish != words["stop"] || got.input == 0 || got.output == 0 {
			t.Errorf("%s: got %+v, %v", kind, got, err)
		}
		got, err = call("tool")
		if err != nil || got.text != "I look." || got.finish != words["calls"] || len(got.calls) != 1 || got.calls[0] != `look{"at":"it"}` {
			t.Errorf("%s with a call: got %+v, %v", kind, got, err)
		}
		if _, err := call("refused"); err == nil {
			t.Errorf("%s refused by the provider: got no error", kind)
		} else if status, word := c.status(err); status != http.StatusBadRequest || word != words["400"] {
			t.Errorf("%s refused by the provider: got %d %s", kind, status, word)
		}
	}
	if _, err := open(w.HTTP, "wrong").plain(t.Context(), "m", "hello"); err == nil {
		t.Error("a wrong key: got no error")
	} else if status, word := c.status(err); status != http.StatusUnauthorized || word != words["401"] {
		t.Errorf("a wrong key: got %d %s", status, word)
	}
	// A caller that disconnects ends the call at the provider.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if _, err := c.stream(ctx, "m", "slow", cancel); !errors.Is(err, context.Canceled) {
		t.Errorf("a stream that its caller canceled: got %v", err)
	}
	select {
	case <-up.gone:
	case <-time.After(30 * time.Second):
		t.Error("the provider's answer was not canceled")
	}
}

// TestSurfaceFaults checks that a stream which broke off at the provider does not end like
// a complete one.
func TestSurfaceFaults(t *testing.T) {
	t.Parallel()
	ends := map[string]func(*openaitest.Stream){
		"reset":   func(*openaitest.Stream) { panic(http.ErrAbortHandler) },
		"early":   func(*openaitest.Stream) {},
		"done":    (*openaitest.Stream).Done,
		"garbage": func(s *openaitest.Stream) { s.Raw("data: {\"choices\": [{\n\n") },
		"error":   func(s *openaitest.Stream) { s.Error(openaitest.Error{Message: "overloaded", Type: "server_error"}) },
	}
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		req, err := openaitest.Decode(r.Body, r.ContentLength)
		if err != nil {
			openaitest.WriteError(w, http.StatusNotFound, openaitest.Error{Message: err.Error()})
			return
		}
		s := openaitest.NewStream(w, "c", req.Model, 1)
		s.Text("half ")
		s.Text("an answer")
		ends[req.Model](s)
	}))
	t.Cleanup(up.Close)
	var models []string
	for id := range ends {
		models = append(models, id+"=0/0/128000")
	}
	w := withBalances(t, start(t, &provider{url: up.URL + "/v1"}, map[string]string{"ANIMA_INFERENCE_ROUTER_MODELS": strings.Join(models, ",")}))
	for id := range ends {
		for path, words := range map[string]struct{ failed, end string }{
			"/v1/chat/completions":   {`"error":{`, "[DONE]"},
			"/v1/responses":          {`"error":{`, "response.completed"},
			"/anthropic/v1/messages": {`"error":{`, "message_stop"},
		} {
			t.Run(id+path, func(t *testing.T) {
				t.Parallel()
				const hi = `[{"role":"user","content":"hi"}]`
				status, body := post(t, w, path, `{"model":"`+id+`","max_tokens":9,"stream":true,"messages":`+hi+`,"input":`+hi+`}`, "Anima-Agent", "lucky")
				if status != http.StatusOK || !strings.Contains(body, "half ") || !strings.Contains(body, words.failed) || strings.Contains(body, words.end) {
					t.Errorf("got %d %s; want the beginning, an error and no %s", status, body, words.end)
				}
			})
		}
	}
}

// TestSurfaceInput checks the answers to requests that cannot be made.
func TestSurfaceInput(t *testing.T) {
	t.Parallel()
	w := withBalances(t, start(t, serve(t), nil))
	const hi = `"messages":[{"role":"user","content":"hi"}]`
	for _, c := range []struct {
		path, body string
		want       string // in the message
	}{
		{"/v1/chat/completions", `{"model":"m","user":"stranger",` + hi + `}`, "no account"},
		{"/anthropic/v1/messages", `{"model":"m","max_tokens":1,"metadata":{"user_id":"stranger"},` + hi + `}`, "no account"},
		{"/v1/chat/completions", `{"model":"m","user":"",` + hi + `}`, "does not name the agent"},
		{"/v1/chat/completions", `{"model":"m",` + hi + `}`, "is not a task"},
		{"/v1/responses", `{"model":"m","input":"hello"}`, "is not UTF-8"},
		{"/v1/chat/completions", `{`, "not a request"},
		{"/v1/chat/completions", `[]`, "not a request"},
		{"/v1/chat/completions", `{} {}`, "more than one"},
		{"/v1/chat/completions", `{` + hi + `}`, "model is missing"},
		{"/v1/chat/completions", `{"model":"m"}`, "messages is empty"},
		{"/v1/chat/completions", `{"model":"m","n":2,` + hi + `}`, "one answer"},
		{"/v1/chat/completions", `{"model":"m","max_tokens":-1,` + hi + `}`, "negative"},
		{"/v1/chat/completions", `{"model":"m","tool_choice":"some",` + hi + `}`, "tool_choice"},
		{"/v1/chat/completions", `{"model":"m","stop":1,` + hi + `}`, "stop"},
		{"/v1/chat/completions", `{"model":"m","tools":[{"type":"web_search"}],` + hi + `}`, "tools[0]"},
		{"/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:"}}]}]}`, "image_url"},
		{"/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":1}]}`, "messages[0]"},
		{"/v1/chat/completions", `{"model":"m","tools":[{"type":"function","function":{"name":"n","parameters":[1]}}],` + hi + `}`, "not an object"},
		{"/v1/chat/completions", `{"model":"m","tools":[{"type":"function","function":{"name":"n"}},{"type":"function","function":{"name":"n"}}],` + hi + `}`, "tools[1]: there is another"},
		{"/v1/responses", `{"model":"m","input":"hi","tools":[{"type":"function","name":"n","parameters":"x"}]}`, "not an object"},
		{"/anthropic/v1/messages", `{"model":"m","max_tokens":1,"tools":[{"name":"n","input_schema":{}},{"name":"n","input_schema":{}}],` + hi + `}`, "tools.1: there is another"},
		{"/v1/chat/completions", `{"model":"m","logprobs":true,` + hi + `}`, "logprobs"},
		{"/v1/chat/completions", `{"model":"m","top_logprobs":3,` + hi + `}`, "logprobs"},
		{"/v1/chat/completions", `{"model":"m","logit_bias":{"50256":-100},` + hi + `}`, "logit_bias"},
		{"/v1/chat/completions", `{"model":"m","functions":[{"name":"n"}],` + hi + `}`, "use tools"},
		{"/v1/chat/completions", `{"model":"m","function_call":"auto",` + hi + `}`, "use tools"},
		{"/v1/chat/completions", `{"model":"m","modalities":["text","audio"],"audio":{"voice":"v","format":"wav"},` + hi + `}`, "audio"},
		{"/v1/chat/completions", `{"model":"m","web_search_options":{},` + hi + `}`, "web_search_options"},
		{"/v1/chat/completions", `{"model":"m","messages":[{"role":"function","name":"n","content":"x"}]}`, "role"},
		{"/v1/chat/completions", `{"model":"m","messages":[{"content":"x"}]}`, "role"},
		{"/v1/chat/completions", `{"model":"m","messages":[{"role":"assistant","tool_calls":[{"id":"c","type":"custom","custom":{"name":"n","input":"x"}}]}]}`, "custom"},
		{"/v1/chat/completions", `{"model":"m","messages":[{"role":"assistant","function_call":{"name":"n","arguments":"{}"}}]}`, "function_call"},
		{"/v1/chat/completions", `{"model":"m","messages":[{"role":"assistant","audio":{"id":"a"}}]}`, "audio"},
		{"/v1/responses", `{"model":"m","input":[{"role":"someone","content":"x"}]}`, "role"},
		{"/v1/responses", `{"model":"m","input":[{"role":"tool","content":"x"}]}`, "role"},
		{"/v1/responses", `{`, "not a request"},
		{"/v1/responses", `{"input":"hi"}`, "model is missing"},
		{"/v1/responses", `{"model":"m"}`, "input is neither"},
		{"/v1/responses", `{"model":"m","input":""}`, "input is neither"},
		{"/v1/responses", `{"model":"m","input":[]}`, "input is neither"},
		{"/v1/responses", `{"model":"m","input":"hi","background":true}`, "background"},
		{"/v1/responses", `{"model":"m","input":"hi","previous_response_id":"resp_1"}`, "whole conversation"},
		{"/v1/responses", `{"model":"m","input":"hi","max_output_tokens":-1}`, "negative"},
		{"/v1/responses", `{"model":"m","input":"hi","tools":[{"type":"web_search"}]}`, "tools[0]"},
		{"/v1/responses", `{"model":"m","input":"hi","tool_choice":{"type":"web_search"}}`, "tool_choice"},
		{"/v1/responses", `{"model":"m","input":"hi","text":{"format":{"type":"xml"}}}`, "text.format"},
		{"/v1/responses", `{"model":"m","input":[{"type":"item_reference","id":"x"}]}`, "set store to false"},
		{"/v1/responses", `{"model":"m","input":"hi","prompt":{"id":"pmpt_1"}}`, "prompt is not supported"},
		{"/v1/responses", `{"model":"m","input":"hi","top_logprobs":1}`, "logprobs"},
		{"/v1/responses", `{"model":"m","input":"hi","include":["message.output_text.logprobs"]}`, "logprobs"},
		{"/v1/responses", `{"model":"m","input":[{"role":"user","content":[{"type":"input_image","image_url":"data:"}]}]}`, "input_image"},
		{"/anthropic/v1/messages", `{`, "not a request"},
		{"/anthropic/v1/messages", `{"max_tokens":1,` + hi + `}`, "model"},
		{"/anthropic/v1/messages", `{"model":"m",` + hi + `}`, "max_tokens"},
		{"/anthropic/v1/messages", `{"model":"m","max_tokens":1}`, "messages"},
		{"/anthropic/v1/messages", `{"model":"m","max_tokens":1,"messages":[{"role":"system","content":"x"}]}`, "role"},
		{"/anthropic/v1/messages", `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"},{"role":"developer","content":"x"}]}`, "role"},
		{"/anthropic/v1/messages", `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"},{"role":"system","content":[{"type":"image"}]}]}`, "for the role system"},
		{"/anthropic/v1/messages", `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[{"type":"image"}]}]}`, "image"},
		{"/anthropic/v1/messages", `{"model":"m","max_tokens":1,"tool_choice":{"type":"some"},` + hi + `}`, "tool_choice"},
		{"/anthropic/v1/messages", `{"model":"m","max_tokens":1,"mcp_servers":[{"type":"url","url":"https://a.example","name":"a"}],` + hi + `}`, "mcp_servers"},
		{"/anthropic/v1/messages", `{"model":"m","max_tokens":1,"container":"c",` + hi + `}`, "container"},
		{"/anthropic/v1/messages", `{"model":"m","max_tokens":1,"tools":[{"type":"bash_20250124","name":"bash"}],` + hi + `}`, "tools.0"},
	} {
		t.Run(c.body, func(t *testing.T) {
			t.Parallel()
			headers := []string{"Anima-Agent", "lucky"}
			if strings.Contains(c.body, `"user`) {
				headers = nil
			}
			switch c.want {
			case "is not a task":
				headers = []string{"Anima-Agent", "lucky", "Anima-Task", "daydream"}
			case "is not UTF-8":
				headers = []string{"Anima-Agent", "lucky", "Idempotency-Key", "k\xff"}
			}
			status, body := post(t, w, c.path, c.body, headers...)
			var got struct {
				Error struct {
					Message string `json:"message"`
					Type    string `json:"type"`
				} `json:"error"`
			}
			if err := json.Unmarshal([]byte(body), &got); err != nil || status != http.StatusBadRequest || got.Error.Type != "invalid_request_error" || !strings.Contains(got.Error.Message, c.want) {
				t.Errorf("got %d %s, want 400 with %q", status, body, c.want)
			}
		})
	}
}

// TestSurfaceUnknownModel checks the error of each protocol for a model that does not
// exist, and that nothing is paid.
func TestSurfaceUnknownModel(t *testing.T) {
	t.Parallel()
	p := serve(t)
	w := withBalances(t, start(t, p, nil))
	for path, want := range map[string]string{
		"/v1/chat/completions":   `"type":"invalid_request_error","param":null,"code":"model_not_found"`,
		"/v1/responses":          `"type":"invalid_request_error","param":null,"code":"model_not_found"`,
		"/anthropic/v1/messages": `"type":"not_found_error"`,
	} {
		for _, stream := range []string{"false", "true"} {
			status, body := post(t, w, path, `{"model":"mm","max_tokens":9,"stream":`+stream+`,"messages":[{"role":"user","content":"hi"}],"input":"hi"}`, "Anima-Agent", "lucky")
			if status != http.StatusNotFound || !strings.Contains(body, want) || !strings.Contains(body, `there is no model \"mm\"`) || !strings.Contains(body, "GET /v1/models") {
				t.Errorf("%s, stream %s: got %d %s, want 404 with %s", path, stream, status, body, want)
			}
		}
	}
	if n := p.calls.Load(); n != 0 {
		t.Errorf("got %d calls of the provider, want 0", n)
	}
	for _, class := range []string{"fast", "cheap", "reasoning"} {
		if status, body := post(t, w, "/v1/chat/completions", `{"model":"`+class+`","messages":[{"role":"user","content":"hi"}]}`, "Anima-Agent", "lucky"); status != http.StatusOK {
			t.Errorf("the class %s: got %d %s, want an answer", class, status, body)
		}
	}
}

// TestSurfaceKey checks that a repeated request with the same key gets the stored answer.
func TestSurfaceKey(t *testing.T) {
	t.Parallel()
	up := serve(t)
	w := withBalances(t, start(t, up, nil))
	for _, body := range []string{`{"model":"m","messages":[{"role":"user","content":"hello"}]}`, `{"model":"m","stream":true,"messages":[{"role":"user","content":"hello"}]}`} {
		if status, got := post(t, w, "/v1/chat/completions", body, "Anima-Agent", "lucky", "Idempotency-Key", "k1"); status != http.StatusOK || !strings.Contains(got, "several pieces.") {
			t.Errorf("got %d %s", status, got)
		}
	}
	if n := up.calls.Load(); n != 1 {
		t.Errorf("got %d calls of the provider, want 1", n)
	}
}

// TestSurfaceKeyTaken checks that another request with a used key is refused: while the
// first one is in progress and after it, also by another replica and on another route, and
// that each replica repeats the answer to the first one.
func TestSurfaceKeyTaken(t *testing.T) {
	t.Parallel()
	arrived, release := make(chan struct{}, 8), make(chan struct{})
	up := answering(t, func(_ int64, out raw, r *http.Request) {
		arrived <- struct{}{}
		select {
		case <-release:
			out.events(chunkText("yes"), chunkStop, chunkDone)
		case <-r.Context().Done():
		}
	})
	server, data, b := apptest.Server(t), t.TempDir(), newBooks()
	env := map[string]string{"OPENAI_BASE_URL": up.url, "OPENAI_API_KEY": "k", "ANIMA_INFERENCE_ROUTER_MODELS": "m=1/4/128000"}
	w := withBalances(t, apptest.Start(t, apptest.Options{Server: server, Data: data, Env: env}, router.Service, b.service()))
	peer := apptest.Start(t, apptest.Options{Server: server, Data: data, Env: env}, router.Service)
	type result struct {
		status int
		body   string
		header http.Header
	}
	ask := func(w *apptest.World, path, text string) result {
		status, header, body := send(t, http.MethodPost, w.HTTP+path, `{"messages":[{"role":"user","content":"`+text+`"}],"input":"hi","model":"m"}`,
			"Authorization", "Bearer "+w.Token, "Anima-Agent", "lucky", "Idempotency-Key", "k")
		return result{status, body, header}
	}
	taken := func(when string, r result) {
		t.Helper()
		if r.status != http.StatusConflict || !strings.Contains(r.body, "key_taken") || r.header.Get("X-Should-Retry") != "false" {
			t.Errorf("%s: got %d %s, X-Should-Retry %q, want 409 that is not repeated", when, r.status, r.body, r.header.Get("X-Should-Retry"))
		}
	}
	const path = "/v1/chat/completions"
	results := make(chan result, 2)
	go func() { results <- ask(w, path, "one") }()
	<-arrived
	taken("in progress", ask(w, path, "two"))
	others := make(chan result, 1)
	go func() { others <- ask(peer, path, "two") }() // waits for the attempt of the first
	close(release)
	if r := <-results; r.status != http.StatusOK || !strings.Contains(r.body, "yes") {
		t.Errorf("the first request: got %d %s", r.status, r.body)
	}
	taken("at another replica", <-others)
	taken("stored", ask(w, path, "two"))
	taken("another route", ask(w, "/v1/responses", "one"))
	for _, replica := range []*apptest.World{w, peer, apptest.Start(t, apptest.Options{Server: server, Data: data, Env: env}, router.Service)} {
		if r := ask(replica, path, "one"); r.status != http.StatusOK {
			t.Errorf("the repeated request: got %d %s, want the stored answer", r.status, r.body)
		}
	}
	if n := up.calls.Load(); n != 1 {
		t.Errorf("got %d calls of the provider, want 1", n)
	}
}

// TestSurfaceUnsettled checks that a caller gets an answer whose settlement failed, and
// that it is settled later.
func TestSurfaceUnsettled(t *testing.T) {
	t.Parallel()
	s := answering(t, func(_ int64, out raw, _ *http.Request) { out.events(chunkText("the answer"), chunkStop, chunkDone) })
	b := newBooks()
	b.refuseSettlements()
	w := withBalances(t, paidBy(t, b, s.url, nil))
	for _, stream := range []string{"false", "true"} {
		status, body := post(t, w, "/v1/chat/completions", `{"model":"m","stream":`+stream+`,"messages":[{"role":"user","content":"hi"}]}`, "Anima-Agent", "lucky")
		if status != http.StatusOK || !strings.Contains(body, "the answer") || !strings.Contains(body, `"finish_reason":"stop"`) {
			t.Errorf("stream %s: got %d %s, want the answer", stream, status, body)
		}
	}
	settled := make(chan string, 8)
	b.refusing(func(m api.Message) error {
		if s, ok := m.(api.Settle); ok {
			settled <- s.ID
		}
		return nil
	})
	ids := map[string]bool{}
	for len(ids) < 2 {
		select {
		case id := <-settled:
			ids[id] = true
		case <-time.After(30 * time.Second):
			t.Fatalf("settled are %v, want both calls", ids)
		}
	}
	if n := s.calls.Load(); n != 2 {
		t.Errorf("%d calls of the provider, want 2", n)
	}
}

// TestSurfaceUnsettledHoldExpires checks that an answer is settled later although its hold has
// expired before treasury could be reached again.
func TestSurfaceUnsettledHoldExpires(t *testing.T) {
	t.Parallel()
	s := answering(t, func(_ int64, out raw, _ *http.Request) { out.events(chunkText("the answer"), chunkStop, chunkDone) })
	b := newBooks()
	b.refuseSettlements()
	w := withBalances(t, paidBy(t, b, s.url, nil))
	status, body := post(t, w, "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"hi"}]}`, "Anima-Agent", "lucky")
	if status != http.StatusOK || !strings.Contains(body, "the answer") {
		t.Fatalf("got %d %s, want the answer", status, body)
	}
	settled := make(chan api.Settle, 8)
	first := true
	b.mu.Lock()
	for _, h := range b.holds {
		h.Status = api.HoldExpired
	}
	b.refuse = func(m api.Message) error {
		switch m := m.(type) {
		case api.Hold:
			if first { // the pass after it is successful
				first = false
				return api.Errorf(api.Unavailable, "not now")
			}
		case api.Settle:
			if strings.Contains(m.ID, "/late") {
				settled <- m
			}
		}
		return nil
	}
	b.mu.Unlock()
	select {
	case m := <-settled:
		if m.Amount <= 0 {
			t.Errorf("settled with %s, want the cost of the call", m.Amount)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the call was not settled")
	}
}

// TestSurfaceSpentKey checks that the official clients do not repeat a request whose key has
// no attempts left.
func TestSurfaceSpentKey(t *testing.T) {
	t.Parallel()
	s := answering(t, func(_ int64, out raw, _ *http.Request) { out.w.WriteHeader(http.StatusInternalServerError) })
	w := withBalances(t, paidBy(t, newBooks(), s.url, nil))
	for range 2 {
		status, header, body := send(t, http.MethodPost, w.HTTP+"/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"hi"}]}`,
			"Authorization", "Bearer "+w.Token, "Anima-Agent", "lucky", "Idempotency-Key", "k")
		if status != http.StatusServiceUnavailable || header.Get("X-Should-Retry") != "false" || !strings.Contains(body, "given up") {
			t.Errorf("got %d %s, X-Should-Retry %q, want 503 that is not repeated", status, body, header.Get("X-Should-Retry"))
		}
	}
	if n := s.calls.Load(); n != 4 {
		t.Errorf("%d calls of the provider, want 4", n)
	}
}

// post sends a request of the operator with further headers.
func post(t *testing.T, w *apptest.World, path, body string, headers ...string) (status int, answer string) {
	t.Helper()
	status, _, answer = send(t, http.MethodPost, w.HTTP+path, body, append([]string{"Authorization", "Bearer " + w.Token}, headers...)...)
	return status, answer
}

// TestHTTPCallsHaveNoSession checks that calls over HTTP are not payments of one session,
// whose limit they would reach together and for ever.
func TestHTTPCallsHaveNoSession(t *testing.T) {
	t.Parallel()
	b := newBooks()
	sessions := make(chan string, 2)
	b.arrive = func(h api.Hold) { sessions <- h.Session }
	w := withBalances(t, paidBy(t, b, answersAtOnce(t).url, nil))
	for range cap(sessions) {
		if status, body := post(t, w, "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"hello"}]}`, "Anima-Agent", "lucky"); status != http.StatusOK {
			t.Fatalf("got status %d: %s", status, body)
		}
		if got := <-sessions; got != "" {
			t.Errorf("the hold is of the session %q, want none", got)
		}
	}
}

// send makes a request with pairs of names and values of headers.
func send(t *testing.T, method, url, body string, headers ...string) (status int, header http.Header, answer string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, res.Header, string(data)
}
