package bus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/anima-run/anima/pkg/api"
)

// Unexpected returns the streams and consumers of the contracts that are missing or have
// another configuration, and gaps in the streams of events. It is read-only. server is
// the server's clock.
func (b *Bus) Unexpected(ctx context.Context) (faults []string, server time.Time, err error) {
	for _, want := range b.streams() {
		info, err := b.streamInfo(ctx, want.Name)
		switch {
		case err != nil:
			return faults, server, err
		case info == nil:
			faults = append(faults, "the stream "+want.Name+" is missing")
			continue
		}
		server = info.TimeStamp
		got := info.Config
		if !slices.Equal(got.Subjects, want.Subjects) || got.Retention != want.Retention || got.MaxAge != want.MaxAge ||
			got.MaxMsgsPerSubject != cmp.Or(want.MaxMsgsPerSubject, -1) || got.Discard != want.Discard || got.Storage != want.Storage {
			faults = append(faults, "the stream "+want.Name+" has a different configuration than the services create")
		}
		// Events are only deleted by age, the oldest first, so a gap is a loss. In a
		// bucket a message replaces the previous ones of its subject.
		if want.Retention == jetstream.LimitsPolicy && !want.AllowRollup && info.State.NumDeleted > 0 {
			faults = append(faults, fmt.Sprintf("%d messages are missing in the stream %s, between %d and %d", info.State.NumDeleted, want.Name, info.State.FirstSeq, info.State.LastSeq))
		}
	}
	missing, err := b.missingConsumers(ctx)
	return append(faults, missing...), server, err
}

func (b *Bus) missingConsumers(ctx context.Context) (faults []string, err error) {
	for _, o := range api.Owners() {
		for _, s := range consumedBy(o) {
			name := o.Service() + "-" + s.Name
			missing := false
			err := b.retry(ctx, func(ctx context.Context, cl *client) error {
				_, err := cl.js.Consumer(ctx, s.Stream(), name)
				if errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) {
					missing = true
					return nil
				}
				return err
			})
			if err != nil {
				return faults, fmt.Errorf("consumer %s of %s: %w", name, s.Stream(), err)
			}
			if missing {
				faults = append(faults, fmt.Sprintf("the consumer %s of %s is missing", name, s.Stream()))
			}
		}
	}
	return faults, nil
}
