package router

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
)

// messages is a handler of log records that passes their messages on.
type messages struct {
	slog.Handler
	to chan string
}

func (messages) Enabled(context.Context, slog.Level) bool { return true }

func (m messages) Handle(_ context.Context, r slog.Record) error {
	m.to <- r.Message
	return nil
}

// TestQuestionThatCannotBeAnswered checks that an answer which cannot be written does not
// end the task that answers questions, because its end stops the process.
func TestQuestionThatCannotBeAnswered(t *testing.T) {
	t.Parallel()
	server := apptest.Server(t)
	open := func(o bus.Options) *bus.Bus {
		b, err := bus.New(apptest.Dial(t, server), o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(b.Close)
		return b
	}
	asking := open(bus.Options{Service: "inference-router", Log: apptest.Log(t)})
	if err := asking.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The bucket of a service that may not write the key stands for one that does not answer.
	readOnly, err := bus.OpenBucket[api.AttemptQuery](t.Context(), open(bus.Options{Service: "policy", Guarded: true, Log: slog.New(slog.DiscardHandler)}))
	if err != nil {
		t.Fatal(err)
	}
	writable, err := bus.OpenBucket[api.AttemptQuery](t.Context(), asking)
	if err != nil {
		t.Fatal(err)
	}
	logged, ended := make(chan string, 8), make(chan error, 1)
	var mine working
	mine.begin("a/0")
	mine.begin("b/0")
	q := &questions{log: slog.New(messages{slog.DiscardHandler, logged}), bucket: readOnly, owner: "me", mine: &mine}
	ctx, cancel := context.WithCancel(t.Context())
	go func() { ended <- q.run(ctx) }()
	for _, hold := range []string{"a/0", "b/0"} {
		if _, err := writable.Create(t.Context(), api.AttemptKey(hold), api.AttemptQuery{Hold: hold, By: "another"}, keepQuestion); err != nil {
			t.Fatal(err)
		}
		select {
		case <-logged:
		case err := <-ended:
			t.Fatalf("the task ended at %s: %v", hold, err)
		case <-time.After(20 * time.Second):
			t.Fatalf("the question about %s was not seen", hold)
		}
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the end of the context", err)
	}
}
