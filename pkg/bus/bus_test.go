package bus_test

import (
	"context"
	"errors"
	"fmt"
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
	"github.com/anima-run/anima/pkg/embednats/clustertest"
)

func TestEnsureManyTimesAtOnce(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	ctx := testContext(t)
	nc := connect(t, s)
	var all sync.WaitGroup
	for range 8 {
		b, err := bus.New(nc, bus.Options{Service: "loop", Log: logger(t)})
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			defer b.Close()
			for range 2 {
				if err := b.Ensure(ctx); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	js := raw(t, s)
	var got []string
	for name := range js.StreamNames(ctx).Name() {
		got = append(got, name)
	}
	if want := len(api.Streams()) + 2; len(got) != want { // and the buckets of coordination and outputs
		t.Fatalf("streams %v: %d, want %d", got, len(got), want)
	}
	kv, err := js.Stream(ctx, "KV_"+api.Coordination)
	if err != nil {
		t.Fatal(err)
	}
	if c := kv.CachedInfo().Config; c.AllowDirect || c.MaxMsgsPerSubject != 1 || !c.AllowMsgTTL {
		t.Errorf("bucket: direct reads %v, history %d, TTLs %v; want false, 1, true", c.AllowDirect, c.MaxMsgsPerSubject, c.AllowMsgTTL)
	}
}

func TestEnsureWaitsForTheServer(t *testing.T) {
	t.Parallel()
	o := listening(t)
	nc, err := bus.Dial(bus.DialOptions{URL: o.url, Name: t.Name(), Wait: true, Log: logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	b, err := bus.New(nc, bus.Options{Service: "loop", Log: logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	if b.Connected() {
		t.Fatal("connected to a server that does not run")
	}
	done := make(chan error, 1)
	go func() { done <- b.Ensure(testContext(t)) }()
	o.start()
	if err := wait(t, done, "Ensure"); err != nil {
		t.Fatal(err)
	}
	if !b.Connected() {
		t.Error("not connected after Ensure")
	}
}

func TestDialSaysWhatToDo(t *testing.T) {
	t.Parallel()
	for _, credentials := range []string{"me:secret", "secret", "me:a,secret", "me:a/secret", "me:%secret", "me:secret@a"} {
		_, err := bus.Dial(bus.DialOptions{URL: "nats://" + credentials + "@127.0.0.1:1", Log: logger(t)})
		if err == nil || !strings.Contains(err.Error(), "ANIMA_NATS_URL") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: got %v, want the variable to set and no secret", credentials, err)
		}
	}
	s := startServer(t, listen, func(o *server.Options) { o.Authorization = "right" })
	_, err := bus.Dial(bus.DialOptions{URL: s.ClientURL(), Token: "wrong", Log: logger(t)})
	if err == nil || !strings.Contains(err.Error(), "token") || strings.Contains(err.Error(), "wrong") {
		t.Errorf("got %v, want a hint at the token and not the token", err)
	}
	nc, err := bus.Dial(bus.DialOptions{URL: s.ClientURL(), Token: "right", Log: logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	nc.Close()
}

func TestRedactURL(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                                      "",
		"nats://127.0.0.1:4222":                 "nats://127.0.0.1:4222",
		"tls://me:secret@a:4222":                "tls://a:4222",
		"nats://token@a:4222,nats://token@b:1":  "nats://a:4222,nats://b:1",
		"token@a:4222":                          "a:4222",
		"nats://me:a,b/c@d@host:4222,tls://e:1": "nats://host:4222,tls://e:1",
	} {
		if got := bus.RedactURL(in); got != want {
			t.Errorf("%s: got %s, want %s", in, got, want)
		}
	}
}

func TestPublishOnce(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, b, other *bus.Bus) {
		ctx := testContext(t)
		agent := fresh("once")
		m := changed(agent, 1)
		for _, from := range []*bus.Bus{b, b, other} {
			if err := from.Publish(ctx, agent+"/1", m); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.Publish(ctx, agent+"/2", changed(agent, 2)); err != nil {
			t.Fatal(err)
		}
		var got []int64
		for at := uint64(1); ; at++ {
			s, err := b.Next(ctx, m.Subject(), at)
			if api.CodeOf(err) == api.NotFound {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			var c api.AgentChanged
			if err := api.Decode(s.Data, &c); err != nil {
				t.Fatal(err)
			}
			got, at = append(got, c.Seq), s.Sequence
		}
		if diff := cmp.Diff([]int64{1, 2}, got); diff != "" {
			t.Errorf("stored (-want +got):\n%s", diff)
		}
	})
}

func TestPublishRefusesWhatIsNotKept(t *testing.T) {
	t.Parallel()
	b, _ := one(t)
	if err := b.Publish(testContext(t), "1", api.GetAgent{Agent: "lucky"}); err == nil {
		t.Error("a request was published")
	}
	if err := b.PublishLive(testContext(t), changed("lucky", 1)); err == nil {
		t.Error("an event was told")
	}
	for _, key := range []string{"", "a.b", "*", "a b", ">"} {
		wantCode(t, b.Publish(testContext(t), "1", changed(key, 1)), api.Invalid, "")
	}
}

func TestQueueIsBoundedPerKey(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, b, _ *bus.Bus) {
		ctx := testContext(t)
		full, other := fresh("full"), fresh("other")
		job := func(session string, n int) error {
			return b.Publish(ctx, fmt.Sprintf("%s/%d", session, n), api.Run{Run: fmt.Sprint(n), Session: session})
		}
		for n := range api.QueueDepth + 1 {
			if err := job(full, n); err != nil {
				t.Fatalf("message %d: %v", n, err)
			}
		}
		wantCode(t, job(full, 99), api.Unavailable, api.ReasonLimit)
		if err := job(full, 3); err != nil {
			t.Errorf("a repeated message that is stored already: %v", err)
		}
		if err := job(other, 0); err != nil {
			t.Errorf("another key: %v", err)
		}

		handled := make(chan string, 100)
		serve(t, b, patience, bus.On(func(_ context.Context, r api.Run) error {
			handled <- r.Session + "/" + r.Run
			return nil
		}))
		for range api.QueueDepth + 2 {
			wait(t, handled, "a message")
		}
		for api.ReasonOf(job(full, 100)) == api.ReasonLimit { // acknowledgements may still be in flight
			if ctx.Err() != nil {
				t.Fatal("the queue stays full")
			}
		}
		if got := wait(t, handled, "the message after the queue had room"); got != full+"/100" {
			t.Errorf("handled %s, want %s/100", got, full)
		}
	})
}

func TestAppendFences(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, b, other *bus.Bus) {
		ctx := testContext(t)
		session := fresh("s")
		step := func(epoch uint64) api.Journal {
			return api.Journal{Session: session, Run: "r", Epoch: epoch, Kind: "begin", Entry: []byte(`{}`)}
		}
		type outcome struct {
			epoch uint64
			seq   uint64
			err   error
		}
		first := func(ids func(epoch uint64) string, last uint64) (won, lost outcome) {
			t.Helper()
			race := make(chan outcome, 2)
			for i, from := range []*bus.Bus{b, other} {
				go func() {
					epoch := last*10 + uint64(i)
					seq, err := from.Append(ctx, ids(epoch), step(epoch), last)
					race <- outcome{epoch, seq, err}
				}()
			}
			won, lost = wait(t, race, "an append"), wait(t, race, "an append")
			if won.err != nil {
				won, lost = lost, won
			}
			if won.err != nil {
				t.Fatalf("no writer won: %v, %v", won.err, lost.err)
			}
			wantCode(t, lost.err, api.Conflict, "")
			return won, lost
		}
		own := func(epoch uint64) string { return fmt.Sprintf("%s/begin/%d", session, epoch) }
		same := func(uint64) string { return session + "/begin" }
		last := uint64(0)
		for range 10 {
			won, _ := first(own, last)
			last = won.seq
		}
		// With the same id, the writer that was second must still get Conflict.
		won, _ := first(same, last)

		// A previous owner that was paused appends after an old sequence.
		_, err := b.Append(ctx, session+"/late", step(1), last)
		wantCode(t, err, api.Conflict, "")
		_, err = b.Append(ctx, session+"/later", step(2), 0)
		wantCode(t, err, api.Conflict, "")

		// After a lost answer, the same append returns the same sequence, even if others
		// have written since.
		again := step(won.epoch)
		for range 2 {
			seq, err := other.Append(ctx, session+"/begin", again, last)
			if err != nil || seq != won.seq {
				t.Errorf("repeated append: %d, %v; want %d", seq, err, won.seq)
			}
			if _, err := b.Append(ctx, session+"/next", step(999), won.seq); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestAppendIsNotRemembered checks that the server does not deduplicate appends by id,
// and that readers get the id.
func TestAppendIsNotRemembered(t *testing.T) {
	t.Parallel()
	b, s := one(t)
	ctx := testContext(t)
	m := api.Journal{Session: "lucky", Kind: "begin"}
	first, err := b.Append(ctx, "lucky/begin", m, 0)
	if err != nil {
		t.Fatal(err)
	}
	js := raw(t, s)
	ack, err := js.Publish(ctx, m.Subject().String(), []byte("{}"), jetstream.WithMsgID("lucky/begin"))
	if err != nil || ack.Duplicate {
		t.Errorf("another message under the same id: %+v, %v, want it stored", ack, err)
	}
	st, err := js.Stream(ctx, m.Subject().Stream())
	if err != nil {
		t.Fatal(err)
	}
	got, err := st.GetMsg(ctx, first)
	if err != nil || bus.IDOf(got.Header) != "lucky/begin" || got.Header.Get(jetstream.MsgIDHeader) != "" {
		t.Errorf("stored with %v, %v", got.Header, err)
	}
}

func TestPublishOutlivesARestart(t *testing.T) {
	t.Parallel()
	o := listening(t)
	o.start()
	b := o.bus()
	if err := b.Publish(testContext(t), "1", changed("lucky", 1)); err != nil {
		t.Fatal(err)
	}
	o.stop()
	done := make(chan error, 1)
	go func() { done <- b.Publish(testContext(t), "2", changed("lucky", 2)) }()
	o.start()
	if err := wait(t, done, "the publish"); err != nil {
		t.Fatal(err)
	}
	if got := messages(t, raw(t, o.server), "LOOP_EVT"); got != 2 {
		t.Errorf("%d messages, want 2", got)
	}
}

func TestPublishGivesUpWithItsContext(t *testing.T) {
	t.Parallel()
	o := listening(t)
	o.start()
	b := o.bus()
	o.stop()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	wantCode(t, b.Publish(ctx, "1", changed("lucky", 1)), api.Unavailable, "")
	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	if err := b.Publish(ctx, "1", changed("lucky", 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that the context was cancelled", err)
	}
}

// TestNothingIsSentAfterItsSender checks that what is sent during an outage is not kept
// until the server is back, when its sender has given up.
func TestNothingIsSentAfterItsSender(t *testing.T) {
	t.Parallel()
	o := listening(t)
	o.start()
	b := o.bus()
	away := b.NATS().StatusChanged(nats.RECONNECTING)
	o.stop()
	wait(t, away, "the outage")
	for name, send := range map[string]func(context.Context) error{
		"request": func(ctx context.Context) error { _, err := getAgent(ctx, b, "lucky"); return err },
		"streamed request": func(ctx context.Context) error {
			_, err := ask(ctx, b, "c", func(api.Delta) error { return nil })
			return err
		},
		"event":  func(ctx context.Context) error { return b.Publish(ctx, "1", changed("lucky", 1)) },
		"append": func(ctx context.Context) error { _, err := b.Append(ctx, "2", changed("lucky", 2), 0); return err },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		err := send(ctx)
		cancel()
		if api.CodeOf(err) != api.Unavailable {
			t.Errorf("%s: got %v, want %s", name, err, api.Unavailable)
		}
		if kept, err := b.NATS().Buffered(); err != nil || kept != 0 {
			t.Fatalf("%s: %d bytes are kept, %v; want none", name, kept, err)
		}
	}
	if err := b.PublishLive(t.Context(), api.Thinking{Session: "s"}); err != nil {
		t.Errorf("live: got %v, want no error", err)
	}
	if kept, err := b.NATS().Buffered(); err != nil || kept != 0 {
		t.Errorf("live: %d bytes are kept, %v; want none", kept, err)
	}

	done := make(chan error, 1)
	r, err := bus.OpenStream[api.Delta, api.Completion](t.Context(), b, api.Complete{ID: "c"})
	if err != nil {
		t.Fatal(err)
	}
	go func() { _, _, err := r.Next(testContext(t)); done <- err }()
	r.Close()
	if err := wait(t, done, "the end of a closed request"); !errors.Is(err, context.Canceled) {
		t.Errorf("closed: got %v, want %v", err, context.Canceled)
	}
	go func() { _, err := b.Append(testContext(t), "1", changed("lucky", 1), 0); done <- err }()
	o.start()
	if err := wait(t, done, "an append that waits for the server"); err != nil {
		t.Error(err)
	}
	if got := messages(t, raw(t, o.server), "LOOP_EVT"); got != 1 {
		t.Errorf("%d messages, want only the one whose sender waited", got)
	}
}

// TestRefusedForAWhile checks that a service whose credentials the server refuses is let in
// when the server accepts them, as when keys are changed on both sides.
func TestRefusedForAWhile(t *testing.T) {
	t.Parallel()
	o := listening(t)
	o.opts.Authorization = "old"
	o.start()
	nc, err := bus.Dial(bus.DialOptions{URL: o.url, Token: "new", Name: t.Name(), Wait: true, Log: logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	change := func(token string) {
		changes := nc.NATS().StatusChanged(nats.RECONNECTING, nats.CONNECTED, nats.CLOSED)
		o.stop()
		o.opts.Authorization = token
		o.start()
		for tries := 0; tries < 4; {
			switch status := wait(t, changes, "another try"); {
			case status == nats.CLOSED:
				t.Fatal("the connection is closed for ever")
			case status == nats.CONNECTED && token == "new":
				return
			case status == nats.RECONNECTING && token != "new":
				tries++
			}
		}
		if !nc.Refused() {
			t.Error("not reported as refused")
		}
	}
	change("older")
	change("new")
	change("newer")
	change("new")
	if nc.Refused() {
		t.Error("reported as refused after the connection")
	}
}

func TestTooLarge(t *testing.T) {
	t.Parallel()
	s := startServer(t, func(o *server.Options) { o.MaxPayload = 64 << 10 })
	b := newBus(t, connect(t, s), bus.Options{})
	ctx := testContext(t)
	// Just below the limit, the headers make the message too large.
	for _, size := range []int{62 << 10, 63 << 10, 64 << 10, 1 << 20} {
		big := strings.Repeat("x", size)
		wantCode(t, b.Publish(ctx, "1", api.Run{Session: "s", Content: big}), api.Invalid, "")
		_, err := bus.Call[api.Agent](ctx, b, api.GetAgent{Agent: big})
		wantCode(t, err, api.Invalid, "")
	}
	serve(t, b, patience,
		bus.Reply(func(_ context.Context, m api.GetAgent) (api.Agent, error) {
			return api.Agent{Name: strings.Repeat("x", 63<<10)}, nil
		}),
	)
	_, err := bus.Call[api.Agent](ctx, b, api.GetAgent{Agent: "lucky"})
	wantCode(t, err, api.Internal, "")
}

func TestPosts(t *testing.T) {
	t.Parallel()
	b, s := one(t)
	ctx := testContext(t)
	p := b.Async()
	for range 2 {
		for n := range int64(50) {
			if err := p.Publish(ctx, fmt.Sprint(n), changed("lucky", n)); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Wait(ctx); err != nil {
			t.Fatal(err)
		}
	}
	js := raw(t, s)
	if got := messages(t, js, "LOOP_EVT"); got != 50 {
		t.Errorf("%d messages, want 50", got)
	}
	if err := js.DeleteStream(ctx, "LOOP_EVT"); err != nil {
		t.Fatal(err)
	}
	if err := p.Publish(ctx, "lost", changed("lucky", 51)); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(ctx); err == nil {
		t.Error("posting to nowhere succeeded")
	}
	if err := p.Wait(ctx); err != nil {
		t.Errorf("the failure was reported twice: %v", err)
	}
}

func TestLastAndNext(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, b, other *bus.Bus) {
		ctx := testContext(t)
		one, two := fresh("last"), fresh("last")
		lucky, bob := changed(one, 0).Subject(), changed(two, 0).Subject()
		_, err := b.Last(ctx, lucky)
		wantCode(t, err, api.NotFound, "")
		var seqs []uint64
		for n := range int64(4) {
			for _, agent := range []string{one, two} {
				if err := b.Publish(ctx, fmt.Sprintf("%s/%d", agent, n), changed(agent, n)); err != nil {
					t.Fatal(err)
				}
			}
			// Another connection reads a message at once after it was acknowledged to
			// this one.
			s, err := other.Last(ctx, lucky)
			if err != nil {
				t.Fatal(err)
			}
			seqs = append(seqs, s.Sequence)
			if s.Subject != lucky.String() || s.At.IsZero() {
				t.Errorf("last: subject %s at %v", s.Subject, s.At)
			}
		}
		s, err := other.Next(ctx, lucky, seqs[1]+1)
		if err != nil || s.Sequence != seqs[2] {
			t.Errorf("next after %d: %d, %v; want %d", seqs[1], s.Sequence, err, seqs[2])
		}
		s, err = other.Next(ctx, bob, 0)
		if err != nil || s.Sequence <= seqs[0] || s.Sequence >= seqs[1] {
			t.Errorf("first of the other: %d, %v; want it between %d and %d", s.Sequence, err, seqs[0], seqs[1])
		}
		_, err = other.Next(ctx, lucky, seqs[3]+1)
		wantCode(t, err, api.NotFound, "")
	})
}

func TestPublishStored(t *testing.T) {
	t.Parallel()
	b, s := one(t)
	ctx := testContext(t)
	m := changed("lucky", 7)
	data, err := api.Encode(m)
	if err != nil {
		t.Fatal(err)
	}
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for range 2 {
		if err := b.PublishStored(ctx, "lucky/7", m.Subject().String(), data, parent); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Publish(ctx, "lucky/7", m); err != nil { // the same message through Publish
		t.Fatal(err)
	}
	st, err := raw(t, s).Stream(ctx, "LOOP_EVT")
	if err != nil {
		t.Fatal(err)
	}
	got, err := st.GetLastMsgForSubject(ctx, m.Subject().String())
	if err != nil {
		t.Fatal(err)
	}
	if got.Sequence != 1 || string(got.Data) != string(data) ||
		got.Header.Get("traceparent") != parent || got.Header.Get(jetstream.MsgIDHeader) != "lucky/7" {
		t.Errorf("stored %d %s %v", got.Sequence, got.Data, got.Header)
	}
	for _, bad := range []string{"", "anima.loop.evt.agent_state.v1.*", "anima.loop.evt.agent_state.v1.a.b", "loop", "anima.loop.req.get_agent.v1"} {
		if err := b.PublishStored(ctx, "1", bad, data, ""); err == nil {
			t.Errorf("%q was published", bad)
		}
	}
}

// restartable is a server on a fixed port that can be stopped and started.
type restartable struct {
	t      *testing.T
	opts   server.Options
	url    string
	server *server.Server
}

// listening reserves an address; the server is not started yet.
func listening(t *testing.T) *restartable {
	t.Helper()
	port, err := clustertest.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return &restartable{t: t, url: fmt.Sprintf("nats://127.0.0.1:%d", port), opts: server.Options{
		ServerName: "again", Host: "127.0.0.1", Port: port, JetStream: true, StoreDir: t.TempDir(),
		DisableJetStreamBanner: true, NoLog: true, NoSigs: true,
	}}
}

func (r *restartable) start() {
	r.t.Helper()
	o := r.opts
	r.server = run(r.t, &o)
}

// bus returns a bus whose connection survives a restart of the server.
func (r *restartable) bus() *bus.Bus {
	r.t.Helper()
	nc, err := bus.Dial(bus.DialOptions{URL: r.url, Name: r.t.Name(), Log: logger(r.t)})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(nc.Close)
	return newBus(r.t, nc, bus.Options{})
}

func (r *restartable) stop() {
	r.server.Shutdown()
	r.server.WaitForShutdown()
}
