package openaitest_test

import (
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	sdk "github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
	"github.com/anima-run/anima/services/inference-router/internal/provider/openai"
	"github.com/anima-run/anima/services/inference-router/internal/provider/simulated"
	"github.com/anima-run/anima/services/inference-router/openaitest"
)

func now() time.Time { return time.Unix(1_800_000_000, 0) }

// serve serves the default script and returns its server.
func serve(t *testing.T) *httptest.Server {
	t.Helper()
	script, err := simulated.Default()
	if err != nil {
		t.Fatal(err)
	}
	h, err := openaitest.Simulated(script, now, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

// client returns OpenAI's official client, without the environment.
func client(s *httptest.Server) sdk.ChatCompletionService {
	return sdk.NewChatCompletionService(option.WithBaseURL(s.URL+"/v1"), option.WithMaxRetries(0), option.WithHTTPClient(s.Client()))
}

func ask(text string) sdk.ChatCompletionNewParams {
	return sdk.ChatCompletionNewParams{
		Model:    "anima-sim-1",
		Messages: []sdk.ChatCompletionMessageParamUnion{sdk.UserMessage(text)},
		Tools: []sdk.ChatCompletionToolUnionParam{
			sdk.ChatCompletionFunctionTool(sdk.FunctionDefinitionParam{Name: "write_file"}),
			sdk.ChatCompletionFunctionTool(sdk.FunctionDefinitionParam{Name: "exec"}),
		},
	}
}

func TestOfficialClientPlain(t *testing.T) {
	t.Parallel()
	c := client(serve(t))
	got, err := c.New(t.Context(), ask("please write a report"))
	if err != nil {
		t.Fatal(err)
	}
	choice := got.Choices[0]
	if choice.FinishReason != "tool_calls" || len(choice.Message.ToolCalls) != 1 || got.Created != now().Unix() {
		t.Fatalf("got %s", got.RawJSON())
	}
	call := choice.Message.ToolCalls[0]
	var arguments struct {
		Path    string `json:"path"`
		Content string `json:"content"`
	}
	if err := json.Unmarshal([]byte(call.Function.Arguments), &arguments); err != nil {
		t.Fatal(err)
	}
	if call.Function.Name != "write_file" || arguments.Path != "notes.txt" || !strings.Contains(arguments.Content, "please write a report") {
		t.Errorf("got %s %s", call.Function.Name, call.Function.Arguments)
	}
	if u := got.Usage; u.PromptTokens == 0 || u.CompletionTokens == 0 || u.TotalTokens != u.PromptTokens+u.CompletionTokens {
		t.Errorf("usage: got %s", u.RawJSON())
	}
}

// TestOfficialClientStream checks that a stream has the content of the whole answer, in
// pieces.
func TestOfficialClientStream(t *testing.T) {
	t.Parallel()
	c := client(serve(t))
	whole, err := c.New(t.Context(), ask("please write a report"))
	if err != nil {
		t.Fatal(err)
	}
	params := ask("please write a report")
	params.StreamOptions.IncludeUsage = sdk.Bool(true)
	stream := c.NewStreaming(t.Context(), params)
	var acc sdk.ChatCompletionAccumulator
	chunks := 0
	for stream.Next() {
		acc.AddChunk(stream.Current())
		chunks++
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	if got, want := acc.Choices[0].Message.Content, whole.Choices[0].Message.Content; got != want {
		t.Errorf("text: got %q, want %q", got, want)
	}
	got, want := acc.Choices[0].Message.ToolCalls[0], whole.Choices[0].Message.ToolCalls[0]
	if got.ID != want.ID || got.Function.Name != want.Function.Name || got.Function.Arguments != want.Function.Arguments {
		t.Errorf("call: got %+v, want %+v", got, want)
	}
	if acc.Usage.TotalTokens != whole.Usage.TotalTokens || acc.ID != whole.ID {
		t.Errorf("usage and id: got %d %s, want %d %s", acc.Usage.TotalTokens, acc.ID, whole.Usage.TotalTokens, whole.ID)
	}
	if chunks < 8 {
		t.Errorf("got %d chunks, want the answer in pieces", chunks)
	}
}

// TestSameAnswers checks that the adapter of the protocol gets the answers and errors that
// the provider gives without HTTP.
func TestSameAnswers(t *testing.T) {
	t.Parallel()
	s := serve(t)
	over, err := openai.New(openai.Config{Name: simulated.Name, BaseURL: s.URL + "/v1", HTTP: s.Client(), Now: now})
	if err != nil {
		t.Fatal(err)
	}
	script, err := simulated.Default()
	if err != nil {
		t.Fatal(err)
	}
	direct, err := simulated.New(script)
	if err != nil {
		t.Fatal(err)
	}
	tools := []provider.Tool{{Name: "write_file", Description: "Writes a \"file\".", Schema: json.RawMessage(`{"type": "object"}`)}, {Name: "exec"}}
	for _, req := range []provider.Request{
		{Messages: []provider.Message{{Role: provider.User, Content: "hello <you> & \u2028"}}},
		{Messages: []provider.Message{{Role: provider.System, Content: "be brief"}, {Role: provider.User, Content: "write about 世界"}}, Tools: tools},
		{Messages: []provider.Message{{Role: provider.User, Content: "write"}}, Tools: tools, MaxTokens: 9},
		{Messages: []provider.Message{{Role: provider.ToolRole, ToolCallID: "c", Content: "x"}}},
		{Model: "other", Messages: []provider.Message{{Role: provider.User, Content: "x"}}},
	} {
		if req.Model == "" {
			req.Model = "anima-sim-1"
		}
		var texts [2]strings.Builder
		want, wantErr := direct.Complete(t.Context(), req, func(text string) error { texts[0].WriteString(text + "|"); return nil })
		got, err := over.Complete(t.Context(), req, func(text string) error { texts[1].WriteString(text + "|"); return nil })
		if diff := cmp.Diff(want, got); diff != "" || texts[0].String() != texts[1].String() {
			t.Errorf("%v: pieces %q and %q (-direct +HTTP):\n%s", req.Messages, texts[0].String(), texts[1].String(), diff)
		}
		if provider.KindOf(err) != provider.KindOf(wantErr) || (err == nil) != (wantErr == nil) || err != nil && err.Error() != wantErr.Error() {
			t.Errorf("%v: got error %v, want %v", req.Messages, err, wantErr)
		}
	}
	want, err := direct.Models(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got, err := over.Models(t.Context())
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("models: %v (-direct +HTTP):\n%s", err, diff)
	}
}
