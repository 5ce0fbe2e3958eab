package bus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/anima-run/anima/pkg/api"
)

// Replica is one running instance of a service, as it reports itself for discovery.
type Replica struct {
	Service  string `json:"service"`
	Instance string `json:"instance"`
	Version  string `json:"version"`
}

// replicaWait is how long Replicas waits for another answer after the last one, and
// absentWait how long it waits for an answer of each service.
const (
	replicaWait = 300 * time.Millisecond
	absentWait  = 2 * time.Second
)

// Replicas asks all running services to report themselves, and returns those that
// answered, sorted by service and instance. It waits up to 2 s for an answer of each
// owner of contracts, and then for further ones until none has arrived for 300 ms.
func (b *Bus) Replicas(ctx context.Context) ([]Replica, error) {
	subject, err := micro.ControlSubject(micro.PingVerb, "", "")
	if err != nil {
		return nil, fmt.Errorf("list replicas: %w", err)
	}
	cl := b.use()
	defer cl.release()
	inbox := cl.nc.NewInbox()
	sub, err := cl.nc.SubscribeSync(inbox)
	if err != nil {
		return nil, fmt.Errorf("list replicas: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }() // an error means that the connection is closed
	if err := cl.nc.PublishRequest(subject, inbox, nil); err != nil {
		return nil, fmt.Errorf("list replicas: %w", err)
	}
	var all []Replica
	missing, absent := api.Owners(), time.Now().Add(absentWait)
	for {
		wait := replicaWait
		if len(missing) > 0 {
			wait = max(wait, time.Until(absent))
		}
		once, cancel := context.WithTimeout(ctx, wait)
		msg, err := sub.NextMsgWithContext(once)
		cancel()
		switch {
		case ctx.Err() != nil:
			return all, context.Cause(ctx)
		case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrNoResponders):
			slices.SortFunc(all, func(x, y Replica) int { return strings.Compare(x.Service+"/"+x.Instance, y.Service+"/"+y.Instance) })
			return all, nil
		case err != nil:
			return all, fmt.Errorf("list replicas: %w", err)
		}
		var p micro.Ping
		if err := api.Decode(msg.Data, &p); err != nil {
			return all, err
		}
		all = append(all, Replica{Service: p.Name, Instance: p.ID, Version: p.Version})
		missing = slices.DeleteFunc(missing, func(o api.Owner) bool { return o.Service() == p.Name })
	}
}

// StreamState is the amount of data in a stream.
type StreamState struct {
	Name     string `json:"name"`
	Work     bool   `json:"work"` // a work queue: its messages wait or are being handled
	Messages uint64 `json:"messages"`
	Bytes    uint64 `json:"bytes"`
}

// States returns the states of the streams of all contracts. A stream that does not exist
// is left out.
func (b *Bus) States(ctx context.Context) ([]StreamState, error) {
	var all []StreamState
	for _, s := range api.Streams() {
		info, err := b.streamInfo(ctx, s.Name)
		switch {
		case err != nil:
			return all, err
		case info != nil:
			all = append(all, StreamState{Name: s.Name, Work: s.Work, Messages: info.State.Msgs, Bytes: info.State.Bytes})
		}
	}
	return all, nil
}
