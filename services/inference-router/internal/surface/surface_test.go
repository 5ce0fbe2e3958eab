package surface_test

import (
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/packages/ssestream"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
	"github.com/anima-run/anima/services/inference-router/internal/surface"
)

// TestResponsesRead checks the conversation and the options of a request in the protocol
// of responses.
func TestResponsesRead(t *testing.T) {
	t.Parallel()
	got, err := surface.Responses{}.Read([]byte(`{"model":"m","instructions":"be brief","max_output_tokens":7,"parallel_tool_calls":false,"user":"lucky",
		"tools":[{"type":"function","name":"look","description":"d","parameters":{"type":"object"},"strict":true}],
		"tool_choice":{"type":"function","name":"look"},
		"text":{"format":{"type":"json_schema","name":"n","schema":{"type":"object"},"strict":true}},
		"input":[
			{"role":"developer","content":"rule"},
			{"type":"message","role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_text","text":"b"}]},
			{"type":"reasoning","id":"rs_1","summary":[]},
			{"type":"message","role":"assistant","content":[{"type":"output_text","text":"I look."}]},
			{"type":"function_call","call_id":"c1","name":"look","arguments":"{}"},
			{"type":"function_call","call_id":"c2","name":"look","arguments":"{\"at\":1}"},
			{"type":"function_call_output","call_id":"c1","output":"one"},
			{"type":"function_call_output","call_id":"c2","output":[{"type":"input_text","text":"two"}]},
			{"type":"function_call","call_id":"c3","name":"look","arguments":"{}"},
			{"type":"function_call_output","call_id":"c3","output":[{"type":"input_image","image_url":"data:image/gif;base64,R0lG"},{"type":"input_text","text":"three"},{"type":"input_image","image_url":"https://host/a","detail":"low"}]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	want := surface.Request{
		Model: "m", MaxTokens: 7, User: "lucky",
		Tools: []api.Tool{{Name: "look", Description: "d", Schema: []byte(`{"properties":{},"type":"object"}`), Strict: true}},
		Options: provider.Options{
			SingleCall: true, ToolChoice: provider.OneTool + "look",
			ResponseFormat: []byte(`{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"object"},"strict":true}}`),
		},
		Messages: []api.ChatMessage{
			{Role: provider.System, Content: "be brief"},
			{Role: provider.System, Content: "rule"},
			{Role: provider.User, Content: "a\nb"},
			{Role: provider.Assistant, Content: "I look.", ToolCalls: []api.ToolCall{{ID: "c1", Name: "look", Arguments: "{}"}, {ID: "c2", Name: "look", Arguments: `{"at":1}`}}},
			{Role: provider.ToolRole, Content: "one", ToolCallID: "c1"},
			{Role: provider.ToolRole, Content: "two", ToolCallID: "c2"},
			{Role: provider.Assistant, ToolCalls: []api.ToolCall{{ID: "c3", Name: "look", Arguments: "{}"}}},
			{Role: provider.ToolRole, Content: "three", ToolCallID: "c3", Images: []api.Image{{MediaType: "image/gif", Data: []byte("GIF")}, {At: 5, URL: "https://host/a", Detail: "low"}}},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestMessagesRead checks the conversation of a request in Anthropic's protocol, with messages
// of the system within it, as Claude Code sends them.
func TestMessagesRead(t *testing.T) {
	t.Parallel()
	got, err := surface.Anthropic{}.Read([]byte(`{"model":"m","max_tokens":7,"system":[{"type":"text","text":"be brief","cache_control":{"type":"ephemeral"}}],
		"thinking":{"type":"adaptive"},"context_management":{"edits":[]},"metadata":{"user_id":"lucky"},
		"messages":[
			{"role":"user","content":[{"type":"text","text":"hi"}]},
			{"role":"system","content":[{"type":"text","text":"skills","cache_control":{"type":"ephemeral"}}]},
			{"role":"assistant","content":[{"type":"thinking","thinking":"so","signature":""},{"type":"tool_use","id":"c1","name":"look","input":{}}]},
			{"role":"user","content":[{"type":"tool_result","tool_use_id":"c1","content":"one"}]},
			{"role":"assistant","content":[{"type":"tool_use","id":"c2","name":"look","input":{}},{"type":"tool_use","id":"c3","name":"look","input":{}},{"type":"tool_use","id":"c4","name":"look","input":{}}]},
			{"role":"user","content":[
				{"type":"tool_result","tool_use_id":"c2","content":[{"type":"text","text":"a"},{"type":"image","source":{"type":"base64","media_type":"image/gif","data":"R0lG"}},{"type":"text","text":"b"}]},
				{"type":"tool_result","tool_use_id":"c3","is_error":true,"content":[{"type":"image","source":{"type":"url","url":"https://host/a"}}]},
				{"type":"tool_result","tool_use_id":"c4","content":[{"type":"text","text":"a"},{"type":"text","text":""},{"type":"text","text":"b"}]}]},
			{"role":"system","content":"9 tokens left"},
			{"role":"system","content":[]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	want := []api.ChatMessage{
		{Role: provider.System, Content: "be brief"},
		{Role: provider.User, Content: "hi"},
		{Role: provider.User, Content: "skills"},
		{Role: provider.Assistant, ToolCalls: []api.ToolCall{{ID: "c1", Name: "look", Arguments: "{}"}}},
		{Role: provider.ToolRole, Content: "one", ToolCallID: "c1"},
		{Role: provider.Assistant, ToolCalls: []api.ToolCall{{ID: "c2", Name: "look", Arguments: "{}"}, {ID: "c3", Name: "look", Arguments: "{}"}, {ID: "c4", Name: "look", Arguments: "{}"}}},
		{Role: provider.ToolRole, Content: "a\nb", ToolCallID: "c2", Images: []api.Image{{At: 1, MediaType: "image/gif", Data: []byte("GIF")}}},
		{Role: provider.ToolRole, Content: "[the call failed]", ToolCallID: "c3", Images: []api.Image{{At: 17, URL: "https://host/a"}}},
		{Role: provider.ToolRole, Content: "a\n\nb", ToolCallID: "c4"},
		{Role: provider.User, Content: "9 tokens left"},
	}
	if diff := cmp.Diff(want, got.Messages); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestResponsesStream checks the events of a response with a refusal, of one that was cut,
// and of one without text.
func TestResponsesStream(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		completion api.Completion
		want       []string // parts of the stream, in this order
		not        string
	}{
		"refusal": {api.Completion{Text: "no", Finish: api.FinishRefusal}, []string{`"delta":"no"`, `response.output_text.done`, `event: response.completed`, `"text":"no"`}, "event: response.refusal"},
		"cut":     {api.Completion{Text: "no", Finish: api.FinishLength}, []string{`"delta":"no"`, `event: response.incomplete`, `"max_output_tokens"`}, "response.completed"},
		"reasoning": {api.Completion{Text: "yes", Reasoning: "so", Finish: api.FinishStop}, []string{
			`response.reasoning_summary_part.added`, `"part":{"type":"summary_text","text":""}`, `response.reasoning_summary_text.delta`, `"delta":"so"`,
			`response.reasoning_summary_text.done`, `response.reasoning_summary_part.done`, `"part":{"type":"summary_text","text":"so"}`, "response.output_item.done",
		}, "response.failed"},
		"empty": {api.Completion{Finish: api.FinishStop}, []string{"response.created", "response.in_progress", "response.output_item.added", "response.content_part.added", "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed"}, "delta"},
		"call":  {api.Completion{Finish: api.FinishToolCalls, ToolCalls: []api.ToolCall{{ID: "c", Name: "n", Arguments: `{"<":1}`}}}, []string{`"call_id":"c"`, "response.function_call_arguments.delta", "response.function_call_arguments.done", `"arguments":"{\"<\":1}"`, "response.output_item.done", "response.completed"}, "output_text"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := httptest.NewRecorder()
			s := surface.Responses{}.Stream(w, surface.Head{ID: "1", Model: "m"})
			if c.completion.Text != "" {
				if err := s.Text(c.completion.Text); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.End(c.completion); err != nil {
				t.Fatal(err)
			}
			rest := w.Body.String()
			for _, part := range c.want {
				_, after, found := strings.Cut(rest, part)
				if !found {
					t.Fatalf("%s is missing or out of order in\n%s", part, w.Body)
				}
				rest = after
			}
			if strings.Contains(w.Body.String(), c.not) {
				t.Errorf("%s must not be in\n%s", c.not, w.Body)
			}
		})
	}
}

// TestAnswers checks the usage, the reasoning and the calls of the same answer in each
// protocol, plain and streamed, and that a stream which fails has an error and no end.
func TestAnswers(t *testing.T) {
	t.Parallel()
	answer := api.Completion{
		Model: "m", Text: "yes", Reasoning: "let me see", Finish: api.FinishToolCalls, ToolCalls: []api.ToolCall{{ID: "c", Name: "look", Arguments: "{}"}},
		InputTokens: 100, CachedTokens: 60, CacheWrite: 30, OutputTokens: 20, ReasonTokens: 5,
	}
	for name, c := range map[string]struct {
		dialect     surface.Dialect
		both        []string // in the answer and in the stream
		fault, ends string   // of a stream
	}{
		"openai": {surface.OpenAI{}, []string{
			`"prompt_tokens":100,"completion_tokens":20,"total_tokens":120,"prompt_tokens_details":{"cached_tokens":60,"cache_write_tokens":30},"completion_tokens_details":{"reasoning_tokens":5}`,
			`"reasoning_content":"let me see"`, `"name":"look"`, `"tool_calls"`, `"model":"m"`,
		}, `data: {"error":{`, "[DONE]"},
		"responses": {surface.Responses{}, []string{
			`"input_tokens":100,"input_tokens_details":{"cached_tokens":60,"cache_write_tokens":30},"output_tokens":20,"output_tokens_details":{"reasoning_tokens":5},"total_tokens":120`,
			`"summary":[{"type":"summary_text","text":"let me see"}]`, `"name":"look"`, `"model":"m"`,
		}, "event: response.failed", "response.completed"},
		"anthropic": {surface.Anthropic{}, []string{
			`"input_tokens":10,"cache_creation_input_tokens":30,"cache_read_input_tokens":60,"output_tokens":20,"output_tokens_details":{"thinking_tokens":5}`,
			`"thinking":"let me see"`, `"name":"look"`, `"tool_use"`,
		}, "event: error", "message_stop"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			plain, streamed, failed := httptest.NewRecorder(), httptest.NewRecorder(), httptest.NewRecorder()
			c.dialect.Answer(plain, surface.Head{ID: "1", Model: "a class"}, answer)
			s := c.dialect.Stream(streamed, surface.Head{ID: "1", Model: "a class", Usage: true})
			if err := s.Text("yes"); err != nil {
				t.Fatal(err)
			}
			if err := s.End(answer); err != nil {
				t.Fatal(err)
			}
			for kind, got := range map[string]string{"plain": plain.Body.String(), "stream": streamed.Body.String()} {
				for _, part := range c.both {
					if !strings.Contains(got, part) {
						t.Errorf("%s: %s is missing in\n%s", kind, part, got)
					}
				}
			}
			if n := strings.Count(streamed.Body.String(), c.ends); n == 0 {
				t.Errorf("the stream has no %s:\n%s", c.ends, streamed.Body)
			}
			s = c.dialect.Stream(failed, surface.Head{ID: "1", Model: "m"})
			if err := s.Text("half"); err != nil {
				t.Fatal(err)
			}
			if err := s.Fail(502, api.Errorf(api.Unavailable, "it broke")); err != nil {
				t.Fatal(err)
			}
			if got := failed.Body.String(); !strings.Contains(got, c.fault) || !strings.Contains(got, "it broke") || strings.Contains(got, c.ends) {
				t.Errorf("the stream that failed: got\n%s\nwant %s and no %s", got, c.fault, c.ends)
			}
		})
	}
}

// TestParallelCalls checks that the official client for Go reports each call of a stream: it
// looks at the first call of a chunk only.
func TestParallelCalls(t *testing.T) {
	t.Parallel()
	answer := api.Completion{Model: "m", Finish: api.FinishToolCalls, ToolCalls: []api.ToolCall{{ID: "a", Name: "look", Arguments: `{"at":1}`}, {ID: "b", Name: "look", Arguments: `{"at":2}`}}}
	for _, text := range []string{"", "I look twice."} {
		answer.Text = text
		w := httptest.NewRecorder()
		s := surface.OpenAI{}.Stream(w, surface.Head{ID: "1", Model: "m"})
		if text != "" {
			if err := s.Text(text); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.End(answer); err != nil {
			t.Fatal(err)
		}
		var all openai.ChatCompletionAccumulator
		var got []string
		for chunks := ssestream.NewStream[openai.ChatCompletionChunk](ssestream.NewDecoder(w.Result()), nil); chunks.Next(); {
			if !all.AddChunk(chunks.Current()) {
				t.Fatal("the chunks do not fit together")
			}
			if c, ok := all.JustFinishedToolCall(); ok {
				got = append(got, c.ID+c.Arguments)
			}
		}
		if diff := cmp.Diff([]string{`a{"at":1}`, `b{"at":2}`}, got); diff != "" {
			t.Errorf("calls after the text %q (-want +got):\n%s\nin\n%s", text, diff, w.Body)
		}
	}
}

// TestNoArguments checks that a call without arguments has those of an empty object in each
// protocol, plain and streamed.
func TestNoArguments(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		dialect       surface.Dialect
		plain, stream string
	}{
		"openai":    {surface.OpenAI{}, `"arguments":"{}"`, `"arguments":"{}"`},
		"responses": {surface.Responses{}, `"arguments":"{}"`, `"delta":"{}"`},
		"anthropic": {surface.Anthropic{}, `"input":{}`, `"partial_json":"{}"`},
	} {
		for _, arguments := range []string{"", " \n"} {
			answer := api.Completion{Model: "m", Finish: api.FinishToolCalls, ToolCalls: []api.ToolCall{{ID: "c", Name: "look", Arguments: arguments}}}
			plain, streamed := httptest.NewRecorder(), httptest.NewRecorder()
			c.dialect.Answer(plain, surface.Head{ID: "1"}, answer)
			if err := c.dialect.Stream(streamed, surface.Head{ID: "1"}).End(answer); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(plain.Body.String(), c.plain) || !strings.Contains(streamed.Body.String(), c.stream) {
				t.Errorf("%s, arguments %q: got\n%s\nand\n%s\nwant %s and %s", name, arguments, plain.Body, streamed.Body, c.plain, c.stream)
			}
		}
	}
}

// TestCutAnswers checks that an answer which the router has cut has the reason of one at the
// output limit in each protocol, plain and streamed.
func TestCutAnswers(t *testing.T) {
	t.Parallel()
	for want, d := range map[string]surface.Dialect{
		`"finish_reason":"length"`: surface.OpenAI{}, `"incomplete_details":{"reason":"max_output_tokens"}`: surface.Responses{}, `"stop_reason":"max_tokens"`: surface.Anthropic{},
	} {
		for _, finish := range []string{api.FinishTimeout, api.FinishRepetition} {
			answer := api.Completion{Model: "m", Text: "on and on", Finish: finish}
			plain, streamed := httptest.NewRecorder(), httptest.NewRecorder()
			d.Answer(plain, surface.Head{ID: "1"}, answer)
			if err := d.Stream(streamed, surface.Head{ID: "1"}).End(answer); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(plain.Body.String(), want) || !strings.Contains(streamed.Body.String(), want) {
				t.Errorf("%s: got\n%s\nand\n%s\nwant %s", finish, plain.Body, streamed.Body, want)
			}
		}
	}
}

// TestStopSequence checks that Anthropic's protocol names the sequence that ended an
// answer.
func TestStopSequence(t *testing.T) {
	t.Parallel()
	answer := api.Completion{Model: "m", Text: "yes", Finish: api.FinishStop, StopSequence: "X"}
	plain, streamed := httptest.NewRecorder(), httptest.NewRecorder()
	surface.Anthropic{}.Answer(plain, surface.Head{ID: "1"}, answer)
	if err := (surface.Anthropic{}).Stream(streamed, surface.Head{ID: "1"}).End(answer); err != nil {
		t.Fatal(err)
	}
	for kind, got := range map[string]string{"plain": plain.Body.String(), "stream": streamed.Body.String()} {
		if !strings.Contains(got, `"stop_reason":"stop_sequence","stop_sequence":"X"`) {
			t.Errorf("%s: the sequence is missing in\n%s", kind, got)
		}
	}
}

// TestReadErrors checks the texts of errors for callers, which name fields and positions
// and no types of the program.
func TestReadErrors(t *testing.T) {
	t.Parallel()
	const advice = "; correct the request; docs/http.md has the fields that are supported"
	for body, want := range map[string]string{
		`[]`:                                   "the body is not a request of this route: the value cannot be of type array",
		`{"model":1,"input":"a"}`:              "the body is not a request of this route: model cannot be of type number",
		``:                                     "the body is not a request of this route: it is empty",
		`{"model":"m"`:                         "the body is not a request of this route: it ends within a value",
		`{"model":"m","input":"a"} {}`:         "the body is not a request of this route: it has more than one value",
		"{\"model\":\"m\",\"input\":\"\xff\"}": "the body is not UTF-8",
		`{"model":"m","input":[{"type":"file"}]}`:                                      `input[0]: an item of type "file" is not supported`,
		`{"model":"m","input":[{"role":"user","content":["a"]}]}`:                      "input[0]: the content is neither a text nor a list of parts",
		`{"model":"m","input":[{"role":"user","content":[{"type":"text","text":1}]}]}`: "input[0]: the content is neither a text nor a list of parts",
		`{"model":"m","input":[{"role":"user","content":1}]}`:                          "input[0]: the content is neither a text nor a list of parts",
	} {
		_, err := surface.Responses{}.Read([]byte(body))
		if got := api.Wire(err); got == nil || got.Message+"; "+got.Next != want+advice {
			t.Errorf("%s: got %v, want %s", body, got, want)
		}
	}
}

// TestManyValues checks that a large body of small values is refused, because it would take
// many times its size in memory, and that a long text is not.
func TestManyValues(t *testing.T) {
	t.Parallel()
	for _, d := range []surface.Dialect{surface.OpenAI{}, surface.Responses{}, surface.Anthropic{}} {
		list := "[" + strings.Repeat("{},", 200_000) + "{}]"
		_, err := d.Read([]byte(`{"model":"m","max_tokens":1,"messages":` + list + `,"input":` + list + `}`))
		if api.CodeOf(err) != api.Invalid || !strings.Contains(err.Error(), "more than 100000 values") {
			t.Errorf("%T: got %v, want a refusal of the values", d, err)
		}
		text := strings.Repeat(`{\"a\":[1,2]},\\`, 50_000)
		hi := `[{"role":"user","content":"` + text + `"},{"role":"user","content":"{,"}]`
		got, err := d.Read([]byte(`{"model":"m","max_tokens":1,"messages":` + hi + `,"input":` + hi + `}`))
		if err != nil || len(got.Messages) != 2 || len(got.Messages[0].Content) != 50_000*len(`{"a":[1,2]},\`) {
			t.Errorf("%T: got %d messages, %v; want the text", d, len(got.Messages), err)
		}
	}
}

// TestOptionsRead checks the settings of a call in each protocol.
func TestOptionsRead(t *testing.T) {
	t.Parallel()
	const hi = `"model":"m","max_tokens":4096,"messages":[{"role":"user","content":"hi"}]`
	half, seven := 0.5, int64(7)
	strict := []api.Tool{{Name: "n", Strict: true}}
	for name, c := range map[string]struct {
		dialect surface.Dialect
		body    string
		options provider.Options
		tools   []api.Tool
	}{
		"chat completions": {
			surface.OpenAI{},
			hi + `,"temperature":0.5,"top_p":0.5,"frequency_penalty":0.5,"presence_penalty":0.5,"seed":7,"stop":"a","parallel_tool_calls":false,
				"tools":[{"type":"function","function":{"name":"n","strict":true}}],"tool_choice":"required","logprobs":false,"top_logprobs":0,"logit_bias":{},"functions":null,"modalities":["text"]`,
			provider.Options{
				Temperature: &half, TopP: &half, FrequencyPenalty: &half, PresencePenalty: &half, Seed: &seven, Stop: []string{"a"}, SingleCall: true, ToolChoice: provider.ToolsRequired,
			},
			strict,
		},
		"responses": {
			surface.Responses{},
			`"model":"m","input":"hi","temperature":0.5,"top_p":0.5,"reasoning":{"effort":"low"},"include":["reasoning.encrypted_content"],"prompt":null,
				"tools":[{"type":"function","name":"n","strict":true}]`,
			provider.Options{Temperature: &half, TopP: &half, Effort: "low"},
			strict,
		},
		"messages": {
			surface.Anthropic{},
			hi + `,"temperature":0.5,"top_p":0.5,"top_k":7,"stop_sequences":["a"],"tools":[{"name":"n","strict":true}],"tool_choice":{"type":"tool","name":"n","disable_parallel_tool_use":true}`,
			provider.Options{Temperature: &half, TopP: &half, TopK: &seven, Stop: []string{"a"}, SingleCall: true, ToolChoice: provider.OneTool + "n"},
			strict,
		},
		"little thinking":       {surface.Anthropic{}, hi + `,"thinking":{"type":"enabled","budget_tokens":1024}`, provider.Options{Effort: "low"}, nil},
		"more thinking":         {surface.Anthropic{}, hi + `,"thinking":{"type":"enabled","budget_tokens":2048}`, provider.Options{Effort: "medium"}, nil},
		"much thinking":         {surface.Anthropic{}, hi + `,"thinking":{"type":"enabled","budget_tokens":4096}`, provider.Options{Effort: "high"}, nil},
		"no thinking":           {surface.Anthropic{}, hi + `,"thinking":{"type":"disabled"}`, provider.Options{}, nil},
		"adaptive thinking":     {surface.Anthropic{}, hi + `,"thinking":{"type":"adaptive"}`, provider.Options{}, nil},
		"thinking with effort":  {surface.Anthropic{}, hi + `,"thinking":{"type":"enabled","budget_tokens":4096},"output_config":{"effort":"low"}`, provider.Options{Effort: "low"}, nil},
		"fields without effect": {surface.OpenAI{}, hi + `,"store":true,"metadata":{"a":"b"},"service_tier":"auto","prediction":{"type":"content","content":"x"},"new_field":1`, provider.Options{}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := c.dialect.Read([]byte("{" + c.body + "}"))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.options, got.Options); diff != "" {
				t.Errorf("options (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.tools, got.Tools); diff != "" {
				t.Errorf("tools (-want +got):\n%s", diff)
			}
		})
	}
}

// TestToolsWithoutArguments checks that the schema of a tool has properties in each protocol:
// OpenAI refuses one without them.
func TestToolsWithoutArguments(t *testing.T) {
	t.Parallel()
	for schema, want := range map[string]string{
		`{"type":"object"}`:                  `{"properties":{},"type":"object"}`,
		`{ "type": "object", "required":[]}`: `{"properties":{}, "type": "object", "required":[]}`,
		`{"type":"object","properties":{}}`:  `{"type":"object","properties":{}}`,
		`{}`:                                 `{}`,
	} {
		for _, c := range []struct {
			dialect surface.Dialect
			body    string
		}{
			{surface.OpenAI{}, `"messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function","function":{"name":"n","parameters":` + schema + `}}]`},
			{surface.Responses{}, `"input":"hi","tools":[{"type":"function","name":"n","parameters":` + schema + `}]`},
			{surface.Anthropic{}, `"max_tokens":1,"messages":[{"role":"user","content":"hi"}],"tools":[{"name":"n","input_schema":` + schema + `}]`},
		} {
			got, err := c.dialect.Read([]byte(`{"model":"m",` + c.body + `}`))
			if err != nil {
				t.Fatal(err)
			}
			if sent := string(got.Tools[0].Schema); sent != want {
				t.Errorf("%T: %s became %s, want %s", c.dialect, schema, sent, want)
			}
		}
	}
}

// TestTexts checks that texts are read as encoding/json reads them.
func TestTexts(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{`"a"`, `"\n\u00e9\ud83d\ude00\\\""`, `"\ud800 half"`, `"é\t"`} {
		var want string
		if err := json.Unmarshal([]byte(raw), &want); err != nil {
			t.Fatal(err)
		}
		for name, read := range map[string]func() (surface.Request, error){
			"chat completions": func() (surface.Request, error) {
				return surface.OpenAI{}.Read([]byte(`{"model":"m","messages":[{"role":"assistant","content":` + raw + `}],"stop":` + raw + `}`))
			},
			"responses": func() (surface.Request, error) {
				return surface.Responses{}.Read([]byte(`{"model":"m","input":[{"role":"assistant","content":` + raw + `}]}`))
			},
			"chat completions, parts": func() (surface.Request, error) {
				return surface.OpenAI{}.Read([]byte(`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":` + raw + `}]}]}`))
			},
			"messages": func() (surface.Request, error) {
				return surface.Anthropic{}.Read([]byte(`{"model":"m","max_tokens":1,"messages":[{"role":"assistant","content":` + raw + `},{"role":"user","content":"hi"}]}`))
			},
			"messages, blocks": func() (surface.Request, error) {
				return surface.Anthropic{}.Read([]byte(`{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[{"text":` + raw + `,"cache_control":{"type":"ephemeral"},"type":"text"}]}]}`))
			},
		} {
			got, err := read()
			switch {
			case err != nil:
				t.Errorf("%s: %s: %v", name, raw, err)
			case got.Messages[0].Content != want:
				t.Errorf("%s: %s: got %q, want %q", name, raw, got.Messages[0].Content, want)
			case name == "chat completions" && (len(got.Options.Stop) != 1 || got.Options.Stop[0] != want):
				t.Errorf("%s: stop %s: got %q, want %q", name, raw, got.Options.Stop, want)
			}
		}
	}
}

