package loop

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"

	"github.com/anima-run/anima/services/loop/internal/engine"
)

// routing serves a router that settles a call when the test sends on settled.
func routing(t *testing.T, settled <-chan error) clients {
	t.Helper()
	b := apptest.Bus(t)
	funds := func(c api.Completion) api.Completion {
		c.Funds = &api.Funds{Available: 7, Tier: api.TierCritical}
		return c
	}
	serve(t, b,
		bus.Stream(func(_ context.Context, m api.Complete, send func(api.Delta) error) (api.Completion, error) {
			c := api.Completion{Text: m.ID, Model: "m"}
			if m.ID == "free" {
				return c, send(api.Delta{Content: m.ID})
			}
			if err := send(api.Delta{Content: m.ID, Answer: &c}); err != nil {
				return c, err
			}
			err := <-settled
			return funds(c), err
		}),
		bus.Reply(func(_ context.Context, m api.Confirm) (api.Completion, error) {
			if m.ID != "lost" || m.Agent != "lucky" {
				return api.Completion{}, api.Errorf(api.NotFound, "confirmed %s of %s", m.ID, m.Agent)
			}
			return funds(api.Completion{Text: m.ID}), nil
		}),
	)
	return newClients(b, time.Now)
}

// TestSettling tests that an answer is returned before its settlement, that a lost
// settlement is requested again, and that an answer without a settlement is settled at
// once.
func TestSettling(t *testing.T) {
	t.Parallel()
	settled := make(chan error)
	s := routing(t, settled)
	for id, news := range map[string]error{
		"settled": nil,
		"lost":    &api.Error{Code: api.Unavailable, Message: "treasury is away"},
	} {
		said := ""
		c, settling, err := s.Complete(t.Context(), engine.Question{Complete: api.Complete{ID: id, Agent: "lucky"}}, func(d api.Delta) { said += d.Content })
		if err != nil || c.Text != id || said != id || c.Funds != nil {
			t.Fatalf("%s: got %+v with the pieces %q, %v", id, c, said, err)
		}
		settled <- news // the router waits for this send, so the answer was returned before
		if funds, err := settling.Wait(t.Context()); err != nil || funds == nil || funds.Available != 7 {
			t.Errorf("%s: got the funds %+v, %v", id, funds, err)
		}
	}
	c, settling, err := s.Complete(t.Context(), engine.Question{Complete: api.Complete{ID: "free", Agent: "lucky"}}, func(api.Delta) {})
	if err != nil || c.Text != "free" || settling != (engine.Settled{}) {
		t.Errorf("got %+v, %+v, %v; want an answer that is settled", c, settling, err)
	}
	if _, err := s.Confirm(t.Context(), "bob", "lost"); api.CodeOf(err) != api.NotFound {
		t.Errorf("got %v, want NotFound", err)
	}
}

// TestSettlingIsFreed tests that the stream of a settlement without a Wait is closed
// with the context of its call.
func TestSettlingIsFreed(t *testing.T) {
	t.Parallel()
	settled := make(chan error)
	s := routing(t, settled)
	ctx, cancel := context.WithCancel(t.Context())
	_, settling, err := s.Complete(ctx, engine.Question{Complete: api.Complete{ID: "settled", Agent: "lucky"}}, func(api.Delta) {})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := settling.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that its context has ended", err)
	}
	settled <- nil
}

// TestQuestionIsEncoded tests that a question is sent with its prompt encoded if a
// router accepts that form.
func TestQuestionIsEncoded(t *testing.T) {
	t.Parallel()
	b := apptest.Bus(t)
	ctx, cancel := context.WithCancel(t.Context())
	asked := make(chan api.CompleteV2, 1)
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- b.Serve(ctx, time.Second, func() { close(ready) },
			bus.Stream(func(_ context.Context, m api.CompleteV2, _ func(api.Delta) error) (api.Completion, error) {
				asked <- m
				return api.Completion{Text: "yes"}, nil
			}),
		)
	}()
	<-ready
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	q := engine.Question{Complete: api.Complete{
		ID: "c", Agent: "lucky", Messages: []api.ChatMessage{{Role: "user", Content: "one"}, {Role: "user", Content: "two"}},
		Tools: []api.Tool{{Name: "look", Schema: []byte(`{"type":"object"}`)}},
	}}
	c, _, err := newClients(b, time.Now).Complete(t.Context(), q, func(api.Delta) {})
	if err != nil || c.Text != "yes" {
		t.Fatalf("got %+v, %v", c, err)
	}
	m := <-asked
	messages, tools := `[{"role":"user","content":"one\ntwo"}]`, `[{"type":"function","function":{"name":"look","parameters":{"type":"object"}}}]`
	if string(m.Messages) != messages || string(m.Tools) != tools || m.Call.ID != "c" || m.Call.Messages != nil || m.Call.Tools != nil {
		t.Errorf("got %s with the tools %s and %+v; want %s with %s", m.Messages, m.Tools, m.Call, messages, tools)
	}
}
