package openai_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/services/inference-router/internal/model"
	"github.com/anima-run/anima/services/inference-router/internal/provider"
	"github.com/anima-run/anima/services/inference-router/internal/provider/openai"
	"github.com/anima-run/anima/services/inference-router/internal/provider/openai/responsestest"
	"github.com/anima-run/anima/services/inference-router/internal/provider/providertest"
	"github.com/anima-run/anima/services/inference-router/openaitest"
)

func connectResponses(t *testing.T, h http.Handler) *openai.Provider {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return newProvider(t, openai.Config{BaseURL: server.URL + "/v1", HTTP: server.Client(), Responses: true})
}

func TestResponsesConformance(t *testing.T) {
	t.Parallel()
	providertest.Run(t, func(t *testing.T) (provider.Provider, *providertest.Script) {
		script := providertest.NewScript(responsesDialect{})
		return connectResponses(t, script), script
	})
}

// responsesDialect is dialect for the protocol of responses.
type responsesDialect struct{ dialect }

func (responsesDialect) Read(r *http.Request) (provider.Request, string, error) {
	got, req, err := responsestest.Decode(r.Body)
	if err == nil && (!got.Stream || r.URL.Path != "/v1/responses") {
		err = errors.New("want a stream from /v1/responses")
	}
	return req, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "), err
}

func (responsesDialect) Carries(req provider.Request) provider.Request {
	req.TokenParam, req.Seed = model.MaxTokens, nil
	req.Tools = append([]provider.Tool(nil), req.Tools...)
	for i := range req.Tools {
		if req.Tools[i].Schema == nil {
			req.Tools[i].Schema = []byte(`{"type":"object","properties":{}}`)
		}
	}
	return req
}

func (responsesDialect) Stream(w http.ResponseWriter) providertest.Stream {
	return responsesStream{responsestest.NewStream(w, "resp_1", "m-1")}
}

type responsesStream struct{ *responsestest.Stream }

func (s responsesStream) FailInStream(f providertest.Fault) {
	code := "server_error"
	if f.Status != http.StatusServiceUnavailable {
		code = ""
	}
	s.Fail(code, f.Message)
}

func TestResponsesHistories(t *testing.T) {
	t.Parallel()
	providertest.RunHistories(t, func(t *testing.T) (provider.Provider, func() []provider.Message) {
		var got provider.Request
		p := connectResponses(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var refused error
			if _, got, refused = responsestest.Decode(r.Body); refused != nil {
				openaitest.WriteError(w, http.StatusBadRequest, openaitest.Error{Message: refused.Error()})
				return
			}
			s := responsestest.NewStream(w, "resp_1", got.Model)
			s.Text("fine")
			s.Finish(provider.FinishStop)
			s.Usage(provider.Usage{Input: 1, Output: 1})
		}))
		return p, func() []provider.Message { return got.Messages }
	})
}

