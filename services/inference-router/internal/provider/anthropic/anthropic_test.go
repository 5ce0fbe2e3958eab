package anthropic_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/services/inference-router/internal/model"
	"github.com/anima-run/anima/services/inference-router/internal/provider"
	"github.com/anima-run/anima/services/inference-router/internal/provider/anthropic"
	"github.com/anima-run/anima/services/inference-router/internal/provider/anthropic/anthropictest"
	"github.com/anima-run/anima/services/inference-router/internal/provider/providertest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	providertest.Run(t, func(t *testing.T) (provider.Provider, *providertest.Script) {
		script := providertest.NewScript(dialect{})
		return connect(t, script), script
	})
}

func connect(t *testing.T, h http.Handler) *anthropic.Provider {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	p, err := anthropic.New(anthropic.Config{Name: "test", Key: providertest.Key, BaseURL: server.URL, HTTP: server.Client(), Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestConnectionIsUsedAgain checks that successive calls share a connection, although the end
// of the body follows the last event in a packet of its own.
func TestConnectionIsUsedAgain(t *testing.T) {
	t.Parallel()
	script := providertest.NewScript(dialect{})
	script.Always(func(a *providertest.Answer) { a.Text("x"); a.Finish("stop"); a.Done() })
	var opened atomic.Int32
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		script.ServeHTTP(w, r)
		<-time.After(time.Millisecond)
	}))
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			opened.Add(1)
		}
	}
	server.Start()
	t.Cleanup(server.Close)
	p, err := anthropic.New(anthropic.Config{Name: "test", Key: providertest.Key, BaseURL: server.URL, HTTP: server.Client(), Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	const calls = 10
	for range calls {
		if _, err := p.Complete(t.Context(), providertest.Ask("hi"), nil); err != nil {
			t.Fatal(err)
		}
	}
	if got := opened.Load(); got > calls/2 { // a busy machine may delay an end beyond the wait for it
		t.Errorf("got %d connections for %d calls, want 1", got, calls)
	}
}

// dialect implements the server side of the protocol for the conformance suite.
type dialect struct{}

func (dialect) Read(r *http.Request) (provider.Request, string, error) {
	req, err := anthropictest.Decode(r.Body)
	if err == nil && (!req.Stream || r.URL.Path != "/v1/messages" || r.Header.Get("Anthropic-Version") != "2023-06-01") {
		err = fmt.Errorf("want a stream from /v1/messages of version 2023-06-01, got %s of %q", r.URL.Path, r.Header.Get("Anthropic-Version"))
	}
	return req.Neutral(), r.Header.Get("X-Api-Key"), err
}

func (dialect) Carries(req provider.Request) provider.Request {
	req.TokenParam, req.Seed = model.MaxTokens, nil
	req.Tools = slices.Clone(req.Tools)
	for i := range req.Tools {
		if req.Tools[i].Schema == nil {
			req.Tools[i].Schema = []byte(`{"type":"object"}`)
		}
	}
	return req
}

func (dialect) Stream(w http.ResponseWriter) providertest.Stream {
	return stream{anthropictest.NewStream(w, "msg_1", "m-1")}
}

func (dialect) Fail(w http.ResponseWriter, f providertest.Fault) {
	anthropictest.WriteError(w, f.Status, word(f), message(f))
}

func (dialect) IsModels(r *http.Request) bool { return r.Method == http.MethodGet }

func (dialect) Models(w http.ResponseWriter, ids []string) {
	models := make([]anthropictest.Model, len(ids))
	for i, id := range ids {
		models[i] = anthropictest.Model{ID: id, Type: "model", DisplayName: id, CreatedAt: "2026-01-01T00:00:00Z"}
	}
	anthropictest.WriteModels(w, false, models...)
}

type stream struct{ *anthropictest.Stream }

func (s stream) FailInStream(f providertest.Fault) { s.Error(word(f), message(f)) }

func message(f providertest.Fault) string {
	if f.ContextTooLong {
		return "prompt is too long: 210000 tokens > 200000 maximum"
	}
	return f.Message
}

func word(f providertest.Fault) string {
	switch f.Status {
	case http.StatusUnauthorized:
		return "authentication_error"
	case http.StatusPaymentRequired:
		return "billing_error"
	case http.StatusNotFound:
		return "not_found_error"
	case http.StatusTooManyRequests:
		return "rate_limit_error"
	case http.StatusServiceUnavailable:
		return "overloaded_error"
	case http.StatusInternalServerError, http.StatusBadGateway:
		return "api_error"
	}
	return "invalid_request_error"
}

// play answers each call with these bytes as an event stream.
func play(stream string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, stream)
	})
}

