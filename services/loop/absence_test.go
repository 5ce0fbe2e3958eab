package loop_test

import (
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/embednats/clustertest"
)

// behind makes the next reads of a stream find nothing. See [clustertest.Behind].
func behind(t *testing.T, p nats.InProcessConnProvider, stream string, times int) (left func() int) {
	t.Helper()
	left, stop, err := clustertest.Behind(p, stream, times)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return left
}

// A stream's leader that is behind the delivery of a message finds no such message.
// The run is executed all the same, once, and is not acknowledged before.
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

// A message whose acknowledgement was lost is delivered again after a while. The next
// message of its session does not wait for that.
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
	// Each of two is delivered once, and the first perhaps again.
	if got := delivered(t, worlds[0].NATS); got > 5 {
		t.Errorf("two messages were delivered %d times", got)
	}
}