// TestResponsesAnswers checks answers that the conformance suite does not have: reasoning,
// refusals, arguments in one piece, and documents instead of streams.
func TestResponsesAnswers(t *testing.T) {
	t.Parallel()
	event := func(all ...string) string {
		var b strings.Builder
		for _, data := range all {
			b.WriteString("data: " + data + "\n\n")
		}
		return b.String()
	}
	const created = `{"type":"response.created","response":{"id":"resp_9","model":"gpt-x"}}`
	const ended = `{"type":"response.completed","response":{"id":"resp_9","model":"gpt-x","status":"completed","usage":{"input_tokens":30,"input_tokens_details":{"cached_tokens":10,"cache_write_tokens":8},"output_tokens":20,"output_tokens_details":{"reasoning_tokens":5}}}}`
	usage := provider.Usage{Input: 30, CachedInput: 10, CacheWrite: 8, Output: 20, Reasoning: 5}
	calls := []provider.ToolCall{{ID: "c1", Name: "exec", Arguments: `{"n": 1}`}}
	for name, c := range map[string]struct {
		stream string
		want   provider.Response
	}{
		"reasoning": {
			event(created, `{"type":"response.reasoning_summary_text.delta","delta":"let me "}`, `{"type":"response.reasoning_text.delta","delta":"see"}`, `{"type":"response.output_text.delta","output_index":1,"delta":"A"}`, ended),
			provider.Response{Text: "A", Reasoning: "let me see", Finish: provider.FinishStop, Usage: usage},
		},
		"refusal": {
			event(created, `{"type":"response.refusal.delta","delta":"I won't."}`, ended),
			provider.Response{Text: "I won't.", Finish: provider.FinishRefusal, Usage: usage},
		},
		"arguments in one piece, and a later event": {
			event(created, `{"type":"response.output_item.added","output_index":0,"item":{"type":"function_call","call_id":"c1","name":"exec","arguments":""}}`,
				`{"type":"response.function_call_arguments.done","output_index":0,"arguments":"{\"n\": 1}"}`, `{"type":"response.later"}`, ended),
			provider.Response{ToolCalls: calls, Finish: provider.FinishToolCalls, Usage: usage},
		},
		"arguments in pieces and whole": {
			event(created, `{"type":"response.output_item.added","output_index":2,"item":{"type":"function_call","call_id":"c1","name":"exec","arguments":""}}`,
				`{"type":"response.function_call_arguments.delta","output_index":2,"delta":"{\"n\":"}`, `{"type":"response.function_call_arguments.delta","output_index":2,"delta":" 1}"}`,
				`{"type":"response.function_call_arguments.done","output_index":2,"arguments":"{\"n\": 1}"}`, ended),
			provider.Response{ToolCalls: calls, Finish: provider.FinishToolCalls, Usage: usage},
		},
		"a document": {
			`{"id":"resp_9","model":"gpt-x","status":"completed","error":null,"output":[{"type":"reasoning","summary":[{"type":"summary_text","text":"hm"}]},
				{"type":"message","content":[{"type":"output_text","text":"I look."}]},{"type":"function_call","call_id":"c1","name":"exec","arguments":"{\"n\": 1}"}],
				"usage":{"input_tokens":30,"input_tokens_details":{"cached_tokens":10,"cache_write_tokens":8},"output_tokens":20,"output_tokens_details":{"reasoning_tokens":5}}}`,
			provider.Response{Text: "I look.", Reasoning: "hm", ToolCalls: calls, Finish: provider.FinishToolCalls, Usage: usage},
		},
		"a document that is cut": {
			`{"id":"resp_9","model":"gpt-x","status":"incomplete","incomplete_details":{"reason":"content_filter"},"output":[{"type":"message","content":[{"type":"refusal","refusal":"no"}]}],"usage":{"input_tokens":30,"output_tokens":20}}`,
			provider.Response{Text: "no", Finish: provider.FinishFilter, Usage: provider.Usage{Input: 30, Output: 20}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := connectResponses(t, play(c.stream)).Complete(t.Context(), providertest.Ask("hi"), nil)
			if err != nil {
				t.Fatal(err)
			}
			c.want.ID, c.want.Model = "resp_9", "gpt-x"
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestResponsesFaults checks the kinds of errors within answers.
func TestResponsesFaults(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]provider.Kind{
		"data: {\"type\":\"response.failed\",\"response\":{\"error\":{\"code\":\"server_error\",\"message\":\"no " + providertest.Key + "\"}}}\n\n": provider.RetrySame,
		"data: {\"type\":\"error\",\"code\":\"rate_limit_exceeded\",\"message\":\"slow down\"}\n\n":                                                 provider.RateLimited,
		"data: {\"type\":\"error\",\"code\":\"context_length_exceeded\",\"message\":\"long\"}\n\n":                                                  provider.ContextTooLong,
		"data: {\"type\":\"error\",\"error\":{\"code\":\"insufficient_quota\",\"message\":\"no credit\"}}\n\n":                                      provider.Quota,
		"data: {\"type\":\"response.failed\",\"response\":{\"error\":null}}\n\n":                                                                    provider.Failover,
		`{"status":"failed","error":{"code":"server_error","message":"oops"}}`:                                                                      provider.RetrySame,
		`{"choices":[]}`: provider.Failover,
		`{"output":`:     provider.Failover,
	} {
		_, err := connectResponses(t, play(answer)).Complete(t.Context(), providertest.Ask("hi"), nil)
		if got := provider.KindOf(err); got != want || strings.Contains(err.Error(), providertest.Key) {
			t.Errorf("%s: got %q (%v), want %s without the key", answer, got, err, want)
		}
	}
}

// TestResponsesOptions checks the options of a request in the protocol of responses, and
// that a server without streaming or tools is asked again without them.
func TestResponsesOptions(t *testing.T) {
	t.Parallel()
	var got []responsestest.Request
	p := connectResponses(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		req, neutral, err := responsestest.Decode(r.Body)
		refuse := func(text string) { openaitest.WriteError(w, http.StatusBadRequest, openaitest.Error{Message: text}) }
		switch {
		case err != nil:
			refuse(err.Error())
		case req.Stream:
			refuse("stream is not supported")
		case len(req.Tools) > 0 && req.Model == "plain":
			refuse("this model does not support tools")
		default:
			got = append(got, req)
			responsestest.WriteResponse(w, provider.Response{ID: "r", Model: neutral.Model, Text: "yes", Usage: provider.Usage{Input: 9, Output: 1}})
		}
	}))
	req := providertest.Ask("hi")
	req.Tools = providertest.Tools()
	req.Tools[0].Strict = true
	req.MaxTokens = 1
	req.Options = provider.Options{
		ToolChoice: provider.OneTool + "exec", SingleCall: true, Effort: "low", Stop: []string{"x"},
		ResponseFormat: []byte(`{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":{"type":"object"}}}`),
	}
	for _, m := range []string{"m", "plain"} {
		req.Model = m
		if res, err := p.Complete(t.Context(), req, nil); err != nil || res.Text != "yes" || res.Usage.Input != 9 {
			t.Fatalf("%s: got %+v, %v", m, res, err)
		}
	}
	first := got[0]
	if string(first.ToolChoice) != `{"name":"exec","type":"function"}` || first.ParallelToolCalls == nil || *first.ParallelToolCalls || first.Reasoning.Effort != "low" {
		t.Errorf("got %+v", first)
	}
	if first.MaxOutputTokens == nil || *first.MaxOutputTokens != 16 {
		t.Errorf("the output limit 1: got %v, want 16, the lowest one", first.MaxOutputTokens)
	}
	if f := first.Text.Format; f.Type != "json_schema" || f.Name != "n" || string(f.Schema) != `{"type":"object"}` || !*f.Strict {
		t.Errorf("format: got %+v", f)
	}
	for i, tool := range first.Tools {
		if tool.Strict == nil || *tool.Strict != (i == 0) {
			t.Errorf("tool %s: strict is %v, want %v", tool.Name, tool.Strict, i == 0)
		}
	}
	if len(got) != 2 || len(got[1].Tools) != 0 {
		t.Errorf("the server without tools got %+v", got[len(got)-1])
	}
}

// TestRawKeyConformance runs the suite for servers that take the key without the word
// Bearer, which Conway's API does, in both protocols.
func TestRawKeyConformance(t *testing.T) {
	t.Parallel()
	for name, d := range map[string]providertest.Dialect{"chat completions": rawKey{dialect{}}, "responses": rawKey{responsesDialect{}}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			providertest.Run(t, func(t *testing.T) (provider.Provider, *providertest.Script) {
				script := providertest.NewScript(d)
				server := httptest.NewServer(script)
				t.Cleanup(server.Close)
				return newProvider(t, openai.Config{BaseURL: server.URL + "/v1", HTTP: server.Client(), RawKey: true, Responses: name == "responses"}), script
			})
		})
	}
}

