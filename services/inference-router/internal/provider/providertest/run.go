package providertest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api/chat"

	"github.com/anima-run/anima/services/inference-router/internal/model"
	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// Open starts an adapter with the name "test" and the key [Key], connected to a server
// that runs the script. It registers its cleanup with t.
type Open func(t *testing.T) (provider.Provider, *Script)

// Run runs the suite, which checks the contract of [provider.Provider].
func Run(t *testing.T, open Open) {
	t.Run("answers", func(t *testing.T) { t.Parallel(); answers(t, open) })
	t.Run("tool calls", func(t *testing.T) { t.Parallel(); toolCalls(t, open) })
	t.Run("refusals", func(t *testing.T) { t.Parallel(); refusals(t, open) })
	t.Run("broken answers", func(t *testing.T) { t.Parallel(); broken(t, open) })
	t.Run("stopping", func(t *testing.T) { t.Parallel(); stopping(t, open) })
	t.Run("models", func(t *testing.T) { t.Parallel(); models(t, open) })
}

// Ask returns the smallest request.
func Ask(text string) provider.Request {
	return provider.Request{Model: "m-1", Messages: []provider.Message{{Role: provider.User, Content: text}}}
}

func answers(t *testing.T, open Open) {
	t.Run("text arrives in order and whole", func(t *testing.T) {
		t.Parallel()
		p, s := open(t)
		s.Next(func(a *Answer) {
			a.Text("Hel")
			a.Empty()
			a.Text("lo, ")
			a.Text("wörld")
			a.Finish(provider.FinishStop)
			a.Usage(provider.Usage{Input: 30, CachedInput: 10, Output: 20, Reasoning: 5})
			a.Done()
		})
		var deltas []string
		res, err := p.Complete(t.Context(), Ask("hi"), func(d string) error { deltas = append(deltas, d); return nil })
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"Hel", "lo, ", "wörld"}, deltas); diff != "" {
			t.Errorf("deltas (-want +got):\n%s", diff)
		}
		if res.Text != "Hello, wörld" || res.Finish != provider.FinishStop || res.ToolCalls != nil {
			t.Errorf("got %+v", res)
		}
		if want := (provider.Usage{Input: 30, CachedInput: 10, Output: 20, Reasoning: 5}); res.Usage != want {
			t.Errorf("usage: got %+v, want %+v", res.Usage, want)
		}
	})

	t.Run("the request arrives as it was meant", func(t *testing.T) {
		t.Parallel()
		p, s := open(t)
		s.Always(func(a *Answer) { a.Text("ok"); a.Finish(provider.FinishStop); a.Done() })
		seed, temperature := int64(7), 0.5
		req := provider.Request{
			Model: "m-1",
			Messages: []provider.Message{
				{Role: provider.System, Content: "be brief"},
				{Role: provider.User, Content: "<one> & \"two\" 日本"},
				{Role: provider.Assistant, ToolCalls: []provider.ToolCall{{ID: "c1", Name: "exec", Arguments: `{"command":"ls"}`}, {ID: "c2", Name: "exec", Arguments: "{}"}}},
				{Role: provider.ToolRole, ToolCallID: "c1", Content: "a.txt"},
				{Role: provider.ToolRole, ToolCallID: "c2", Content: ""},
				{Role: provider.User, Content: "go on"},
			},
			Tools: []provider.Tool{
				{Name: "exec", Description: "run", Schema: []byte(`{"type":"object","properties":{"command":{"type":"string"}}}`)},
				{Name: "noop"},
			},
			MaxTokens: 512, TokenParam: model.MaxCompletionTokens, Options: provider.Options{Seed: &seed, Temperature: &temperature},
		}
		if _, err := p.Complete(t.Context(), req, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Complete(t.Context(), provider.Request{Model: "m-2", Messages: []provider.Message{{Role: provider.User, Content: "a"}, {Role: provider.User, Content: "b"}}, MaxTokens: 99, TokenParam: model.MaxTokens}, nil); err != nil {
			t.Fatal(err)
		}
		got, keys := s.Requests()
		want := []provider.Request{s.Carries(req), {Model: "m-2", Messages: []provider.Message{{Role: provider.User, Content: "a\nb"}}, MaxTokens: 99, TokenParam: model.MaxTokens}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if keys[0] != Key {
			t.Errorf("key: got %q", keys[0])
		}
	})

	t.Run("the format of the answer arrives", func(t *testing.T) {
		t.Parallel()
		p, s := open(t)
		s.Always(func(a *Answer) { a.Text("{}"); a.Finish(provider.FinishStop); a.Done() })
		for _, raw := range []string{`{"type":"text"}`, `{"type":"json_schema","json_schema":{"name":"answer","schema":{"type":"object","additionalProperties":false}}}`} {
			req := Ask("hi")
			req.ResponseFormat = []byte(raw)
			if _, err := p.Complete(t.Context(), req, nil); err != nil {
				t.Fatal(err)
			}
			all, _ := s.Requests()
			got, err1 := provider.FormatOf(all[len(all)-1].ResponseFormat)
			want, err2 := provider.FormatOf(req.ResponseFormat)
			if diff := cmp.Diff(want, got); diff != "" || err1 != nil || err2 != nil {
				t.Errorf("%v, %v (-want +got):\n%s", err1, err2, diff)
			}
		}
		req := Ask("hi")
		req.ResponseFormat = []byte(`{"type":"json_object"}`)
		if _, err := p.Complete(t.Context(), req, nil); err != nil {
			t.Fatal(err)
		}
		all, _ := s.Requests()
		last := all[len(all)-1]
		if !strings.Contains(fmt.Sprint(last.Messages)+string(last.ResponseFormat), "json_object") && !strings.Contains(fmt.Sprint(last.Messages), "JSON object") {
			t.Errorf("an object without a schema: got %+v", last)
		}
		req.ResponseFormat = []byte(`{"type":"xml"}`)
		_, err := p.Complete(t.Context(), req, nil)
		check(t, err, provider.Fatal, 0)
	})

	t.Run("images arrive at their places", func(t *testing.T) {
		t.Parallel()
		p, s := open(t)
		s.Next(func(a *Answer) { a.Text("a cat"); a.Finish(provider.FinishStop); a.Done() })
		req := Ask("one\ntwo")
		req.Messages[0].Images = []provider.Image{Image(0), ImageURL(3), Image(7)}
		res, err := p.Complete(t.Context(), req, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := s.Requests(); len(got) != 1 || !cmp.Equal(got[0].Messages, req.Messages) {
			t.Errorf("(-want +got):\n%s", cmp.Diff(req.Messages, got[0].Messages))
		}
		if want := 2*chat.ImageTokens(Image(0)) + chat.ImageTokens(ImageURL(0)); res.Usage.Input < want {
			t.Errorf("estimated input: got %d tokens, want at least %d for the images", res.Usage.Input, want)
		}
	})

	t.Run("images of results arrive", func(t *testing.T) {
		t.Parallel()
		p, s := open(t)
		s.Next(func(a *Answer) { a.Text("two cats"); a.Finish(provider.FinishStop); a.Done() })
		req := Ask("look")
		req.Tools = Tools()
		req.Messages = append(req.Messages,
			provider.Message{Role: provider.Assistant, ToolCalls: []provider.ToolCall{{ID: "c1", Name: "exec", Arguments: "{}"}, {ID: "c2", Name: "exec", Arguments: "{}"}}},
			provider.Message{Role: provider.ToolRole, ToolCallID: "c1", Content: "one\ntwo", Images: []provider.Image{Image(3), ImageURL(7)}},
			provider.Message{Role: provider.ToolRole, ToolCallID: "c2", Images: []provider.Image{Image(0)}},
		)
		res, err := p.Complete(t.Context(), req, nil)
		if err != nil {
			t.Fatal(err)
		}
		all, _ := s.Requests()
		want := s.Carries(req).Messages
		if got := all[0].Messages; len(all) != 1 || !cmp.Equal(got, want) {
			t.Errorf("(-want +got):\n%s", cmp.Diff(want, got))
		}
		if want := 2*chat.ImageTokens(Image(0)) + chat.ImageTokens(ImageURL(0)); res.Usage.Input < want {
			t.Errorf("estimated input: got %d tokens, want at least %d for the images", res.Usage.Input, want)
		}
	})

	t.Run("missing usage is estimated and says so", func(t *testing.T) {
		t.Parallel()
		p, s := open(t)
		s.Next(func(a *Answer) { a.Text("12345678"); a.Finish(provider.FinishStop); a.Done() })
		req := Ask("hi")
		res, err := p.Complete(t.Context(), req, nil)
		if err != nil {
			t.Fatal(err)
		}
		if want := (provider.Usage{Input: req.Estimate(), Output: 2, Estimated: true}); res.Usage != want {
			t.Errorf("got %+v, want %+v", res.Usage, want)
		}
	})

	t.Run("finish reasons pass", func(t *testing.T) {
		t.Parallel()
		p, s := open(t)
		for _, reason := range []string{provider.FinishStop, provider.FinishLength, provider.FinishFilter} {
			s.Next(func(a *Answer) { a.Text("x"); a.Finish(reason); a.Done() })
			if res, err := p.Complete(t.Context(), Ask("hi"), nil); err != nil || res.Finish != reason {
				t.Errorf("got %q, %v; want %q", res.Finish, err, reason)
			}
		}
	})

	t.Run("characters survive any packet boundary", func(t *testing.T) {
		t.Parallel()
		p, s := open(t)
		const text = "zażółć 日本語 👩‍👩‍👧 \"quoted\"\n"
		s.Next(func(a *Answer) {
			a.Bytewise()
			a.Text(text)
			a.Call(0, "c1", "say", `{"text":"日本 👩‍👩‍👧"}`)
			a.Finish(provider.FinishToolCalls)
			a.Done()
		})
		var seen strings.Builder
		res, err := p.Complete(t.Context(), Ask("hi"), func(d string) error { seen.WriteString(d); return nil })
		if err != nil {
			t.Fatal(err)
		}
		if res.Text != text || seen.String() != text {
			t.Errorf("got %q, deltas %q, want %q", res.Text, seen.String(), text)
		}
		if got, want := res.ToolCalls[0].Arguments, `{"text":"日本 👩‍👩‍👧"}`; got != want {
			t.Errorf("arguments: got %q, want %q", got, want)
		}
	})

	t.Run("calls at once do not mix", func(t *testing.T) {
		t.Parallel()
		p, s := open(t)
		s.Always(func(a *Answer) {
			for _, r := range a.Request.Messages[0].Content {
				a.Text(string(r))
			}
			a.Finish(provider.FinishStop)
			a.Done()
		})
		var wg sync.WaitGroup
		for i := range 16 {
			wg.Go(func() {
				want := fmt.Sprintf("caller %d", i)
				if res, err := p.Complete(t.Context(), Ask(want), nil); err != nil || res.Text != want {
					t.Errorf("got %q, %v; want %q", res.Text, err, want)
				}
			})
		}
		wg.Wait()
	})
}

func toolCalls(t *testing.T, open Open) {
	for name, c := range map[string]struct {
		play func(*Answer)
		text string
		want []provider.ToolCall
	}{
		"one": {
			play: func(a *Answer) { a.Call(0, "c1", "exec", `{"command":"ls"}`) },
			want: []provider.ToolCall{{ID: "c1", Name: "exec", Arguments: `{"command":"ls"}`}},
		},
		"one after text": {
			play: func(a *Answer) { a.Text("I look. "); a.Call(0, "c1", "exec", `{}`) },
			text: "I look. ",
			want: []provider.ToolCall{{ID: "c1", Name: "exec", Arguments: `{}`}},
		},
		"in fragments": {
			play: func(a *Answer) {
				a.Call(0, "c1", "write_file", "")
				for _, part := range []string{`{"path":`, `"a.txt","con`, `tent":"x"}`} {
					a.Call(0, "", "", part)
				}
			},
			want: []provider.ToolCall{{ID: "c1", Name: "write_file", Arguments: `{"path":"a.txt","content":"x"}`}},
		},
		"several": {
			play: func(a *Answer) {
				a.Call(0, "c1", "exec", `{"n":`)
				a.Call(0, "", "", `1}`)
				a.Call(1, "c2", "exec", `{"n":2}`)
				a.Call(2, "c3", "sleep", ``)
			},
			want: []provider.ToolCall{{ID: "c1", Name: "exec", Arguments: `{"n":1}`}, {ID: "c2", Name: "exec", Arguments: `{"n":2}`}, {ID: "c3", Name: "sleep"}},
		},
		"arguments that are not JSON": {
			play: func(a *Answer) { a.Call(0, "c1", "exec", `{"command":`) },
			want: []provider.ToolCall{{ID: "c1", Name: "exec", Arguments: `{"command":`}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, s := open(t)
			s.Next(func(a *Answer) { c.play(a); a.Finish(provider.FinishToolCalls); a.Done() })
			res, err := p.Complete(t.Context(), Ask("hi"), nil)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, res.ToolCalls); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if res.Text != c.text || res.Finish != provider.FinishToolCalls {
				t.Errorf("got text %q, finish %q", res.Text, res.Finish)
			}
		})
	}
}

func models(t *testing.T, open Open) {
	t.Run("in the provider's order", func(t *testing.T) {
		t.Parallel()
		p, s := open(t)
		s.Next(func(a *Answer) { a.List("m-2", "m-1") })
		got, err := p.Models(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]provider.Listed{{ID: "m-2"}, {ID: "m-1"}}, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if p.Name() != "test" {
			t.Errorf("name: got %q", p.Name())
		}
	})
	t.Run("refused", func(t *testing.T) {
		t.Parallel()
		p, s := open(t)
		s.Next(func(a *Answer) { a.Fail(Fault{Status: 401, Message: "wrong key " + Key}) })
		_, err := p.Models(t.Context())
		check(t, err, provider.Auth, 401)
	})
	t.Run("canceled", func(t *testing.T) {
		t.Parallel()
		p, _ := open(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := p.Models(ctx)
		check(t, err, provider.Canceled, 0)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want context.Canceled in the chain", err)
		}
	})
}

// check checks the properties of each error: its type, its kind, and that it does not
// contain the key.
func check(t *testing.T, err error, kind provider.Kind, status int) {
	t.Helper()
	var e *provider.Error
	if !errors.As(err, &e) {
		t.Fatalf("got %v, want a provider error of kind %s", err, kind)
	}
	if e.Kind != kind || e.Status != status || e.Provider != "test" || e.Message == "" {
		t.Errorf("got %+v, want kind %s, status %d, provider test, a message", e, kind, status)
	}
	if strings.Contains(fmt.Sprintf("%v %+v %#v", err, err, err), Key) {
		t.Errorf("the key is in the error: %v", err)
	}
}
