package bus_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
)

// follow sends the sequences that Follow receives.
func follow(t *testing.T, b *bus.Bus, after uint64, subjects ...string) <-chan uint64 {
	t.Helper()
	c := make(chan uint64, 10_000)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- b.Follow(ctx, after, func(s bus.Stored) error { c <- s.Sequence; return nil }, subjects...)
	}()
	t.Cleanup(func() {
		cancel()
		if err := wait(t, done, "the end of Follow"); !errors.Is(err, context.Canceled) {
			t.Errorf("Follow: %v", err)
		}
	})
	return c
}

func TestFollowResumesWithoutAGap(t *testing.T) {
	t.Parallel()
	b, _ := one(t)
	for n := range int64(20) {
		publish(t, b, changed([]string{"lucky", "bob"}[n%2], n))
	}
	all := changed("", 0).Subject().All()
	lucky, bob := changed("lucky", 0).Subject().String(), changed("bob", 0).Subject().String()
	var writer sync.WaitGroup
	writer.Go(func() { // while they are followed
		for n := range int64(20) {
			publish(t, b, changed([]string{"lucky", "bob"}[n%2], 20+n))
		}
	})
	defer writer.Wait()
	for name, c := range map[string]struct {
		after    uint64
		subjects []string
		want     func(seq uint64) bool
	}{
		"all":            {0, []string{all}, func(uint64) bool { return true }},
		"resumed":        {13, []string{all}, func(seq uint64) bool { return seq > 13 }},
		"one key":        {4, []string{lucky}, func(seq uint64) bool { return seq > 4 && seq%2 == 1 }},
		"two keys":       {30, []string{lucky, bob}, func(seq uint64) bool { return seq > 30 }},
		"what will come": {35, []string{bob}, func(seq uint64) bool { return seq > 35 && seq%2 == 0 }},
	} {
		got := follow(t, b, c.after, c.subjects...)
		for seq := uint64(1); seq <= 40; seq++ {
			if !c.want(seq) {
				continue
			}
			if g := wait(t, got, name); g != seq {
				t.Fatalf("%s: got %d, want %d", name, g, seq)
			}
		}
	}
}

func TestFollowOutlivesARestart(t *testing.T) {
	t.Parallel()
	o := listening(t)
	o.start()
	b := o.bus()
	got := follow(t, b, 0, changed("", 0).Subject().All())
	for n := range int64(6) {
		if n == 3 {
			o.stop()
			o.start()
		}
		publish(t, b, changed("lucky", n))
		if seq := wait(t, got, "a message"); seq != uint64(n)+1 {
			t.Fatalf("got %d, want %d", seq, n+1)
		}
	}
}

// TestFollowAfterALongOutage checks that Follow continues after an outage of any length,
// although the servers do not list all streams at once afterwards.
func TestFollowAfterALongOutage(t *testing.T) {
	t.Parallel()
	b, s := one(t)
	publish(t, b, changed("lucky", 1))
	const outage, unknown = 7, 2 // answers
	n := 0
	diverted(t, s, "$JS.API.STREAM.NAMES", func(m *nats.Msg) bool {
		n++
		answer := `{"type":"io.nats.jetstream.api.v1.stream_names_response","total":0,"offset":0,"limit":1024,"streams":null}`
		if n <= outage {
			answer = `{"type":"io.nats.jetstream.api.v1.stream_names_response","error":{"code":503,"err_code":10008,"description":"JetStream system temporarily unavailable"}}`
		}
		_ = m.Respond([]byte(answer)) // a caller without an answer retries
		return n < outage+unknown
	})
	if seq := wait(t, follow(t, b, 0, changed("", 0).Subject().All()), "the message"); seq != 1 {
		t.Errorf("got %d, want 1", seq)
	}
}

func TestFollowEnds(t *testing.T) {
	t.Parallel()
	b, _ := one(t)
	publish(t, b, changed("lucky", 1))
	want := errors.New("enough")
	all := changed("", 0).Subject().All()
	if err := b.Follow(testContext(t), 0, func(bus.Stored) error { return want }, all); !errors.Is(err, want) {
		t.Errorf("got %v, want %v", err, want)
	}
	for _, subjects := range [][]string{{}, {"nothing.keeps.this"}} {
		if err := b.Follow(testContext(t), 0, nil, subjects...); err == nil || testContext(t).Err() != nil {
			t.Errorf("%v: no error", subjects)
		}
	}
}

func TestListen(t *testing.T) {
	t.Parallel()
	b, s := one(t)
	ctx, cancel := context.WithCancel(t.Context())
	ready, got, done := make(chan struct{}), make(chan string, 10), make(chan error, 1)
	m := api.StreamDelta{Session: "s", Content: "I co"}
	go func() {
		done <- b.Subscribe(ctx, m.Subject().String(), func() { close(ready) }, func(data []byte) {
			var d api.StreamDelta
			if err := api.Decode(data, &d); err != nil {
				t.Error(err)
			}
			got <- d.Content
		})
	}()
	wait(t, ready, "the subscription")
	other := newBus(t, connect(t, s), bus.Options{})
	for _, d := range []api.StreamDelta{{Session: "t", Content: "not for s"}, m, {Session: "s", Content: "unt."}} {
		if err := other.PublishLive(ctx, d); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{"I co", "unt."}, []string{wait(t, got, "a piece"), wait(t, got, "a piece")}); diff != "" {
		t.Errorf("received (-want +got):\n%s", diff)
	}
	cancel()
	if err := wait(t, done, "the end of Listen"); !errors.Is(err, context.Canceled) {
		t.Errorf("Listen: %v", err)
	}
}
