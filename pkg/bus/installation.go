package bus

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/wait"
)

// installationKey is the key of a stream's metadata that holds the id of its
// installation.
const installationKey = "anima.installation"

// StreamHeight is the state of a stream, as its leader reports it.
type StreamHeight struct {
	Name         string `json:"name"`
	Installation string `json:"installation"` // "" for a stream that an older release created
	First        uint64 `json:"first"`        // sequence of the first stored message
	Last         uint64 `json:"last"`         // sequence of the last message that was stored
	Messages     uint64 `json:"messages"`
	Deleted      int    `json:"deleted"` // messages that are missing between the first and the last
	Bytes        uint64 `json:"bytes"`
	Consumers    int    `json:"consumers"`
}

// streams returns the configurations of everything that [Bus.Ensure] creates. The
// coordination bucket is first: without a data folder, its id is the installation's.
func (b *Bus) streams() []jetstream.StreamConfig {
	// CreateKeyValue would let any replica answer reads, so that on R3 a Create just
	// after a Delete sometimes fails.
	all := []jetstream.StreamConfig{{
		Name: coordination, Subjects: []string{"$KV." + api.Coordination + ".>"},
		Replicas: b.opts.Replicas, Storage: jetstream.FileStorage, Discard: jetstream.DiscardNew,
		MaxMsgsPerSubject: 1, AllowRollup: true, DenyDelete: true, AllowDirect: false,
		AllowMsgTTL: true, SubjectDeleteMarkerTTL: markerTTL,
		Duplicates: dedupOfBucket,
	}}
	for _, s := range api.Streams() {
		cfg := jetstream.StreamConfig{
			Name: s.Name, Subjects: s.Subjects, Replicas: b.opts.Replicas,
			MaxAge: s.MaxAge, Duplicates: s.Dedup, Storage: jetstream.FileStorage,
		}
		if s.Work {
			cfg.Retention = jetstream.WorkQueuePolicy
			cfg.MaxMsgsPerSubject, cfg.Discard, cfg.DiscardNewPerSubject = s.PerKey, jetstream.DiscardNew, true
		}
		all = append(all, cfg)
	}
	return append(all, b.objectStream(api.Outputs))
}

// StreamNames returns the streams of an owner, the coordination bucket, which all
// services share, and the owner's object buckets.
func StreamNames(o api.Owner) []string {
	names := append([]string{coordination}, streamsOf(o)...)
	for _, object := range api.AccessOf(o).Objects {
		names = append(names, "OBJ_"+object)
	}
	return names
}

// streamsOf returns the streams of an owner's messages.
func streamsOf(o api.Owner) (names []string) {
	for _, m := range api.Messages() {
		if s := m.Subject(); s.Owner == o && s.Stream() != "" && !slices.Contains(names, s.Stream()) {
			names = append(names, s.Stream())
		}
	}
	return names
}

// Installation returns the id of the installation that the streams belong to: the one of
// [Options], or that of the coordination bucket once [Bus.Ensure] has returned.
func (b *Bus) Installation() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.installation
}

// label sets the installation's id in cfg, the configuration for a stream that exists as
// have, or does not exist yet (nil). If it exists with another id, cfg keeps that one, and
// the check of the stores reports it. If several services create the coordination bucket at
// the same time, the server accepts one id and the others read it.
func (b *Bus) label(have *jetstream.StreamInfo, cfg *jetstream.StreamConfig) {
	var own, derived string
	if have != nil {
		own, derived = have.Config.Metadata[installationKey], derivedID(have)
	}
	id := b.Installation()
	if b.opts.Installation == "" && cfg.Name == coordination { // there is no data folder with an id
		// It may differ from the id that an earlier try of this service generated.
		if id = cmp.Or(own, derived, id); id == "" {
			id = rand.Text()
		}
		b.mu.Lock()
		b.installation = id
		b.mu.Unlock()
	}
	cfg.Metadata = map[string]string{installationKey: cmp.Or(own, id)}
}

