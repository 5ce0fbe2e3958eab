// Package bus carries api messages over NATS. It is the one place that speaks
// nats.go: it owns streams and consumers, acknowledgement and retries, bounded
// pools, streamed replies, the compare-and-set bucket, trace context in headers,
// and the wire form of errors. It must not know what any message means.
//
// A service sees routes ([On], [Reply], [Stream], [Go]), [Call], [Bus.Publish]
// and [Bucket], and never a nats type. The traps that shaped it are listed in
// docs/adr/0004-the-bus.md.
package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/anima-run/anima/pkg/api"
)

// Bus is one service's connection to the others. It is safe for concurrent use.
type Bus struct {
	opts   Options
	conn   *Conn
	log    *slog.Logger
	tracer trace.Tracer
	tel    instruments
	names  nameCache

	allowed []string // what the service may publish; nil: everything

	mu           sync.Mutex
	installation string // see [Bus.Installation]

	line     *line                         // on the link of now
	controls map[string]context.CancelFunc // streamed replies under way, by reply subject
}

// Options of a bus.
type Options struct {
	Service  string // name in discovery, durables and spans; a subject token
	Version  string // semantic version, shown by discovery; "" means 0.0.0
	Instance string // tells replicas apart; "" means a fresh one
	// Installation is the id of a data folder that one process at a time uses, together
	// with the NATS server in it; "" where processes share a server. See [Bus.Owner].
	Installation string
	Log          *slog.Logger
	Tracer       trace.TracerProvider // nil: no spans
	Meter        metric.MeterProvider // nil: no metrics
	Replicas     int                  // of streams and the bucket; 0 means 1
	// Guarded refuses at once what the servers of a cluster would refuse without a
	// word: to send what [api.AccessOf] does not list for the service.
	Guarded bool
	// Quiet is called while draining, when no message is in hand any more, and
	// returns when the other services of the process are as far, or its context
	// ends: until then questions are answered. nil: at once.
	Quiet func(context.Context)

	// AliveEvery is how often a working server of a [Stream] says so; three
	// missed signs end the call, so that a dead server costs seconds and not the
	// deadline. 0 means 2 s; callers and servers must agree.
	AliveEvery time.Duration
}

// New returns the bus of one service on a connection made by [Dial]. The
// connection may be shared and stays the caller's to close.
func New(conn *Conn, o Options) (*Bus, error) {
	if o.Version == "" {
		o.Version = "0.0.0"
	}
	if o.Instance == "" {
		o.Instance = nats.NewInbox()[len(nats.InboxPrefix):]
	}
	if o.AliveEvery == 0 {
		o.AliveEvery = 2 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Replicas == 0 {
		o.Replicas = 1
	}
	if o.Tracer == nil {
		o.Tracer = tracenoop.NewTracerProvider()
	}
	if o.Meter == nil {
		o.Meter = metricnoop.NewMeterProvider()
	}
	tel, err := newInstruments(o.Meter)
	if err != nil {
		return nil, err
	}
	b := &Bus{
		opts: o, conn: conn, log: o.Log, tel: tel,
		tracer:   o.Tracer.Tracer("github.com/anima-run/anima/pkg/bus"),
		controls: map[string]context.CancelFunc{}, installation: o.Installation,
	}
	if o.Guarded {
		b.allowed = publishOf(o.Service)
	}
	l := conn.hold()
	defer l.release()
	b.line, err = b.newLine(l)
	return b, err
}

// Close ends the bus's own subscriptions. The connection stays open.
func (b *Bus) Close() {
	ln := b.use()
	defer ln.release()
	ln.mux.close()
}

// Instance tells this replica from the others of its service.
func (b *Bus) Instance() string { return b.opts.Instance }

// Owner is the name under which this replica takes locks and leases: the instance,
// after the installation if there is one. [api.Predecessor] compares two of them.
func (b *Bus) Owner() string { return api.OwnerName(b.opts.Installation, b.opts.Instance) }

// Ensure creates what the contracts need: streams and the coordination bucket.
// It is idempotent and every service calls it, so no order of start matters.
func (b *Bus) Ensure(ctx context.Context) error {
	for _, cfg := range b.streams() {
		if err := b.ensure(ctx, cfg, true); err != nil {
			return err
		}
	}
	return nil
}

// ensure makes a stream, or brings it up to date; label gives it the installation's
// id if it has none.
func (b *Bus) ensure(ctx context.Context, cfg jetstream.StreamConfig, label bool) error {
	for patience := time.Second; ; patience = min(2*patience, callTimeout) {
		// A try of its own length: without a leader the servers say nothing at all.
		once, cancel := context.WithTimeout(ctx, patience)
		err := b.ensureOnce(once, cfg, label)
		cancel()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("stream %s: %w", cfg.Name, err)
		case !passing(err):
			return fmt.Errorf("stream %s: %w", cfg.Name, err)
		}
		// JetStream has no leader yet, or the server is away: wait, the order of
		// start is nobody's business.
		if err := pause(ctx, 200*time.Millisecond); err != nil {
			return fmt.Errorf("stream %s: %w", cfg.Name, err)
		}
	}
}

func (b *Bus) ensureOnce(ctx context.Context, cfg jetstream.StreamConfig, label bool) error {
	if label {
		if err := b.label(ctx, &cfg); err != nil {
			return err
		}
	}
	ln := b.use()
	defer ln.release()
	if label && cfg.Name == coordination && b.opts.Installation == "" {
		// Not over the id of a service that was first.
		_, err := ln.js.CreateStream(ctx, cfg)
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			if err = b.takeID(ctx, &cfg); err == nil {
				_, err = ln.js.UpdateStream(ctx, cfg)
			}
		}
		return err
	}
	_, err := ln.js.CreateOrUpdateStream(ctx, cfg)
	return err
}

// takeID takes over the id of the coordination bucket, which is there.
func (b *Bus) takeID(ctx context.Context, cfg *jetstream.StreamConfig) error {
	have, derived, err := b.idOf(ctx, cfg.Name)
	switch {
	case err != nil:
		return err
	case have == "" && derived == "":
		return jetstream.ErrStreamNotFound // of a leader that is behind: again
	case have == "":
		have = derived
	}
	b.mu.Lock()
	b.installation = have
	b.mu.Unlock()
	cfg.Metadata = map[string]string{installationKey: have}
	return nil
}

// passing reports errors of a cluster that is starting or moving.
func passing(err error) bool {
	if e, ok := errors.AsType[*jetstream.APIError](err); ok {
		return e.Code == 503 || e.ErrorCode == jetstream.JSErrCodeStreamNotFound || e.ErrorCode == codeNoPeers
	}
	return errors.Is(err, nats.ErrTimeout) || errors.Is(err, nats.ErrNoResponders) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, jetstream.ErrJetStreamNotEnabled) ||
		errors.Is(err, jetstream.ErrNoStreamResponse) || errors.Is(err, nats.ErrConnectionReconnecting)
}

// Connected reports whether the connection is up, for readiness.
func (b *Bus) Connected() bool { return b.conn.Connected() }

// pause waits for d or until ctx ends, and says whether ctx has ended.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
	return ctx.Err()
}
