package bus_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
)

type (
	complete = func(context.Context, api.Complete, func(api.Delta) error) (api.Completion, error)
)

func ask(ctx context.Context, b *bus.Bus, id string, delta func(api.Delta) error) (api.Completion, error) {
	return bus.CallStream[api.Delta, api.Completion](ctx, b, api.Complete{ID: id}, delta)
}

// quick makes keep-alives frequent, so that a silent server is detected soon.
var quick = bus.Options{AliveEvery: 100 * time.Millisecond}

func quickPair(t *testing.T, f complete) (caller *bus.Bus, server *serving, serverConn *nats.Conn) {
	t.Helper()
	s := startServer(t)
	nc := connect(t, s)
	server = serve(t, newBus(t, nc, quick), patience, bus.Stream(f))
	o := quick
	o.Service = "caller"
	return newBus(t, connect(t, s), o), server, nc.NATS()
}

func TestStreamInOrder(t *testing.T) {
	t.Parallel()
	caller, _, _ := quickPair(t, func(_ context.Context, r api.Complete, send func(api.Delta) error) (api.Completion, error) {
		for n := range 300 {
			if err := send(api.Delta{Content: r.ID + "/" + strconv.Itoa(n)}); err != nil {
				return api.Completion{}, err
			}
		}
		return api.Completion{Text: r.ID}, nil
	})
	ctx := testContext(t)
	var all sync.WaitGroup
	for i := range 8 { // concurrently, over the shared subscription
		all.Go(func() {
			id, n := fmt.Sprint(i), 0
			got, err := ask(ctx, caller, id, func(d api.Delta) error {
				if want := id + "/" + strconv.Itoa(n); d.Content != want {
					return fmt.Errorf("delta %q, want %q", d.Content, want)
				}
				n++
				return nil
			})
			if err != nil || got.Text != id || n != 300 {
				t.Errorf("call %s: %+v, %v, %d deltas", id, got, err, n)
			}
		})
	}
	all.Wait()
}

func TestStreamErrors(t *testing.T) {
	t.Parallel()
	caller, _, _ := quickPair(t, func(_ context.Context, r api.Complete, send func(api.Delta) error) (api.Completion, error) {
		if r.ID != "early" {
			if err := send(api.Delta{Content: "so far"}); err != nil {
				return api.Completion{}, err
			}
		}
		if r.ID == "panic" {
			panic("oh")
		}
		return api.Completion{}, &api.Error{Code: api.Unavailable, Reason: api.ReasonProvider, Message: "it broke", RetryAfter: 7}
	})
	for id, want := range map[string]struct {
		deltas int
		code   api.Code
		reason string
	}{
		"early": {0, api.Unavailable, api.ReasonProvider},
		"late":  {1, api.Unavailable, api.ReasonProvider},
		"panic": {1, api.Internal, ""},
	} {
		deltas := 0
		_, err := ask(testContext(t), caller, id, func(api.Delta) error { deltas++; return nil })
		wantCode(t, err, want.code, want.reason)
		if deltas != want.deltas {
			t.Errorf("%s: %d deltas, want %d", id, deltas, want.deltas)
		}
	}
}