// events returns the events of a stream, with the names that their types have.
func events(all ...string) string {
	var b strings.Builder
	for _, data := range all {
		name, _, _ := strings.Cut(strings.TrimPrefix(data, `{"type":"`), `"`)
		fmt.Fprintf(&b, "event: %s\ndata: %s\n\n", name, data)
	}
	return b.String()
}

// TestUsage checks the usage of answers: with the tokens of the prompt's cache, reported in
// two events, and incomplete.
func TestUsage(t *testing.T) {
	t.Parallel()
	const start = `{"type":"message_start","message":{"id":"msg_1","model":"claude-x","usage":{"input_tokens":10,"cache_creation_input_tokens":50,"cache_read_input_tokens":100,"output_tokens":1}}}`
	const text = `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hello"}}`
	for name, c := range map[string]struct {
		stream string
		want   provider.Usage
	}{
		"whole": {
			events(start, text, `{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":7,"output_tokens_details":{"thinking_tokens":3}}}`, `{"type":"message_stop"}`),
			provider.Usage{Input: 160, CachedInput: 100, CacheWrite: 50, Output: 7, Reasoning: 3},
		},
		"the prompt again at the end": {
			events(start, text, `{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"input_tokens":11,"cache_creation_input_tokens":0,"cache_read_input_tokens":100,"output_tokens":7}}`),
			provider.Usage{Input: 111, CachedInput: 100, Output: 7},
		},
		"not of the answer": {
			events(start, text, `{"type":"message_delta","delta":{"stop_reason":"end_turn"}}`),
			provider.Usage{Input: ask(160).Estimate(), Output: 2, Estimated: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			res, err := connect(t, play(c.stream)).Complete(t.Context(), ask(160), nil)
			if err != nil {
				t.Fatal(err)
			}
			if res.Usage != c.want || res.Text != "Hello" || res.Model != "claude-x" || res.Finish != provider.FinishStop {
				t.Errorf("got %+v, want usage %+v", res, c.want)
			}
		})
	}
	t.Run("broken", func(t *testing.T) {
		t.Parallel()
		res, err := connect(t, play(events(start, text))).Complete(t.Context(), ask(160), nil)
		if provider.KindOf(err) != provider.Failover {
			t.Errorf("got %v, want a failover", err)
		}
		if want := (provider.Usage{Input: 160, CachedInput: 100, CacheWrite: 50, Output: 2, Estimated: true}); res.Usage != want || res.Finish != "" {
			t.Errorf("got %+v, want usage %+v", res, want)
		}
	})
}

// observed returns a provider of a strict server, and the requests that the server gets. The
// server answers, or refuses a request with a status and a message.
func observed(t *testing.T, status func(anthropictest.Request) (int, string)) (*anthropic.Provider, <-chan anthropictest.Request) {
	t.Helper()
	got := make(chan anthropictest.Request, 8)
	return connect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		req, err := anthropictest.Decode(r.Body)
		if err != nil {
			t.Errorf("the request: %v", err)
		}
		got <- req
		if code, message := status(req); code != http.StatusOK {
			w.WriteHeader(code)
			_, _ = fmt.Fprintf(w, `{"type":"error","error":{"type":"invalid_request_error","message":%q}}`, message)
			return
		}
		play(events(`{"type":"message_start","message":{"id":"msg_1","model":"claude-x"}}`, `{"type":"message_delta","delta":{"stop_reason":"end_turn"}}`, `{"type":"message_stop"}`)).ServeHTTP(w, r)
	})), got
}