// rawKey is a dialect whose key is the whole header.
type rawKey struct{ providertest.Dialect }

func (d rawKey) Read(r *http.Request) (provider.Request, string, error) {
	req, _, err := d.Dialect.Read(r)
	return req, r.Header.Get("Authorization"), err
}

// FuzzResponses checks that any stream results in an answer with a finish reason or in a
// typed error.
func FuzzResponses(f *testing.F) {
	f.Add([]byte("data: {\"type\":\"response.output_text.delta\",\"delta\":\"x\"}\n\ndata: {\"type\":\"response.completed\",\"response\":{\"status\":\"completed\"}}\n\n"))
	f.Add([]byte("data: {\"type\":\"response.output_item.added\",\"output_index\":1e400,\"item\":{\"type\":\"function_call\"}}\n\n"))
	f.Add([]byte(`{"output":[{"type":"message","content":[{"text":"x"}]}],"usage":{"input_tokens":-1}}`))
	f.Fuzz(func(t *testing.T, stream []byte) {
		p := newProvider(t, openai.Config{BaseURL: "http://host/v1", HTTP: &http.Client{Transport: bodyOf(stream)}, Responses: true})
		var seen strings.Builder
		res, err := p.Complete(t.Context(), providertest.Ask("hi"), func(d string) error { seen.WriteString(d); return nil })
		if (err == nil) != (res.Finish != "") || (err != nil && provider.KindOf(err) == "") {
			t.Errorf("got %+v, %v", res, err)
		}
		if seen.String() != res.Text {
			t.Errorf("deltas %q, text %q", seen.String(), res.Text)
		}
		if res.Usage.Input <= 0 || res.Usage.Output < 0 {
			t.Errorf("usage: got %+v", res.Usage)
		}
	})
}