func TestStreamIsCancelledByItsCaller(t *testing.T) {
	t.Parallel()
	stopped := make(chan error, 3)
	caller, _, _ := quickPair(t, func(ctx context.Context, _ api.Complete, send func(api.Delta) error) (api.Completion, error) {
		if err := send(api.Delta{Content: "first"}); err != nil {
			return api.Completion{}, err
		}
		<-ctx.Done()
		stopped <- send(api.Delta{Content: "after the end"})
		return api.Completion{}, ctx.Err()
	})

	ctx, cancel := context.WithCancel(t.Context())
	_, err := ask(ctx, caller, "cancel", func(api.Delta) error { cancel(); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	if err := wait(t, stopped, "the server to stop"); err == nil {
		t.Error("send to a caller who has gone succeeded")
	}

	errEnough := errors.New("enough")
	_, err = ask(testContext(t), caller, "refuse", func(api.Delta) error { return errEnough })
	if !errors.Is(err, errEnough) {
		t.Errorf("got %v, want %v", err, errEnough)
	}
	if err := wait(t, stopped, "the server to stop after its delta was refused"); err == nil {
		t.Error("send succeeded after a delta was refused")
	}

	ctx, cancel = context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, err = ask(ctx, caller, "deadline", func(api.Delta) error { return nil })
	wantCode(t, err, api.Unavailable, "")
	if err := wait(t, stopped, "the server to stop after the deadline"); err == nil {
		t.Error("send succeeded after the deadline")
	}
}

// TestStreamIsCancelledDuringTheDrain checks that a caller can cancel an answer of a server
// that takes no more requests.
func TestStreamIsCancelledDuringTheDrain(t *testing.T) {
	t.Parallel()
	began, draining, stopped := make(chan struct{}), make(chan struct{}), make(chan struct{})
	s := startServer(t)
	server := newBus(t, connect(t, s), quick)
	o := quick
	o.Service = "caller"
	caller := newBus(t, connect(t, s), o)
	served := serve(t, server, patience, bus.Stream(func(ctx context.Context, _ api.Complete, send func(api.Delta) error) (api.Completion, error) {
		close(began)
		<-ctx.Done()
		close(stopped)
		return api.Completion{}, ctx.Err()
	}), bus.Go(func(ctx context.Context) error {
		<-ctx.Done() // after the end of the subscriptions
		close(draining)
		return nil
	}))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { _, err := ask(ctx, caller, "x", nil); done <- err }()
	wait(t, began, "the server")
	served.cancel()
	wait(t, draining, "the drain")
	cancel()
	if err := wait(t, done, "the cancelled call"); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	wait(t, stopped, "the server to stop")
	if err := served.wait(); err != nil {
		t.Error(err)
	}
}

// TestStreamIsCancelledByACallerItNeverHeardOf checks that a caller that gave up before
// the server's first message still stops the server.
func TestStreamIsCancelledByACallerItNeverHeardOf(t *testing.T) {
	t.Parallel()
	began, stopped := make(chan struct{}), make(chan struct{})
	s := startServer(t)
	ncServer := connect(t, s)
	server := newBus(t, ncServer, quick)
	o := quick
	o.Service = "caller"
	caller := newBus(t, connect(t, s), o)

	// A proxy holds the request back until its caller has given up.
	var question *nats.Msg
	held := make(chan struct{})
	middle := connect(t, s).NATS()
	sub, err := middle.Subscribe(api.Complete{}.Subject().String(), func(m *nats.Msg) { question = m; close(held) })
	if err != nil {
		t.Fatal(err)
	}
	if err := middle.Flush(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { _, err := ask(ctx, caller, "x", nil); done <- err }()
	wait(t, held, "the question")
	cancel()
	_ = wait(t, done, "the cancelled call")
	if err := sub.Unsubscribe(); err != nil {
		t.Fatal(err)
	}
	serve(t, server, patience, bus.Stream(func(ctx context.Context, _ api.Complete, _ func(api.Delta) error) (api.Completion, error) {
		close(began)
		<-ctx.Done()
		close(stopped)
		return api.Completion{}, ctx.Err()
	}))
	if err := middle.PublishMsg(&nats.Msg{Subject: question.Subject, Reply: question.Reply, Data: question.Data, Header: question.Header}); err != nil {
		t.Fatal(err)
	}
	wait(t, began, "the server")
	wait(t, stopped, "the server to stop")
}

func TestStreamNoticesADeadServer(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	defer close(release)
	caller, _, nc := quickPair(t, func(_ context.Context, _ api.Complete, send func(api.Delta) error) (api.Completion, error) {
		if err := send(api.Delta{Content: "first"}); err != nil {
			return api.Completion{}, err
		}
		<-release
		return api.Completion{}, nil
	})
	ctx := testContext(t)
	_, err := ask(ctx, caller, "x", func(api.Delta) error { nc.Close(); return nil })
	wantCode(t, err, api.Unavailable, "")
	if ctx.Err() != nil {
		t.Error("noticed by the deadline only")
	}
}

// TestStreamAsksOthersBeforeItBegins checks that the request is repeated when the replica
// that took it does not send a keep-alive at once.
func TestStreamAsksOthersBeforeItBegins(t *testing.T) {
	t.Parallel()
	b, s := one(t)
	crash := dead(t, s, api.Complete{})
	o := quick
	o.Service = "caller"
	caller := newBus(t, connect(t, s), o)
	var asking sync.WaitGroup
	defer asking.Wait()
	asking.Go(func() {
		got, err := ask(testContext(t), caller, "x", func(api.Delta) error { return nil })
		if err != nil || got.Text != "answered" {
			t.Errorf("got %+v, %v", got, err)
		}
	})
	crash()
	serve(t, b, patience, bus.Stream(func(context.Context, api.Complete, func(api.Delta) error) (api.Completion, error) {
		return api.Completion{Text: "answered"}, nil
	}))
	asking.Wait() // before the server is stopped
}

func TestStreamWaitsForASlowServerAndASlowCaller(t *testing.T) {
	t.Parallel()
	long := 5 * quick.AliveEvery // longer than three keep-alive intervals
	linger := func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(long):
			return nil
		}
	}
	caller, _, _ := quickPair(t, func(ctx context.Context, r api.Complete, send func(api.Delta) error) (api.Completion, error) {
		if err := send(api.Delta{Content: "first"}); err != nil {
			return api.Completion{}, err
		}
		if r.ID == "slow server" {
			if err := linger(ctx); err != nil {
				return api.Completion{}, err
			}
		}
		return api.Completion{Text: "done"}, nil
	})
	for _, id := range []string{"slow server", "slow caller"} {
		got, err := ask(testContext(t), caller, id, func(api.Delta) error {
			if id == "slow caller" {
				return linger(t.Context())
			}
			return nil
		})
		if err != nil || got.Text != "done" {
			t.Errorf("%s: %+v, %v", id, got, err)
		}
	}
}

// TestStreamWithoutALostPiece loses deltas in the middle or at the end: the caller gets
// the answer, and the deltas before the loss.
func TestStreamWithoutALostPiece(t *testing.T) {
	t.Parallel()
	b, s := one(t)
	nc := connect(t, s)
	for name, c := range map[string]struct {
		row  []map[string]string
		want int
	}{
		"in the middle": {[]map[string]string{{"Anima-Seq": "0"}, {"Anima-Seq": "2"}, {"Anima-Seq": "3", "Anima-End": "1"}}, 1},
		"at the end":    {[]map[string]string{{"Anima-Seq": "0"}, {"Anima-Seq": "1"}, {"Anima-Seq": "3", "Anima-End": "1"}}, 2},
		"all":           {[]map[string]string{{"Anima-Seq": "1", "Anima-End": "1"}}, 0},
		"twice":         {[]map[string]string{{"Anima-Seq": "0"}, {"Anima-Seq": "0"}, {"Anima-Seq": "1", "Anima-End": "1"}}, 1},
	} {
		sub, err := nc.NATS().Subscribe(api.Complete{}.Subject().String(), func(m *nats.Msg) {
			for _, h := range c.row {
				r := nats.NewMsg(m.Reply)
				r.Data = []byte(`{"text":"whole"}`)
				for k, v := range h {
					r.Header.Set(k, v)
				}
				if err := nc.NATS().PublishMsg(r); err != nil {
					t.Error(err)
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := nc.NATS().Flush(); err != nil {
			t.Fatal(err)
		}
		n := 0
		got, err := ask(testContext(t), b, "x", func(api.Delta) error { n++; return nil })
		if err != nil || got.Text != "whole" || n != c.want {
			t.Errorf("%s: got %+v after %d pieces, %v; want the answer after %d", name, got, n, err, c.want)
		}
		if err := sub.Unsubscribe(); err != nil {
			t.Fatal(err)
		}
		if err := nc.NATS().Flush(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestStreamBurst checks that no delta is lost when the caller does not read until all of
// them have arrived.
func TestStreamBurst(t *testing.T) {
	t.Parallel()
	const pieces = 20_000
	sent := make(chan struct{})
	caller, _, _ := quickPair(t, func(_ context.Context, _ api.Complete, send func(api.Delta) error) (api.Completion, error) {
		defer close(sent)
		for range pieces {
			if err := send(api.Delta{Content: "x"}); err != nil {
				return api.Completion{}, err
			}
		}
		return api.Completion{Text: "done"}, nil
	})
	n := 0
	got, err := ask(testContext(t), caller, "burst", func(api.Delta) error {
		if n == 0 {
			<-sent
		}
		n++
		return nil
	})
	if err != nil || got.Text != "done" || n != pieces {
		t.Errorf("got %+v after %d pieces, %v; want all %d", got, n, err, pieces)
	}
}

func TestStreamBusy(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	b := newBus(t, connect(t, s), quick)
	taken, release := make(chan struct{}, 9), make(chan struct{})
	serve(t, b, patience, bus.Stream(func(context.Context, api.Complete, func(api.Delta) error) (api.Completion, error) {
		taken <- struct{}{}
		<-release
		return api.Completion{}, nil
	}, bus.Workers(1)))
	done := make(chan error, 2)
	call := func() { _, err := ask(testContext(t), b, "x", nil); done <- err }
	go call()
	wait(t, taken, "the first question")
	wantBusy(t, func(ctx context.Context) error { _, err := ask(ctx, b, "y", nil); return err })
	go call()
	close(release)
	for range 2 {
		if err := wait(t, done, "an answer"); err != nil {
			t.Error(err)
		}
	}
}

// TestStreamIsReadByItsCaller reads one delta and the answer. Of a second reply it reads
// one delta and calls Close, which cancels the server's handler.
func TestStreamIsReadByItsCaller(t *testing.T) {
	t.Parallel()
	read, gone := make(chan struct{}), make(chan struct{})
	caller, _, _ := quickPair(t, func(ctx context.Context, r api.Complete, send func(api.Delta) error) (api.Completion, error) {
		if err := send(api.Delta{Content: "one"}); err != nil {
			return api.Completion{}, err
		}
		if r.ID == "left" {
			<-ctx.Done()
			close(gone)
			return api.Completion{}, ctx.Err()
		}
		<-read
		return api.Completion{Text: "all"}, nil
	})
	ctx := testContext(t)
	s, err := bus.OpenStream[api.Delta, api.Completion](ctx, caller, api.Complete{ID: "whole"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if d, more, err := s.Next(ctx); err != nil || !more || d.Content != "one" {
		t.Fatalf("got piece %+v, more %v, %v", d, more, err)
	}
	close(read)
	if d, more, err := s.Next(ctx); err != nil || more || s.Answer().Text != "all" {
		t.Fatalf("got piece %+v, more %v, answer %+v, %v; want the answer", d, more, s.Answer(), err)
	}
	left, err := bus.OpenStream[api.Delta, api.Completion](ctx, caller, api.Complete{ID: "left"})
	if err != nil {
		t.Fatal(err)
	}
	if _, more, err := left.Next(ctx); err != nil || !more {
		t.Fatalf("got more %v, %v; want a piece", more, err)
	}
	left.Close()
	left.Close()
	select {
	case <-gone:
	case <-ctx.Done():
		t.Error("the server goes on for a caller that has closed")
	}
}

// TestStreamReadAfterClose tests that Next neither waits for a server after Close nor while
// Close is called, and that the server does not log an error. The caller would wait three
// hours for a keep-alive.
func TestStreamReadAfterClose(t *testing.T) {
	t.Parallel()
	s, gone := startServer(t), make(chan struct{}, 2)
	rarely := bus.Options{AliveEvery: time.Hour, Service: "caller"}
	var log bytes.Buffer
	logged := quick
	logged.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	server := serve(t, newBus(t, connect(t, s), logged), patience, bus.Stream(func(ctx context.Context, _ api.Complete, send func(api.Delta) error) (api.Completion, error) {
		if err := send(api.Delta{Content: "one"}); err != nil {
			return api.Completion{}, err
		}
		<-ctx.Done()
		gone <- struct{}{}
		return api.Completion{}, ctx.Err()
	}))
	caller, ctx := newBus(t, connect(t, s), rarely), testContext(t)
	for _, during := range []bool{false, true} {
		r, err := bus.OpenStream[api.Delta, api.Completion](ctx, caller, api.Complete{ID: "c"})
		if err != nil {
			t.Fatal(err)
		}
		if _, more, err := r.Next(ctx); err != nil || !more {
			t.Fatalf("got more %v, %v; want a piece", more, err)
		}
		next := make(chan error, 1)
		if during {
			go func() { _, _, err := r.Next(ctx); next <- err }()
			r.Close()
		} else {
			r.Close()
			_, _, err := r.Next(ctx)
			next <- err
		}
		if err := <-next; !errors.Is(err, context.Canceled) || ctx.Err() != nil {
			t.Errorf("closed during the read: %v: got %v, want %v before the test's deadline", during, err, context.Canceled)
		}
		wait(t, gone, "the end of the handler")
	}
	if err := server.stop(); err != nil {
		t.Fatal(err)
	}
	if log.Len() > 0 {
		t.Errorf("the server logged %q, want nothing", log.String())
	}
}