// TestOptions checks that the settings of a call reach a strict server.
func TestOptions(t *testing.T) {
	t.Parallel()
	p, got := observed(t, func(anthropictest.Request) (int, string) { return http.StatusOK, "" })
	half, seven := 0.5, int64(7)
	req := ask(2)
	req.Tools = []provider.Tool{{Name: "n", Strict: true}, {Name: "m"}}
	req.Options = provider.Options{TopP: &half, TopK: &seven, Stop: []string{"a", "\n", ""}, Effort: "high"}
	if _, err := p.Complete(t.Context(), req, nil); err != nil {
		t.Fatal(err)
	}
	first := <-got
	req.Stop = req.Stop[:1] // the protocol has no blank ones
	options := provider.Options{Temperature: first.Temperature, TopP: first.TopP, TopK: first.TopK, Stop: first.Stop, Effort: first.Output.Effort}
	if diff := cmp.Diff(req.Options, options); diff != "" {
		t.Errorf("options (-want +got):\n%s", diff)
	}
	if len(first.Tools) != 2 || !first.Tools[0].Strict || first.Tools[1].Strict {
		t.Errorf("tools: got %+v, want the first one to be strict", first.Tools)
	}
}

// TestTemperature checks that a temperature above that of the protocol, which OpenAI's has,
// is sent as the highest one.
func TestTemperature(t *testing.T) {
	t.Parallel()
	p, got := observed(t, func(anthropictest.Request) (int, string) { return http.StatusOK, "" })
	for asked, want := range map[float64]float64{0: 0, 0.7: 0.7, 1: 1, 1.3: 1, 2: 1} {
		req := ask(2)
		req.Temperature = &asked
		if _, err := p.Complete(t.Context(), req, nil); err != nil {
			t.Fatal(err)
		}
		if sent := (<-got).Temperature; sent == nil || *sent != want {
			t.Errorf("temperature %g: got %v, want %g", asked, sent, want)
		}
		if *req.Temperature != asked {
			t.Errorf("the temperature of the request became %g, want %g", *req.Temperature, asked)
		}
	}
}

// TestSampling checks that a strict server gets one of temperature and top_p, the one that is
// not the default.
func TestSampling(t *testing.T) {
	t.Parallel()
	p, got := observed(t, func(anthropictest.Request) (int, string) { return http.StatusOK, "" })
	half, one := 0.5, 1.0
	for _, c := range []struct{ temperature, topP, want, wantTopP *float64 }{
		{nil, &half, nil, &half},
		{&half, nil, &half, nil},
		{&half, &half, &half, nil},
		{&half, &one, &half, nil},
		{&one, &half, nil, &half},
	} {
		req := ask(2)
		req.Temperature, req.TopP = c.temperature, c.topP
		if _, err := p.Complete(t.Context(), req, nil); err != nil {
			t.Fatal(err)
		}
		sent := <-got
		if diff := cmp.Diff([]*float64{c.want, c.wantTopP}, []*float64{sent.Temperature, sent.TopP}); diff != "" {
			t.Errorf("temperature and top_p (-want +got):\n%s", diff)
		}
	}
}

