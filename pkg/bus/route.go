package bus

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/anima-run/anima/pkg/api"
)

// A Route connects one type of message to one handler, or runs a task while the service
// is served. A service is a list of routes; see [Bus.Serve].
type Route func(*server) error

// server is the state that the routes share while they are served.
type server struct {
	bus  *Bus
	work context.Context //nolint:containedctx // the lifetime of the served routes, longer than one call
	fail context.CancelCauseFunc

	client    *client     // requests are received on it
	at        *attachment // the subscriptions on client
	endpoints []served
	moving    sync.WaitGroup // goroutines that follow the connection to another server

	// Consumers are stopped first: their handlers may call this service, or another
	// service of the process, which must still answer.
	consumers []func()       // stop taking messages
	consuming sync.WaitGroup // deliveries in progress
	stops     []func()       // stop everything else, in this order

	mu    sync.Mutex
	shut  bool           // no new task is started
	tasks sync.WaitGroup // handlers and loops in progress
}

// attachment holds the subscriptions of a server on one client.
type attachment struct {
	svc     micro.Service
	control *nats.Subscription
}

// served is one type of request and its handler.
type served struct {
	subject api.Subject
	handle  func(*client, micro.Request)
}

// begin runs f as a task and returns true. It returns false when the server is shut: a
// request that was buffered during the stop must not start work that Serve does not wait
// for.
func (s *server) begin(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shut {
		return false
	}
	s.tasks.Go(func() {
		growStack()
		f()
	})
	return true
}

// stackRoom is the stack that handlers need, in bytes; a statement of SQLite needs
// several KB. Together with the frames around it, the stack then has the largest size
// that the runtime caches.
const stackRoom = 10 << 10

// growStack grows the stack of a new goroutine to the size that handlers need, while it
// is empty. Otherwise the runtime would double it repeatedly and copy its frames each
// time.
//
//go:noinline
func growStack() {
	var room [stackRoom]byte
	runtime.KeepAlive(&room)
}

// Routes returns the routes as one, for a caller that offers several together.
func Routes(routes ...Route) Route {
	return func(s *server) error {
		for _, r := range routes {
			if err := r(s); err != nil {
				return err
			}
		}
		return nil
	}
}

