package bus_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
)

// The benchmarks alternate between the bus and bare NATS in one run, and report the ratio
// of the times. The goal is at most 2 (docs/reference/platform.md, Goals of speed).

// links are the two ways to reach a server.
var links = map[string]func(b *testing.B, s *server.Server) *bus.Conn{
	"embedded": func(b *testing.B, s *server.Server) *bus.Conn { return connect(b, s) },
	"loopback": func(b *testing.B, s *server.Server) *bus.Conn {
		nc, err := bus.Dial(bus.DialOptions{URL: s.ClientURL(), Name: b.Name(), Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(nc.Close)
		return nc
	},
}

func overLinks(b *testing.B, f func(b *testing.B, server, client *bus.Conn)) {
	for _, name := range []string{"embedded", "loopback"} {
		b.Run(name, func(b *testing.B) {
			s := startServer(b, listen)
			f(b, links[name](b, s), links[name](b, s))
		})
	}
}

// beside runs ours b.N times and bare as often, alternating in slices, so that other load
// on the machine affects both.
func beside(b *testing.B, ours, bare func(n int)) {
	b.Helper()
	ours(min(b.N, 100)) // warm up
	bare(min(b.N, 100))
	var tOurs, tBare time.Duration
	b.ReportAllocs()
	b.ResetTimer()
	for left := b.N; left > 0; {
		n := min(left, 500)
		left -= n
		began := time.Now()
		ours(n)
		tOurs += time.Since(began)
		b.StopTimer()
		began = time.Now()
		bare(n)
		tBare += time.Since(began)
		b.StartTimer()
	}
	b.StopTimer()
	b.ReportMetric(float64(tBare.Nanoseconds())/float64(b.N), "bare-ns/op")
	b.ReportMetric(float64(tOurs)/float64(tBare), "ratio")
}

func BenchmarkCall(b *testing.B) {
	overLinks(b, func(b *testing.B, sc, cc *bus.Conn) {
		serve(b, newBus(b, sc, bus.Options{}), patience, bus.Reply(func(_ context.Context, r api.GetBalance) (api.Balance, error) {
			return api.Balance{Agent: r.Agent, Available: 991_000, Held: 9_000, Tier: api.TierHigh}, nil
		}))
		ask, err := api.Encode(api.GetBalance{Agent: "lucky"})
		if err != nil {
			b.Fatal(err)
		}
		answer, err := api.Encode(api.Balance{Agent: "lucky", Available: 991_000, Held: 9_000, Tier: api.TierHigh})
		if err != nil {
			b.Fatal(err)
		}
		sub, err := sc.NATS().Subscribe("bare", func(m *nats.Msg) { _ = m.Respond(answer) })
		if err != nil {
			b.Fatal(err)
		}
		defer func() { _ = sub.Unsubscribe() }()
		if err := sc.NATS().Flush(); err != nil {
			b.Fatal(err)
		}
		caller := newBus(b, cc, bus.Options{Service: "caller"})
		ctx, cancel := context.WithTimeout(b.Context(), time.Hour)
		defer cancel()
		beside(b, func(n int) {
			for range n {
				if _, err := bus.Call[api.Balance](ctx, caller, api.GetBalance{Agent: "lucky"}); err != nil {
					b.Fatal(err)
				}
			}
		}, func(n int) {
			for range n {
				if _, err := cc.NATS().RequestWithContext(ctx, "bare", ask); err != nil {
					b.Fatal(err)
				}
			}
		})
	})
}

func BenchmarkPublish(b *testing.B) {
	overLinks(b, func(b *testing.B, _, cc *bus.Conn) {
		ours := newBus(b, cc, bus.Options{})
		js, err := jetstream.New(cc.NATS())
		if err != nil {
			b.Fatal(err)
		}
		m := changed("lucky", 1)
		data, err := api.Encode(m)
		if err != nil {
			b.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(b.Context(), time.Hour)
		defer cancel()
		next := 0
		beside(b, func(n int) {
			for range n {
				next++
				if err := ours.Publish(ctx, fmt.Sprint("ours/", next), m); err != nil {
					b.Fatal(err)
				}
			}
		}, func(n int) {
			for range n {
				next++
				if _, err := js.Publish(ctx, m.Subject().String(), data, jetstream.WithMsgID(fmt.Sprint("bare/", next))); err != nil {
					b.Fatal(err)
				}
			}
		})
	})
}

// BenchmarkHandle measures the time from the publish of a command to the acknowledgement
// by its handler.
func BenchmarkHandle(b *testing.B) {
	overLinks(b, func(b *testing.B, sc, cc *bus.Conn) {
		ours := newBus(b, cc, bus.Options{})
		done := make(chan struct{}, 1)
		serve(b, newBus(b, sc, bus.Options{}), patience, bus.On(func(context.Context, api.Run) error {
			done <- struct{}{}
			return nil
		}, bus.ConsumerOptions{Workers: 16, InOrder: true}))
		ctx, cancel := context.WithTimeout(b.Context(), time.Hour)
		defer cancel()
		b.ReportAllocs()
		for n := 0; b.Loop(); n++ {
			if err := ours.Publish(ctx, fmt.Sprint(n), api.Run{Session: fmt.Sprint("s", n%8)}); err != nil {
				b.Fatal(err)
			}
			<-done
		}
	})
}

// BenchmarkProject measures how fast a projection reads stored events.
func BenchmarkProject(b *testing.B) {
	overLinks(b, func(b *testing.B, sc, cc *bus.Conn) {
		ours := newBus(b, cc, bus.Options{})
		ctx, cancel := context.WithTimeout(b.Context(), time.Hour)
		defer cancel()
		posts := ours.Async()
		for n := range b.N {
			if err := posts.Publish(ctx, fmt.Sprint(n), changed("lucky", int64(n))); err != nil {
				b.Fatal(err)
			}
			if n%1000 == 999 || n == b.N-1 {
				if err := posts.Wait(ctx); err != nil {
					b.Fatal(err)
				}
			}
		}
		reader := newBus(b, sc, bus.Options{})
		done := make(chan struct{})
		seen := 0
		b.ReportAllocs()
		b.ResetTimer()
		serve(b, reader, patience, bus.On(func(context.Context, api.AgentChanged) error {
			if seen++; seen == b.N {
				close(done)
			}
			return nil
		}))
		<-done
		b.StopTimer()
	})
}

// BenchmarkStream compares a streamed answer of 50 deltas with the same messages over a
// bare subscription.
func BenchmarkStream(b *testing.B) {
	const pieces = 50
	overLinks(b, func(b *testing.B, sc, cc *bus.Conn) {
		d := api.Delta{Content: "a few words "}
		serve(b, newBus(b, sc, bus.Options{}), patience,
			bus.Stream(func(_ context.Context, _ api.Complete, send func(api.Delta) error) (api.Completion, error) {
				for range pieces {
					if err := send(d); err != nil {
						return api.Completion{}, err
					}
				}
				return api.Completion{Text: "done"}, nil
			}))
		data, err := api.Encode(d)
		if err != nil {
			b.Fatal(err)
		}
		sub, err := sc.NATS().Subscribe("bare", func(m *nats.Msg) {
			for range pieces + 1 {
				_ = sc.NATS().Publish(m.Reply, data)
			}
		})
		if err != nil {
			b.Fatal(err)
		}
		defer func() { _ = sub.Unsubscribe() }()
		if err := sc.NATS().Flush(); err != nil {
			b.Fatal(err)
		}
		inbox, c := cc.NATS().NewInbox(), make(chan *nats.Msg, 1024)
		replies, err := cc.NATS().ChanSubscribe(inbox, c)
		if err != nil {
			b.Fatal(err)
		}
		defer func() { _ = replies.Unsubscribe() }()
		caller := newBus(b, cc, bus.Options{Service: "caller"})
		ctx, cancel := context.WithTimeout(b.Context(), time.Hour)
		defer cancel()
		beside(b, func(n int) {
			for range n {
				got := 0
				if _, err := ask(ctx, caller, "x", func(api.Delta) error { got++; return nil }); err != nil || got != pieces {
					b.Fatal(err, got)
				}
			}
		}, func(n int) {
			for range n {
				if err := cc.NATS().PublishRequest("bare", inbox, nil); err != nil {
					b.Fatal(err)
				}
				for range pieces + 1 {
					<-c
				}
			}
		})
	})
}
