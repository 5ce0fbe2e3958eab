package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/wait"
)

// Leaders holds the names of the servers that lead a stream and one of its durables.
type Leaders struct{ Stream, Durable string }

// LeadersApart makes the leader of a service's durable step down until it is another
// server than the leader of the message's stream, and returns both. It is for drills:
// with this placement a read of the stream may be behind a delivery (ADR 11). Errors:
// Conflict for a stream that is not replicated; NotFound if there is no such durable.
func (b *Bus) LeadersApart(ctx context.Context, s api.Subject, service string) (Leaders, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	durable := service + "-" + s.Name
	for {
		l, err := b.leaders(ctx, s.Stream(), durable)
		if err != nil || l.Durable != "" && l.Durable != l.Stream {
			return l, err
		}
		if l.Durable != "" { // otherwise a leader is being elected
			if err := b.stepDown(ctx, "$JS.API.CONSUMER.LEADER.STEPDOWN."+s.Stream()+"."+durable); err != nil {
				return l, err
			}
		}
		if err := wait.For(ctx, 200*time.Millisecond); err != nil {
			return l, fmt.Errorf("%s and %s are both led by %s: %w", s.Stream(), durable, l.Stream, err)
		}
	}
}

func (b *Bus) leaders(ctx context.Context, stream, durable string) (Leaders, error) {
	var l Leaders
	err := b.retry(ctx, func(ctx context.Context, cl *client) error {
		st, err := cl.js.Stream(ctx, stream)
		if err != nil {
			return err
		}
		c, err := cl.js.Consumer(ctx, stream, durable)
		if err != nil {
			return err
		}
		at, on := st.CachedInfo().Cluster, c.CachedInfo().Cluster
		if at == nil || on == nil || len(at.Replicas) == 0 {
			return api.Errorf(api.Conflict, "%s is not replicated", stream)
		}
		l = Leaders{at.Leader, on.Leader}
		return nil
	})
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		return l, api.Errorf(api.NotFound, "%s has no durable %s", stream, durable)
	}
	return l, err
}

func (b *Bus) stepDown(ctx context.Context, subject string) error {
	if err := b.permit(subject); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	cl := b.use()
	defer cl.release()
	m, err := cl.nc.RequestWithContext(ctx, subject, nil)
	if err != nil {
		return fmt.Errorf("step down: %w", err)
	}
	var answer struct {
		Error *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &answer); err != nil {
		return fmt.Errorf("step down: %w", err)
	}
	if answer.Error != nil && answer.Error.Code != 503 { // 503: there is no leader to step down
		return fmt.Errorf("step down: %w", answer.Error)
	}
	return nil
}
