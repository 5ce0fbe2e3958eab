package bus_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
)

func getAgent(ctx context.Context, b *bus.Bus, agent string) (api.Agent, error) {
	return bus.Call[api.Agent](ctx, b, api.GetAgent{Agent: agent})
}

func TestCallCarriesErrorsWhole(t *testing.T) {
	t.Parallel()
	b, s := one(t)
	full := &api.Error{
		Code: api.Denied, Reason: api.ReasonInsufficient, Message: "2 ¢ are missing,\nsorry", Next: "top up",
		Details: []string{"line 1: tools", "line 4: name"}, RetryAfter: 1500,
	}
	serve(t, b, patience, bus.Reply(func(_ context.Context, r api.GetAgent) (api.Agent, error) {
		switch r.Agent {
		case "denied":
			return api.Agent{}, fmt.Errorf("deep inside: %w", full)
		case "foreign":
			return api.Agent{}, errors.New("dial postgres://me:hunter2@db")
		case "late":
			return api.Agent{}, fmt.Errorf("write: %w", context.DeadlineExceeded)
		case "long":
			return api.Agent{}, api.Errorf(api.Conflict, "%s", strings.Repeat("é", 5000))
		}
		return api.Agent{ID: r.Agent, Description: "<&>"}, nil
	}))
	caller := newBus(t, connect(t, s), bus.Options{Service: "caller"})
	ctx := testContext(t)

	got, err := getAgent(ctx, caller, "lucky")
	if err != nil || got.ID != "lucky" || got.Description != "<&>" {
		t.Errorf("got %+v, %v", got, err)
	}
	_, err = getAgent(ctx, caller, "denied")
	var e *api.Error
	if !errors.As(err, &e) {
		t.Fatalf("got %v, want an api.Error", err)
	}
	if diff := cmp.Diff(full, e); diff != "" {
		t.Errorf("error (-want +got):\n%s", diff)
	}
	_, err = getAgent(ctx, caller, "late") // the work may have been done: Unavailable, so that the caller may retry
	wantCode(t, err, api.Unavailable, "")
	_, err = getAgent(ctx, caller, "foreign")
	wantCode(t, err, api.Internal, "")
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("foreign text crossed the wire: %v", err)
	}
	_, err = getAgent(ctx, caller, "long")
	wantCode(t, err, api.Conflict, "")

	// NATS tools and programs in other languages read the wire form.
	m, err := connect(t, s).NATS().RequestWithContext(ctx, api.GetAgent{}.Subject().String(), []byte(`{"agent":"denied"}`))
	if err != nil {
		t.Fatal(err)
	}
	if m.Header.Get(micro.ErrorCodeHeader) != "denied" || m.Header.Get(micro.ErrorHeader) != "2 ¢ are missing, sorry" {
		t.Errorf("headers %v", m.Header)
	}
	m, err = connect(t, s).NATS().RequestWithContext(ctx, api.GetAgent{}.Subject().String(), []byte(`nonsense`))
	if err != nil || m.Header.Get(micro.ErrorCodeHeader) != "invalid" {
		t.Errorf("nonsense: %v, %v", m, err)
	}
}

func TestCallUnderstandsForeignServices(t *testing.T) {
	t.Parallel()
	b, s := one(t)
	nc := connect(t, s).NATS()
	sub, err := nc.Subscribe(api.GetAgent{}.Subject().String(), func(m *nats.Msg) {
		r := nats.NewMsg(m.Reply)
		r.Header.Set(micro.ErrorCodeHeader, "not_found")
		r.Header.Set(micro.ErrorHeader, "who?")
		_ = m.RespondMsg(r)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sub.Unsubscribe() })
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	_, err = getAgent(testContext(t), b, "x")
	wantCode(t, err, api.NotFound, "")
}