// TestFormatIsClosed checks that the objects of a schema forbid further properties, as the
// protocol requires, and that the schema is the same otherwise.
func TestFormatIsClosed(t *testing.T) {
	t.Parallel()
	p, got := observed(t, func(anthropictest.Request) (int, string) { return http.StatusOK, "" })
	for schema, want := range map[string]string{
		`{"type":"object"}`: `{"type":"object","additionalProperties":false}`,
		`{"additionalProperties":false,"type":"object"}`: `{"additionalProperties":false,"type":"object"}`,
		`{"type":"object","properties":{"type":{"type":"string"},"b":{"type":["object","null"],"properties":{}}},"required":["type"]}`: `{"type":"object","properties":{"type":{"type":"string"},"b":{"type":["object","null"],"properties":{},"additionalProperties":false}},"required":["type"],"additionalProperties":false}`,
		`{"$defs":{"n":{"type":"object"}},"anyOf":[{"$ref":"#/$defs/n"},{"type":"array","items":{"type":"object"}}]}`:                  `{"$defs":{"n":{"type":"object","additionalProperties":false}},"anyOf":[{"$ref":"#/$defs/n"},{"type":"array","items":{"type":"object","additionalProperties":false}}]}`,
		`{"type":"string","enum":["object",{}]}`: `{"type":"string","enum":["object",{}]}`,
	} {
		var err error
		req := ask(2)
		if req.ResponseFormat, err = (provider.Format{Type: provider.FormatSchema, Name: "n", Schema: []byte(schema)}).Encode(); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Complete(t.Context(), req, nil); err != nil {
			t.Fatal(err)
		}
		if sent := string((<-got).Output.Format.Schema); sent != want {
			t.Errorf("%s: got %s, want %s", schema, sent, want)
		}
	}
}

// TestEffort checks that the effort is sent in the words of the protocol, and that a model
// that refuses it is called without it, from then on at once.
func TestEffort(t *testing.T) {
	t.Parallel()
	p, got := observed(t, func(req anthropictest.Request) (int, string) {
		switch {
		case req.Model == "old" && req.Output != nil:
			return http.StatusBadRequest, "This model has no effort of reasoning."
		case req.Model == "strict" && req.Output != nil:
			return http.StatusUnprocessableEntity, "output_config: Extra inputs are not permitted"
		}
		return http.StatusOK, ""
	})
	for _, c := range []struct {
		model, effort string
		want          []string // efforts of the requests
	}{
		{"new", "minimal", []string{"low"}},
		{"new", "none", []string{""}},
		{"old", "high", []string{"high", ""}},
		{"old", "high", []string{""}},
		{"old", "low", []string{"low", ""}}, // it may accept another effort
		{"new", "max", []string{"max"}},
		{"strict", "low", []string{"low", ""}},
	} {
		req := ask(2)
		req.Model, req.Effort = c.model, c.effort
		if _, err := p.Complete(t.Context(), req, nil); err != nil {
			t.Fatal(err)
		}
		var efforts []string
		for len(got) > 0 {
			sent := <-got
			efforts = append(efforts, "")
			if sent.Output != nil {
				efforts[len(efforts)-1] = sent.Output.Effort
			}
		}
		if diff := cmp.Diff(c.want, efforts); diff != "" {
			t.Errorf("%s, %s (-want +got):\n%s", c.model, c.effort, diff)
		}
	}
}

// ask returns a request of n bytes.
func ask(n int) provider.Request { return providertest.Ask(strings.Repeat("x", n)) }

