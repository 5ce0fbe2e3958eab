package bus_test

import (
	"context"
	"testing"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
)

// TestLeadersApart checks that a stream and its durable get different leaders, and that
// messages are still delivered.
func TestLeadersApart(t *testing.T) {
	t.Parallel()
	c := three.start(t)
	b := newBus(t, connect(t, c[0]), bus.Options{Replicas: 3, Service: "loop"})
	session := fresh("apart")
	got := make(chan string, 10)
	serve(t, b, 0, bus.On(func(_ context.Context, m api.Run) error {
		if m.Session == session {
			got <- m.Run
		}
		return nil
	}))
	for range 2 { // the second call has nothing to change
		l, err := b.LeadersApart(testContext(t), api.Run{}.Subject(), "loop")
		if err != nil || l.Stream == "" || l.Durable == "" || l.Stream == l.Durable {
			t.Fatalf("got %+v, %v, want two servers", l, err)
		}
	}
	enqueue(t, b, session, session)
	wait(t, got, "a message")
}

func TestLeadersOfOneServer(t *testing.T) {
	t.Parallel()
	b, _ := one(t)
	serve(t, b, 0, bus.On(func(context.Context, api.Run) error { return nil }))
	_, err := b.LeadersApart(testContext(t), api.Run{}.Subject(), "loop")
	wantCode(t, err, api.Conflict, "")
	_, err = b.LeadersApart(testContext(t), api.Run{}.Subject(), "policy")
	wantCode(t, err, api.NotFound, "")
}