// BenchmarkRead reads a conversation of 10 kB in each protocol.
func BenchmarkRead(b *testing.B) {
	text := strings.Repeat("a word ", 10<<10/7)
	for name, c := range map[string]struct {
		dialect surface.Dialect
		body    string
	}{
		"chat completions": {surface.OpenAI{}, `{"model":"m","messages":[{"role":"user","content":"` + text + `"}]}`},
		"responses":        {surface.Responses{}, `{"model":"m","input":"` + text + `"}`},
		"messages":         {surface.Anthropic{}, `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"` + text + `"}]}`},
		"messages, blocks": {surface.Anthropic{}, `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[{"type":"text","text":"` + text + `"}]}]}`},
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(c.body)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.dialect.Read([]byte(c.body)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// FuzzRead checks that no body makes a dialect panic, and that what it accepts has a
// model and a conversation.
func FuzzRead(f *testing.F) {
	for _, seed := range []string{
		`{"model":"m","input":"hi","tools":[{"type":"function","name":"n"}],"tool_choice":{"type":"function","name":"n"}}`,
		`{"model":"m","input":[{"type":"function_call","call_id":"c"},{"type":"function_call_output","call_id":"c","output":""}],"text":{"format":{"type":"json_object"}}}`,
		`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}],"stop":["a"],"tool_choice":"auto"}`,
		`{"model":"m","max_tokens":1,"system":[{"type":"text","text":"s"}],"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":"x"}]}]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, d := range []surface.Dialect{surface.OpenAI{}, surface.Responses{}, surface.Anthropic{}} {
			r, err := d.Read(body)
			if err == nil && r.Model == "" {
				t.Errorf("%T accepts a request without a model: %s", d, body)
			}
			if err != nil && api.CodeOf(err) != api.Invalid {
				t.Errorf("%T: got %v, want an Invalid error", d, err)
			}
		}
	})
}