// TestAnswers checks blocks and stop reasons that the conformance suite does not have.
func TestAnswers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		events []string
		want   provider.Response
	}{
		"thinking": {
			[]string{
				`{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":""}}`,
				`{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"let me see"}}`,
				`{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"abc"}}`,
				`{"type":"content_block_start","index":1,"content_block":{"type":"redacted_thinking","data":"xyz"}}`,
				`{"type":"content_block_start","index":2,"content_block":{"type":"text","text":"A"}}`,
				`{"type":"content_block_delta","index":2,"delta":{"type":"text_delta","text":"B"}}`,
				`{"type":"message_delta","delta":{"stop_reason":"end_turn"}}`,
			},
			provider.Response{Text: "AB", Reasoning: "let me see", Finish: provider.FinishStop},
		},
		"calls that overlap": {
			[]string{
				`{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"a","name":"exec","input":{}}}`,
				`{"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"b","name":"exec","input":{"n": 2}}}`,
				`{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\"n\":"}}`,
				`{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"1}"}}`,
				`{"type":"message_delta","delta":{"stop_reason":"tool_use"}}`,
			},
			provider.Response{ToolCalls: []provider.ToolCall{{ID: "a", Name: "exec", Arguments: `{"n":1}`}, {ID: "b", Name: "exec", Arguments: `{"n": 2}`}}, Finish: provider.FinishToolCalls},
		},
		"an unknown event and an unknown block": {
			[]string{
				`{"type":"a_later_event","index":0}`,
				`{"type":"content_block_start","index":0,"content_block":{"type":"server_tool_use","id":"s","name":"web_search"}}`,
				`{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"{}"}}`,
				`{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"x"}}`,
				`{"type":"message_delta","delta":{"stop_reason":"model_context_window_exceeded"}}`,
			},
			provider.Response{Text: "x", Finish: provider.FinishLength},
		},
		"calls announced and not made": {
			[]string{`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"x"}}`, `{"type":"message_delta","delta":{"stop_reason":"tool_use"}}`},
			provider.Response{Text: "x", Finish: provider.FinishStop},
		},
		"a stop sequence": {
			[]string{`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"x"}}`, `{"type":"message_delta","delta":{"stop_reason":"stop_sequence","stop_sequence":"X"}}`},
			provider.Response{Text: "x", Finish: provider.FinishStop, Stop: "X"},
		},
		"refused": {
			[]string{`{"type":"message_delta","delta":{"stop_reason":"refusal"}}`},
			provider.Response{Finish: provider.FinishRefusal},
		},
		"a reason of a later version": {
			[]string{`{"type":"message_delta","delta":{"stop_reason":"later"}}`},
			provider.Response{Finish: "later"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			res, err := connect(t, play(events(c.events...))).Complete(t.Context(), ask(2), nil)
			if err != nil {
				t.Fatal(err)
			}
			res.Usage = provider.Usage{}
			if diff := cmp.Diff(c.want, res); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestStreamFaults checks that each type of error in a stream has the kind of its status.
func TestStreamFaults(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]provider.Kind{
		"invalid_request_error": provider.Fatal, "authentication_error": provider.Auth, "permission_error": provider.Auth,
		"billing_error": provider.Quota, "rate_limit_error": provider.RateLimited, "request_too_large": provider.ContextTooLong,
		"timeout_error": provider.Failover, "api_error": provider.RetrySame, "overloaded_error": provider.RetrySame, "a_later_error": provider.Failover,
	} {
		p := connect(t, play(events(`{"type":"error","error":{"type":"`+word+`","message":"no `+providertest.Key+`"}}`)))
		_, err := p.Complete(t.Context(), ask(2), nil)
		var e *provider.Error
		if !errors.As(err, &e) || e.Kind != want || strings.Contains(err.Error(), providertest.Key) {
			t.Errorf("%s: got %v of kind %s, want %s without the key", word, err, provider.KindOf(err), want)
		}
	}
}

// TestModelPages checks that all pages of the list are read.
func TestModelPages(t *testing.T) {
	t.Parallel()
	p := connect(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("after_id") == "" {
			anthropictest.WriteModels(w, true, anthropictest.Model{ID: "a", MaxInputTokens: 200_000, MaxTokens: 64_000, CreatedAt: "2026-01-01T00:00:00Z"})
			return
		}
		anthropictest.WriteModels(w, false, anthropictest.Model{ID: "b", CreatedAt: "2026-01-01T00:00:00Z"})
	}))
	got, err := p.Models(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]provider.Listed{{ID: "a", ContextWindow: 200_000, MaxOutput: 64_000}, {ID: "b"}}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
