package bus_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
)

// diverted redirects the requests on an API subject of an in-process server to answer,
// until answer returns false.
func diverted(t *testing.T, s *server.Server, subject string, answer func(m *nats.Msg) bool) {
	t.Helper()
	nc, to := connect(t, s).NATS(), nats.NewInbox()
	if _, err := nc.Subscribe(to, func(m *nats.Msg) {
		if !answer(m) {
			s.GlobalAccount().RemoveMapping(subject)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := s.GlobalAccount().AddMapping(subject, to); err != nil {
		t.Fatal(err)
	}
}

// TestInstallationOfTheServiceThatWasFirst checks that a service whose request to create
// the bucket was lost takes the id of the service that created it, instead of the id that
// it had generated.
func TestInstallationOfTheServiceThatWasFirst(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	lost := make(chan struct{})
	diverted(t, s, "$JS.API.STREAM.CREATE.KV_"+api.Coordination, func(*nats.Msg) bool { close(lost); return false })
	slow, err := bus.New(connect(t, s), bus.Options{Service: "loop", Log: logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(slow.Close)
	ended := make(chan error, 1)
	go func() { ended <- slow.Ensure(testContext(t)) }()
	wait(t, lost, "the request for the bucket")
	first := newBus(t, connect(t, s), bus.Options{Service: "policy"})
	if err := wait(t, ended, "the end of Ensure"); err != nil {
		t.Fatal(err)
	}
	if slow.Installation() != first.Installation() || first.Installation() == "" {
		t.Errorf("got %q, want %q", slow.Installation(), first.Installation())
	}
	all, err := slow.StreamHeights(testContext(t), slow.AllStreams())
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range all {
		if h.Installation != first.Installation() {
			t.Errorf("%s has %q, want %q", h.Name, h.Installation, first.Installation())
		}
	}
}

// TestEnsureUpdatesOnlyWhatDiffers checks that services that start at the same time, and
// again, request no update of a stream, and that a stream with another configuration is
// updated.
func TestEnsureUpdatesOnlyWhatDiffers(t *testing.T) {
	t.Parallel()
	ensure := func(t *testing.T, all ...*bus.Bus) {
		t.Helper()
		updates := make(chan *nats.Msg, 1000)
		for _, b := range all {
			observed, err := b.NATS().ChanSubscribe("$JS.API.STREAM.UPDATE.*", updates)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = observed.Unsubscribe() }) // the connection may be closed
			if err := b.NATS().Flush(); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			var ensuring sync.WaitGroup
			for _, b := range all {
				ensuring.Go(func() {
					if err := b.Ensure(testContext(t)); err != nil {
						t.Error(err)
					}
				})
			}
			ensuring.Wait()
		}
		for _, b := range all {
			if err := b.NATS().Flush(); err != nil {
				t.Fatal(err)
			}
		}
		for len(updates) > 0 {
			t.Errorf("an update without a difference: %s", (<-updates).Subject)
		}
	}
	t.Run("new", func(t *testing.T) {
		t.Parallel()
		s := startServer(t)
		var all []*bus.Bus
		for range 6 {
			b, err := bus.New(connect(t, s), bus.Options{Service: "loop", Installation: "folder", Log: logger(t)})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(b.Close)
			all = append(all, b)
		}
		ensure(t, all...)
	})
	everywhere(t, func(t *testing.T, b, other *bus.Bus) { t.Helper(); ensure(t, b, other) })
	t.Run("difference", func(t *testing.T) {
		t.Parallel()
		b, s := one(t)
		name := changed("", 0).Subject().Stream()
		st, err := raw(t, s).Stream(testContext(t), name)
		if err != nil {
			t.Fatal(err)
		}
		want := st.CachedInfo().Config
		for _, change := range []func(*jetstream.StreamConfig){
			func(c *jetstream.StreamConfig) { c.MaxAge /= 2 },
			func(c *jetstream.StreamConfig) { c.MaxMsgs = 7 },
			func(c *jetstream.StreamConfig) { c.Subjects = append(slices.Clone(c.Subjects), "more") },
		} {
			cfg := want
			change(&cfg)
			if _, err := raw(t, s).UpdateStream(testContext(t), cfg); err != nil {
				t.Fatal(err)
			}
			if err := b.Ensure(testContext(t)); err != nil {
				t.Fatal(err)
			}
			if st, err = raw(t, s).Stream(testContext(t), name); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, st.CachedInfo().Config); diff != "" {
				t.Errorf("after Ensure (-want +got):\n%s", diff)
			}
		}
	})
}

// TestUnexpectedGaps checks that a deleted message between others is reported for a
// stream of events, but not for a bucket, where a message replaces the previous one.
func TestUnexpectedGaps(t *testing.T) {
	t.Parallel()
	b, s := one(t)
	ctx := testContext(t)
	gaps := func() (found []string) {
		faults, _, err := b.Unexpected(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range faults {
			if strings.Contains(f, "messages are missing") {
				found = append(found, f)
			}
		}
		return found
	}
	outputs := bus.NewObjects(b, api.Outputs)
	for _, text := range []string{"first", "second", "third"} {
		if err := outputs.Put(ctx, "output", []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	publish(t, b, changed("lucky", 1), changed("lucky", 2), changed("lucky", 3))
	if got := gaps(); len(got) > 0 {
		t.Errorf("got %q, want nothing missing", got)
	}
	events := changed("", 0).Subject().Stream()
	st, err := raw(t, s).Stream(ctx, events)
	if err != nil {
		t.Fatal(err)
	}
	if err := st.DeleteMsg(ctx, 2); err != nil {
		t.Fatal(err)
	}
	if got := gaps(); len(got) != 1 || !strings.Contains(got[0], "1 messages are missing in the stream "+events) {
		t.Errorf("got %q, want one message missing in %s", got, events)
	}
}

// TestStatesWithoutAStream checks that States leaves out a missing stream, without
// retries.
func TestStatesWithoutAStream(t *testing.T) {
	t.Parallel()
	b, s := one(t)
	gone := changed("", 0).Subject().Stream()
	if err := raw(t, s).DeleteStream(testContext(t), gone); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // shorter than the retries for a stream
	defer cancel()
	all, err := b.States(ctx)
	if err != nil || len(all) != len(api.Streams())-1 {
		t.Errorf("got %d states, %v, want %d", len(all), err, len(api.Streams())-1)
	}
	for _, st := range all {
		if st.Name == gone {
			t.Errorf("%s is there: %+v", gone, st)
		}
	}
}