// derivedID returns the id of a stream that has none, which every reader derives from the
// stream's creation time.
func derivedID(have *jetstream.StreamInfo) string {
	sum := sha256.Sum256([]byte(have.Created.UTC().String()))
	return hex.EncodeToString(sum[:13])
}

// Adopt sets the installation's id on every stream in place of any other id. It is called
// when the operator has accepted streams of another installation.
func (b *Bus) Adopt(ctx context.Context) error {
	for _, cfg := range b.streams() {
		cfg.Metadata = map[string]string{installationKey: b.Installation()}
		if err := b.ensure(ctx, cfg, false); err != nil {
			return err
		}
	}
	return nil
}

// StreamHeights returns the states of streams, in the order of names. For a stream that
// does not exist only the name is set.
func (b *Bus) StreamHeights(ctx context.Context, names []string) ([]StreamHeight, error) {
	all := make([]StreamHeight, len(names))
	for i, name := range names {
		all[i].Name = name
		info, err := b.streamInfo(ctx, name)
		switch {
		case err != nil:
			return nil, err
		case info == nil:
			continue
		}
		all[i] = StreamHeight{
			Name: name, Installation: info.Config.Metadata[installationKey], First: info.State.FirstSeq, Last: info.State.LastSeq,
			Messages: info.State.Msgs, Deleted: info.State.NumDeleted, Bytes: info.State.Bytes, Consumers: info.State.Consumers,
		}
	}
	return all, nil
}

// streamInfo returns the state of a stream from its leader. It returns nil, without a
// retry, if the stream does not exist.
func (b *Bus) streamInfo(ctx context.Context, name string) (*jetstream.StreamInfo, error) {
	var info *jetstream.StreamInfo
	err := b.retry(ctx, func(ctx context.Context, cl *client) error {
		s, err := cl.js.Stream(ctx, name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return nil
		} else if err != nil {
			return err
		}
		info = s.CachedInfo()
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", name, err)
	}
	return info, nil
}

// GetMark returns the last mark that a service stored. Errors: NotFound.
func (b *Bus) GetMark(ctx context.Context, service string) (api.StoreMark, error) {
	m, _, err := b.mark(ctx, service)
	return m, err
}

func (b *Bus) mark(ctx context.Context, service string) (api.StoreMark, uint64, error) {
	k := &Bucket[api.StoreMark]{bus: b}
	e, err := k.Get(ctx, api.MarkKey(service))
	return e.Value, e.Revision, err
}

// PutMark stores a service's mark and returns m, unless a replica has stored one of the
// same installation with the same or a higher number: then it returns that one. A success
// shows that NATS stores messages. Unlike other writes of keys it passes no failpoint,
// because a timer calls it.
func (b *Bus) PutMark(ctx context.Context, service string, m api.StoreMark) (api.StoreMark, error) {
	data, err := api.Encode(m)
	if err != nil {
		return m, err
	}
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	msg, err := b.keyMessage(api.MarkKey(service), data)
	if err != nil {
		return m, err
	}
	for {
		was, last, err := b.mark(ctx, service)
		switch {
		case err != nil && api.CodeOf(err) != api.NotFound:
			return m, err
		case err == nil && was.Seq >= m.Seq && was.Installation == m.Installation:
			return was, nil
		}
		cl := b.use()
		_, err = cl.js.PublishMsg(ctx, msg, jetstream.WithExpectLastSequencePerSubject(last), jetstream.WithRetryAttempts(0))
		cl.release()
		if wrongLast(err) {
			if wait.For(ctx, backoff(0, 10*time.Millisecond, 100*time.Millisecond)) != nil {
				return m, ctx.Err()
			}
			continue
		}
		if err != nil {
			return m, fmt.Errorf("mark of %s: %w", service, err)
		}
		return m, nil
	}
}
