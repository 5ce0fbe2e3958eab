package loop_test

import (
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
)

// TestMessagesFollowEachOther tests that a message sent at the end of the previous run
// is not redelivered.
func TestMessagesFollowEachOther(t *testing.T) {
	t.Parallel()
	_, b, worlds := alive(t, 1)
	ended := apptest.Watch[api.LoopEnd](t, b)
	const n = 150
	for range n {
		accepted := ask[api.Accepted](t, b, api.SendMessage{Agent: "lucky", Content: "hello"})
		apptest.Next(t, ended, func(m api.LoopEnd) bool { return m.Run == accepted.Run })
	}
	// On a busy machine an acknowledgement may take longer than the wait in head.
	if got := delivered(t, worlds[0].NATS); got > n+5 {
		t.Errorf("%d messages were delivered %d times", n, got)
	}
}

// delivered returns the number of deliveries from the queue of runs.
func delivered(t *testing.T, server nats.InProcessConnProvider) uint64 {
	t.Helper()
	js, err := jetstream.New(connected(t, server))
	if err != nil {
		t.Fatal(err)
	}
	runs, err := js.Consumer(t.Context(), api.Run{}.Subject().Stream(), "loop-run")
	if err != nil {
		t.Fatal(err)
	}
	info, err := runs.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return info.Delivered.Consumer
}

// connected returns a connection that is closed at the end of the test.
func connected(t *testing.T, server nats.InProcessConnProvider) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect("", nats.InProcessServer(server))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}