// Serve runs the routes until ctx ends, then drains, for at most drain in all: it stops
// taking messages and waits for those in progress, waits for [Options.Quiet], stops
// taking requests and waits for the answers in progress. After that it cancels the
// contexts of handlers that still run. It calls ready once all routes are served. It
// returns an error if a route cannot be served or fails.
func (b *Bus) Serve(ctx context.Context, drain time.Duration, ready func(), routes ...Route) error {
	work, cancel := context.WithCancelCause(context.WithoutCancel(ctx)) // not cancelled with ctx, for the drain
	defer cancel(nil)
	s := &server{bus: b, work: work, fail: cancel, client: b.use()}
	defer func() { s.client.release() }()
	var err error
	if s.at, err = s.attach(s.client); err != nil {
		return err
	}
	// The caller of a streamed reply may cancel it until it has ended, also during the drain.
	defer func() { _ = s.at.control.Unsubscribe() }() // an error means that the connection is closed
	stay, settle := context.WithCancel(work)
	s.stops = append(s.stops, func() {
		settle()
		s.moving.Wait()
		s.leave(s.at)
	})
	defer s.tasks.Wait()
	defer s.consuming.Wait()
	defer cancel(nil)
	defer s.stop()
	if err := s.client.mux.open(); err != nil {
		return err
	}
	if err := Routes(routes...)(s); err != nil {
		return err
	}
	// Without the flush the first requests may find no responder.
	if err := s.client.nc.FlushWithContext(deadline(ctx)); err != nil && ctx.Err() == nil {
		return fmt.Errorf("flush: %w", err)
	}
	s.moving.Go(func() { s.follow(stay) })
	ready()
	select {
	case <-ctx.Done():
	case <-work.Done():
	}
	draining, over := context.WithTimeout(work, drain)
	defer over()
	done := make(chan struct{})
	go func() { defer close(done); s.drain(draining) }()
	select {
	case <-done:
	case <-draining.Done():
		if work.Err() == nil {
			b.log.Warn("drain time exceeded, returning unfinished messages", "drain", drain.String())
		}
	}
	cancel(nil)
	<-done
	if cause := context.Cause(work); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// attach subscribes to the requests of all endpoints on cl.
func (s *server) attach(cl *client) (*attachment, error) {
	b := s.bus
	svc, err := micro.AddService(cl.nc, micro.Config{
		Name: b.opts.Service, Version: b.opts.Version,
		Description: "anima " + b.opts.Service, Metadata: map[string]string{"instance": b.opts.Instance},
	})
	if err != nil {
		return nil, fmt.Errorf("discovery: %w", err)
	}
	control, err := cl.nc.Subscribe(b.controlSubject(), b.control)
	if err != nil {
		return nil, fmt.Errorf("control: %w", err)
	}
	for _, e := range s.endpoints {
		if err := attachOne(svc, cl, e); err != nil {
			return nil, err
		}
	}
	return &attachment{svc, control}, nil
}

func attachOne(svc micro.Service, cl *client, e served) error {
	err := svc.AddEndpoint(e.subject.Name, micro.HandlerFunc(func(r micro.Request) { e.handle(cl, r) }), micro.WithEndpointSubject(e.subject.String()))
	if err != nil {
		return fmt.Errorf("endpoint %s: %w", e.subject, err)
	}
	return nil
}

// leave takes no more requests from an attachment.
func (s *server) leave(at *attachment) {
	if err := at.svc.Stop(); err != nil {
		s.bus.log.Warn("discovery not stopped", "err", err)
	}
}

// follow moves the subscriptions to the current connection whenever it changes. It subscribes
// on the new one before it unsubscribes on the old one, so that no request finds no
// responder.
func (s *server) follow(stay context.Context) {
	for {
		select {
		case <-stay.Done():
			return
		case <-s.client.replaced.Done():
		}
		next := s.bus.use()
		at, err := s.attach(next)
		if err == nil {
			err = next.nc.FlushWithContext(deadline(stay))
		}
		if err != nil && stay.Err() == nil {
			s.bus.log.Error("requests not accepted on the new connection", "err", err)
			s.fail(err)
		}
		if err != nil {
			next.release()
			return
		}
		s.leave(s.at)
		_ = s.at.control.Unsubscribe() // the new attachment has another one
		old := s.client
		s.client, s.at = next, at
		old.release()
	}
}

// drain stops the routes in order and returns when everything has ended. When ctx ends it
// no longer waits for [Options.Quiet].
func (s *server) drain(ctx context.Context) {
	s.stopConsumers()
	s.consuming.Wait()
	if s.bus.opts.Quiet != nil {
		s.bus.opts.Quiet(ctx)
	}
	s.stop()
	s.tasks.Wait()
}

func (s *server) stopConsumers() {
	for _, f := range s.consumers {
		f()
	}
	s.consumers = nil
}

func (s *server) stop() {
	s.stopConsumers()
	for _, f := range s.stops {
		f()
	}
	s.stops = nil
	s.mu.Lock()
	s.shut = true
	s.mu.Unlock()
}

// deadline returns ctx with a timeout of [callTimeout], after which its resources are
// released.
func deadline(ctx context.Context) context.Context {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	context.AfterFunc(ctx, cancel)
	return ctx
}

// Go runs task while the service is served. The context of the task ends when the service
// stops. An error that task returns before that ends [Bus.Serve] with it.
func Go(task func(context.Context) error) Route {
	return func(s *server) error {
		ctx, cancel := context.WithCancel(s.work)
		s.stops = append(s.stops, cancel)
		s.tasks.Go(func() {
			if err := task(ctx); err != nil && ctx.Err() == nil {
				s.fail(err)
			}
		})
		return nil
	}
}
