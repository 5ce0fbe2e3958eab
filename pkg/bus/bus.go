// Package bus carries api messages over NATS. It is the only package that uses nats.go.
// It owns streams and consumers, acknowledgement and retries, bounded worker pools,
// streamed replies, the compare-and-set bucket, trace context in headers, and the wire
// form of errors. It must not depend on the meaning of any message.
//
// A service uses routes ([On], [Reply], [Stream], [Go]), [Call], [Bus.Publish] and
// [Bucket], and never a nats type. The pitfalls of NATS that the package handles are
// listed in docs/adr/0004-the-bus.md.
package bus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/wait"
)

// Bus is one service's access to the other services. It is safe for concurrent use.
type Bus struct {
	opts   Options
	conn   *Conn
	log    *slog.Logger
	tracer trace.Tracer
	tel    instruments
	names  nameCache

	allowed []pattern // subjects that the service may publish to; nil: all

	mu           sync.Mutex
	installation string // see [Bus.Installation]

	client   *client                       // on the current connection
	controls map[string]context.CancelFunc // streamed replies in progress, by reply subject
}

// Options are the options of [New].
type Options struct {
	Service  string // name in discovery, durables and spans; a subject token
	Version  string // semantic version, shown by discovery; "" means 0.0.0
	Instance string // id of this replica; "" means a random one
	// Installation is the id of a data folder that one process at a time uses, together
	// with the NATS server in it; "" where processes share a server. See [Bus.Owner].
	Installation string
	Log          *slog.Logger
	Tracer       trace.TracerProvider // nil: no spans
	Meter        metric.MeterProvider // nil: no metrics
	Replicas     int                  // number of replicas of the streams and the bucket; 0 means 1
	// Guarded makes the bus refuse, with an error, to publish to a subject that
	// [api.AccessOf] does not list for the service. The servers of a cluster would drop
	// such a message without an answer.
	Guarded bool
	// Quiet is called during a drain, after the last message of this service is settled.
	// It returns when the other services of the process have reached the same point, or
	// its context ends. Requests are answered until it returns. nil: no wait.
	Quiet func(context.Context)

	// AliveEvery is the interval at which the server of a [Stream] sends keep-alives. The
	// call ends after three intervals without a message, so that a crashed server costs
	// seconds instead of the caller's deadline. 0 means 2 s; callers and servers must use
	// the same value.
	AliveEvery time.Duration
}

// New returns the bus of one service on a connection made by [Dial]. Several buses may
// share the connection; the caller closes it.
func New(conn *Conn, o Options) (*Bus, error) {
	o.Version = cmp.Or(o.Version, "0.0.0")
	o.Instance = cmp.Or(o.Instance, strings.TrimPrefix(nats.NewInbox(), nats.InboxPrefix))
	o.AliveEvery = cmp.Or(o.AliveEvery, 2*time.Second)
	o.Replicas = cmp.Or(o.Replicas, 1)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
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
		if owner, ok := OwnerOf(o.Service); ok {
			b.allowed = patternsOf(PermissionsOf(owner).Publish)
		}
	}
	l := conn.hold()
	defer l.release()
	b.client, err = b.newClient(l)
	return b, err
}

// Close ends the bus's own subscriptions. The connection stays open.
func (b *Bus) Close() {
	cl := b.use()
	defer cl.release()
	cl.mux.close()
}

// Instance returns the id of this replica among those of its service.
func (b *Bus) Instance() string { return b.opts.Instance }

// Owner returns the name under which this replica takes locks and leases: the instance,
// prefixed by the installation if there is one. [api.Predecessor] compares two owners.
func (b *Bus) Owner() string { return api.OwnerName(b.opts.Installation, b.opts.Instance) }

// Ensure creates the streams and buckets of the contracts, or updates their
// configuration. It is idempotent and every service calls it, so services may start in
// any order. While JetStream has no leader or NATS cannot be reached, it retries until
// ctx ends.
func (b *Bus) Ensure(ctx context.Context) error {
	for _, cfg := range b.streams() {
		if err := b.ensure(ctx, cfg, true); err != nil {
			return err
		}
	}
	return nil
}

// ensure creates a stream, or updates its configuration if it differs. With label, a
// stream that has no installation id gets the bus's.
func (b *Bus) ensure(ctx context.Context, cfg jetstream.StreamConfig, label bool) error {
	for patience := time.Second; ; patience = min(2*patience, callTimeout) {
		// Each try has its own timeout: without a leader the servers do not answer.
		once, cancel := context.WithTimeout(ctx, patience)
		err := b.ensureOnce(once, cfg, label)
		cancel()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil, !temporary(err):
			return fmt.Errorf("stream %s: %w", cfg.Name, err)
		}
		// JetStream has no leader yet or cannot be reached. Retry: services and servers
		// may start in any order.
		if err := wait.For(ctx, 200*time.Millisecond); err != nil {
			return fmt.Errorf("stream %s: %w", cfg.Name, err)
		}
	}
}

// ensureOnce neither updates a stream that needs no update nor one that another service
// creates meanwhile: the first would cost each start of a service a write per stream, the
// second would overwrite the id of that service. An update at the time at which a consumer
// of the stream is created is also a data race in the server (2.15.2).
func (b *Bus) ensureOnce(ctx context.Context, cfg jetstream.StreamConfig, label bool) error {
	cl := b.use()
	defer cl.release()
	var have *jetstream.StreamInfo
	s, err := cl.js.Stream(ctx, cfg.Name)
	switch {
	case err == nil:
		have = s.CachedInfo()
	case !errors.Is(err, jetstream.ErrStreamNotFound):
		return err
	}
	if label {
		b.label(have, &cfg)
	}
	switch {
	case have == nil:
		_, err = cl.js.CreateStream(ctx, cfg)
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			return jetstream.ErrStreamNotFound // the next try reads its configuration, when the answering server has the stream
		}
	case !hasConfig(have.Config, cfg):
		_, err = cl.js.UpdateStream(ctx, cfg)
	}
	return err
}

// hasConfig reports whether the configuration of a stream is cfg, with the defaults and
// the metadata that the server adds.
func hasConfig(have, cfg jetstream.StreamConfig) bool {
	for _, n := range []*int64{&cfg.MaxMsgs, &cfg.MaxBytes, &cfg.MaxMsgsPerSubject} {
		if *n == 0 {
			*n = -1
		}
	}
	cfg.MaxConsumers, cfg.MaxMsgSize = cmp.Or(cfg.MaxConsumers, -1), cmp.Or(cfg.MaxMsgSize, -1)
	have.Metadata = maps.Clone(have.Metadata)
	maps.DeleteFunc(have.Metadata, func(key, _ string) bool { return strings.HasPrefix(key, "_nats.") })
	return reflect.DeepEqual(have, cfg)
}

// temporary reports whether err is temporary: the cluster is starting or electing a leader,
// or the connection is down.
func temporary(err error) bool {
	if e, ok := errors.AsType[*jetstream.APIError](err); ok {
		return e.Code == 503 || e.ErrorCode == jetstream.JSErrCodeStreamNotFound || e.ErrorCode == codeNoPeers
	}
	return errors.Is(err, nats.ErrTimeout) || errors.Is(err, nats.ErrNoResponders) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, jetstream.ErrJetStreamNotEnabled) ||
		errors.Is(err, jetstream.ErrNoStreamResponse) || errors.Is(err, nats.ErrConnectionReconnecting)
}

// Connected reports whether the connection is up, for readiness.
func (b *Bus) Connected() bool { return b.conn.Connected() }

// Refused is [Conn.Refused].
func (b *Bus) Refused() bool { return b.conn.Refused() }
