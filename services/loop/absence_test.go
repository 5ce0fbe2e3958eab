package loop_test

import (
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/embednats/clustertest"
)

// behind makes the next reads of a stream return nothing. See [clustertest.Behind].
func behind(t *testing.T, p nats.InProcessConnProvider, stream string, times int) (left func() int) {
	t.Helper()
	left, stop, err := clustertest.Behind(p, stream, times)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return left
}

// TestRunIsNotLostToAStaleRead tests a stream leader that is behind the delivery of a
// message and does not return that message. The run is executed once, and its message
// is acknowledged only after that.
func TestRunIsNotLostToAStaleRead(t *testing.T) {
	t.Parallel()
	_, b, worlds := alive(t, 1)
	ended := apptest.Watch[api.LoopEnd](t, b)
	for _, times := range []int{1, 3} {
		left := behind(t, worlds[0].NATS, api.Run{}.Subject().Stream(), times)
		accepted := ask[api.Accepted](t, b, api.SendMessage{Agent: "lucky", Content: "hello"})
		end := apptest.Next(t, ended, func(m api.LoopEnd) bool { return m.Run == accepted.Run })
		if !end.Success || end.Turns != 1 || left() != 0 {
			t.Errorf("after %d answers of a leader behind, %d more to come: got success %t after %d turns, want one turn", times, left(), end.Success, end.Turns)
		}
	}
}

// TestNextDoesNotWaitForALostAck tests that the next message of a session does not wait
// for the redelivery of a message whose acknowledgement was lost.
func TestNextDoesNotWaitForALostAck(t *testing.T) {
	t.Parallel()
	_, b, worlds := alive(t, 1)
	ended := apptest.Watch[api.LoopEnd](t, b)
	stop, err := clustertest.Swallow(worlds[0].NATS, "$JS.ACK."+api.Run{}.Subject().Stream()+".loop-run.*.*.*.*.*")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	for range 2 {
		accepted := ask[api.Accepted](t, b, api.SendMessage{Agent: "lucky", Content: "hello"})
		apptest.Next(t, ended, func(m api.LoopEnd) bool { return m.Run == accepted.Run })
	}
	// Each of the two is delivered once, and the first may be redelivered.
	if got := delivered(t, worlds[0].NATS); got > 5 {
		t.Errorf("two messages were delivered %d times", got)
	}
}