// dead subscribes a replica that takes requests and never answers. crash waits until it
// has taken one, and unsubscribes it.
func dead(t *testing.T, s *server.Server, req api.Message) (crash func()) {
	t.Helper()
	nc, taken := connect(t, s).NATS(), make(chan struct{}, 8)
	sub, err := nc.Subscribe(req.Subject().String(), func(*nats.Msg) { taken <- struct{}{} })
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	return func() {
		<-taken
		if err := sub.Unsubscribe(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCallAsksOthers checks that Call repeats a request, long before the caller's
// deadline and with the same id, when the replica that took it has crashed.
func TestCallAsksOthers(t *testing.T) {
	t.Parallel()
	b, s := one(t)
	crash := dead(t, s, api.GetAgent{})
	requests, err := connect(t, s).NATS().SubscribeSync(api.GetAgent{}.Subject().String())
	if err != nil {
		t.Fatal(err)
	}
	caller := newBus(t, connect(t, s), bus.Options{Service: "caller"})
	began := time.Now()
	var asking sync.WaitGroup
	defer asking.Wait()
	asking.Go(func() {
		got, err := getAgent(testContext(t), caller, "lucky")
		if err != nil || got.ID != "lucky" {
			t.Errorf("got %+v, %v", got, err)
		}
	})
	crash()
	var id string
	var at int64
	serve(t, b, patience, bus.Reply(func(ctx context.Context, r api.GetAgent) (api.Agent, error) {
		id, at = bus.RequestID(ctx), bus.RequestedAt(ctx)
		return api.Agent{ID: r.Agent}, nil
	}))
	asking.Wait() // before the server is stopped
	if first, err := requests.NextMsg(patience); err != nil || id == "" || first.Header.Get("Anima-Request") != id {
		t.Errorf("the handler got the request %q, want the id of the first one, %v, %v", id, first, err)
	}
	if at < began.UnixMicro()-1 || at > time.Now().Add(-2*time.Second).UnixMicro() {
		t.Errorf("the handler got the time %d, want that of the first request, after %s", at, began)
	}
	if at := bus.RequestedAt(t.Context()); at != 0 {
		t.Errorf("outside of a handler: got the time %d, want 0", at)
	}
}

// TestOutdatedRequest checks that a replica which was paused does not execute a request
// whose caller has given up, that a difference between the clocks is permitted, and that the
// request of a caller without a time in its id is executed.
func TestOutdatedRequest(t *testing.T) {
	t.Parallel()
	b, s := one(t)
	executed := make(chan string, 10)
	serve(t, b, patience, bus.Reply(func(_ context.Context, r api.GetAgent) (api.Agent, error) {
		executed <- r.Agent
		return api.Agent{ID: r.Agent}, nil
	}))
	nc := connect(t, s).NATS()
	request := func(id string) *nats.Msg {
		t.Helper()
		m := nats.NewMsg(api.GetAgent{}.Subject().String())
		m.Data = []byte(`{"agent":"lucky"}`)
		m.Header.Set("Anima-Request", id)
		answer, err := nc.RequestMsgWithContext(testContext(t), m)
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	ago := func(d time.Duration) string {
		id := uuid.Must(uuid.NewV7())
		binary.BigEndian.PutUint64(id[:8], uint64(time.Now().Add(-d).UnixMilli())<<16|0x7000) //nolint:gosec // after 1970
		return id.String()
	}
	for _, id := range []string{ago(0), ago(280 * time.Second), ago(-time.Hour), uuid.NewString(), "of another release", ""} {
		if m := request(id); m.Header.Get(micro.ErrorCodeHeader) != "" || wait(t, executed, "the request") != "lucky" {
			t.Errorf("request %q was not executed: %v", id, m.Header)
		}
	}
	for _, d := range []time.Duration{305 * time.Second, 24 * time.Hour} {
		m := request(ago(d))
		if m.Header.Get(micro.ErrorCodeHeader) != "unavailable" || m.Header.Get("Anima-Refused") == "" || !strings.Contains(string(m.Data), "clock") {
			t.Errorf("request of %s ago: got %v %s, want that it is refused", d, m.Header, m.Data)
		}
	}
	if len(executed) > 0 {
		t.Error("an outdated request was executed")
	}
}

func TestBusyPoolRefusesAndCallTriesAgain(t *testing.T) {
	t.Parallel()
	b, s := one(t)
	const workers, callers = 3, 24
	var inHand, most, total atomic.Int64
	taken, release := make(chan struct{}, callers), make(chan struct{})
	serve(t, b, patience, bus.Reply(func(_ context.Context, r api.GetAgent) (api.Agent, error) {
		n := inHand.Add(1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		taken <- struct{}{}
		<-release
		inHand.Add(-1)
		total.Add(1)
		return api.Agent{ID: r.Agent}, nil
	}, bus.Workers(workers)))
	caller := newBus(t, connect(t, s), bus.Options{Service: "caller"})
	ctx := testContext(t)
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			id := fmt.Sprint(i)
			if a, err := getAgent(ctx, caller, id); err != nil || a.ID != id {
				t.Errorf("call %s: %+v, %v", id, a, err)
			}
		})
	}
	for range workers {
		wait(t, taken, "a worker to be taken")
	}
	// Every worker is busy: a single request without retries is refused at once.
	m, err := connect(t, s).NATS().RequestWithContext(ctx, api.GetAgent{}.Subject().String(), []byte(`{}`))
	if err != nil || m.Header.Get(micro.ErrorCodeHeader) != "unavailable" {
		t.Errorf("with a full pool: %v, %v", m, err)
	}
	wantBusy(t, func(ctx context.Context) error { _, err := getAgent(ctx, caller, "late"); return err })
	close(release)
	all.Wait()
	if most.Load() != workers || total.Load() != callers {
		t.Errorf("at most %d at a time, %d in all; want %d and %d", most.Load(), total.Load(), workers, callers)
	}
}

// TestBusyBehindAHandlerIsNotAskedAgain checks that a request is not repeated when its
// handler returns ReasonBusy of another service: the handler was started, and a repeated
// request might do its work twice.
func TestBusyBehindAHandlerIsNotAskedAgain(t *testing.T) {
	t.Parallel()
	b, _ := one(t)
	var calls atomic.Int64
	busy := &api.Error{Code: api.Unavailable, Reason: api.ReasonBusy, Message: "the provider is busy"}
	serve(t, b, patience, bus.Reply(func(context.Context, api.GetAgent) (api.Agent, error) {
		calls.Add(1)
		return api.Agent{}, busy
	}))
	_, err := getAgent(testContext(t), b, "lucky")
	wantCode(t, err, api.Unavailable, api.ReasonBusy)
	if calls.Load() != 1 {
		t.Errorf("asked %d times, want once", calls.Load())
	}
}

func TestSlowQuestionsDoNotBlockQuickOnes(t *testing.T) {
	t.Parallel()
	b, _ := one(t)
	slow, release := make(chan struct{}), make(chan struct{})
	serve(t, b, patience, bus.Reply(func(_ context.Context, r api.GetAgent) (api.Agent, error) {
		if r.Agent == "slow" {
			close(slow)
			<-release
		}
		return api.Agent{}, nil
	}))
	done := make(chan error, 1)
	go func() { _, err := getAgent(testContext(t), b, "slow"); done <- err }()
	wait(t, slow, "the slow question")
	if _, err := getAgent(testContext(t), b, "quick"); err != nil {
		t.Error(err)
	}
	close(release)
	if err := wait(t, done, "the slow answer"); err != nil {
		t.Error(err)
	}
}

// wantNobody checks that a call fails with ReasonNoAnswer.
func wantNobody(t *testing.T, b *bus.Bus) {
	t.Helper()
	wantInTime(t, api.ReasonNoAnswer, func(ctx context.Context) error { _, err := getAgent(ctx, b, "lucky"); return err })
}

func wantBusy(t *testing.T, ask func(context.Context) error) {
	t.Helper()
	wantInTime(t, api.ReasonBusy, ask)
}

// wantInTime checks that ask fails for a reason when its deadline has passed. If the
// deadline passes while a request is in flight, Call cannot give a reason, so ask is
// repeated.
func wantInTime(t *testing.T, reason string, ask func(context.Context) error) {
	t.Helper()
	var err error
	for range 10 {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		err = ask(ctx)
		cancel()
		if api.ReasonOf(err) == reason {
			break
		}
	}
	wantCode(t, err, api.Unavailable, reason)
}

func TestCallWaitsForALateServer(t *testing.T) {
	t.Parallel()
	b, s := one(t)
	wantNobody(t, b)
	ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	<-ctx.Done()
	_, err := bus.CallStream[api.Delta, api.Completion](ctx, b, api.Complete{}, nil)
	wantCode(t, err, api.Unavailable, "") // the deadline had passed before the call

	plain, streamed := make(chan error, 1), make(chan error, 1)
	go func() { _, err := getAgent(testContext(t), b, "lucky"); plain <- err }()
	go func() {
		_, err := bus.CallStream[api.Delta, api.Completion](testContext(t), b, api.Complete{}, func(api.Delta) error { return nil })
		streamed <- err
	}()
	quiet(t, plain, 50*time.Millisecond, "an answer without a server")
	serve(t, newBus(t, connect(t, s), bus.Options{}), patience,
		bus.Reply(func(context.Context, api.GetAgent) (api.Agent, error) { return api.Agent{}, nil }),
		bus.Stream(func(context.Context, api.Complete, func(api.Delta) error) (api.Completion, error) {
			return api.Completion{}, nil
		}),
	)
	if err := wait(t, plain, "the answer"); err != nil {
		t.Error(err)
	}
	if err := wait(t, streamed, "the streamed answer"); err != nil {
		t.Error(err)
	}
}

func TestCallEndsWithItsContext(t *testing.T) {
	t.Parallel()
	b, _ := one(t)
	taken, release := make(chan struct{}, 2), make(chan struct{})
	defer close(release)
	serve(t, b, patience, bus.Reply(func(context.Context, api.GetAgent) (api.Agent, error) {
		taken <- struct{}{}
		<-release
		return api.Agent{}, nil
	}))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { _, err := getAgent(ctx, b, "lucky"); done <- err }()
	wait(t, taken, "the question")
	cancel()
	if err := wait(t, done, "the cancelled call"); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := getAgent(ctx, b, "lucky")
	wantCode(t, err, api.Unavailable, "") // taken, so not ReasonNoAnswer: the work may have been done
}

// TestRollingRestartLosesNoQuestion checks that callers get no error while one replica
// drains and others serve.
func TestRollingRestartLosesNoQuestion(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	caller := newBus(t, connect(t, s), bus.Options{Service: "caller"})
	answer := bus.Reply(func(_ context.Context, r api.GetAgent) (api.Agent, error) { return api.Agent{ID: r.Agent}, nil }, bus.Workers(4))
	replica := func() *serving {
		return serve(t, newBus(t, connect(t, s), bus.Options{}), patience, answer)
	}
	ctx := testContext(t)
	running := replica()
	var asked atomic.Int64
	over := make(chan struct{})
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
				}
				id := fmt.Sprint(asked.Add(1))
				if a, err := getAgent(ctx, caller, id); err != nil || a.ID != id {
					t.Errorf("question %s: %+v, %v", id, a, err)
					return
				}
			}
		})
	}
	for range 5 {
		next := replica()
		if err := running.stop(); err != nil {
			t.Errorf("Serve: %v", err)
		}
		running = next
	}
	close(over)
	callers.Wait()
	t.Logf("%d questions", asked.Load())
}

func TestDiscoverySeesTheService(t *testing.T) {
	t.Parallel()
	b, s := one(t)
	serve(t, b, patience, bus.Reply(func(context.Context, api.GetAgent) (api.Agent, error) { return api.Agent{}, nil }))
	m, err := connect(t, s).NATS().RequestWithContext(testContext(t), "$SRV.INFO.loop", nil)
	if err != nil {
		t.Fatal(err)
	}
	var info micro.Info
	if err := api.Decode(m.Data, &info); err != nil {
		t.Fatal(err)
	}
	if len(info.Endpoints) != 1 || info.Endpoints[0].Subject != "anima.loop.req.get_agent.v1" || info.Metadata["instance"] != b.Instance() {
		t.Errorf("info %+v", info)
	}
}
