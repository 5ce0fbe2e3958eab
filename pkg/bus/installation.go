package bus

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/anima-run/anima/pkg/api"
)

// installationKey is where a stream's metadata has the id of its installation.
const installationKey = "anima.installation"

// StreamHeight is how far a stream is, as its leader told.
type StreamHeight struct {
	Name         string `json:"name"`
	Installation string `json:"installation"` // "" for one that an older release made
	First        uint64 `json:"first"`        // sequence of the first message that is kept
	Last         uint64 `json:"last"`         // sequence of the last one that was stored
	Messages     uint64 `json:"messages"`
	Deleted      int    `json:"deleted"` // messages between the first and the last that are not there
	Bytes        uint64 `json:"bytes"`
	Consumers    int    `json:"consumers"`
}

// streams are the configurations of everything that [Bus.Ensure] makes, the
// coordination bucket first: its id is the installation's where no folder has one.
func (b *Bus) streams() []jetstream.StreamConfig {
	// By hand, not with CreateKeyValue: a bucket of its making answers reads from
	// any replica, so a Create just after a delete fails now and then on R3.
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

// StreamNames lists the streams of an owner, and what all services share: the
// coordination bucket. Loop also has the bucket of outputs.
func StreamNames(o api.Owner) []string {
	names := []string{coordination}
	for _, c := range api.Contracts() {
		if s := c.Message.Subject(); s.Owner == o && s.Stream() != "" && !slices.Contains(names, s.Stream()) {
			names = append(names, s.Stream())
		}
	}
	for _, object := range api.AccessOf(o).Objects {
		names = append(names, "OBJ_"+object)
	}
	return names
}

// Installation is the id of the installation that the streams belong to, from
// [Bus.Ensure] on: the one of [Options], or that of the coordination bucket.
func (b *Bus) Installation() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.installation
}

// label gives cfg the installation's id, unless the stream is there with another
// one: that stays, and the stores' check tells of it. Services that make the bucket
// at the same time agree: the server takes one of them, and the others read its id.
func (b *Bus) label(ctx context.Context, cfg *jetstream.StreamConfig) error {
	have, created, err := b.idOf(ctx, cfg.Name)
	if err != nil {
		return err
	}
	id := b.Installation()
	if b.opts.Installation == "" && cfg.Name == coordination { // no folder has an id
		switch {
		case have != "": // also in place of one that an earlier try of this service made
			id = have
		case created != "":
			id = created
		case id == "":
			id = rand.Text()
		}
		b.mu.Lock()
		b.installation = id
		b.mu.Unlock()
	}
	if have != "" {
		id = have
	}
	cfg.Metadata = map[string]string{installationKey: id}
	return nil
}

// idOf reads a stream's id, and an id that every reader derives from the stream if
// it has none; both are "" where there is no stream.
func (b *Bus) idOf(ctx context.Context, name string) (id, derived string, err error) {
	ln := b.use()
	defer ln.release()
	s, err := ln.js.Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return "", "", nil
	} else if err != nil {
		return "", "", err
	}
	info := s.CachedInfo()
	sum := sha256.Sum256([]byte(info.Created.UTC().String()))
	return info.Config.Metadata[installationKey], hex.EncodeToString(sum[:13]), nil
}

// Adopt gives every stream the installation's id, whatever it had: the operator has
// accepted that they come from elsewhere.
func (b *Bus) Adopt(ctx context.Context) error {
	for _, cfg := range b.streams() {
		cfg.Metadata = map[string]string{installationKey: b.Installation()}
		if err := b.ensure(ctx, cfg, false); err != nil {
			return err
		}
	}
	return nil
}

// StreamHeights returns how far streams are, in the order of their names given. One
// that is not there has a zero state but for its name.
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

// streamInfo is what a stream's leader tells of it now; nil where there is no such
// stream, which is not asked for again.
func (b *Bus) streamInfo(ctx context.Context, name string) (*jetstream.StreamInfo, error) {
	var info *jetstream.StreamInfo
	err := b.look(ctx, func(ctx context.Context, ln *line) error {
		s, err := ln.js.Stream(ctx, name)
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

// AllStreams lists the streams of all services and the buckets.
func (b *Bus) AllStreams() []string {
	var names []string
	for _, cfg := range b.streams() {
		names = append(names, cfg.Name)
	}
	return names
}

// GetMark reads what a service last said of its store, or NotFound.
func (b *Bus) GetMark(ctx context.Context, service string) (api.StoreMark, error) {
	m, _, err := b.mark(ctx, service)
	return m, err
}

func (b *Bus) mark(ctx context.Context, service string) (api.StoreMark, uint64, error) {
	k := &Bucket[api.StoreMark]{bus: b}
	e, err := k.Get(ctx, api.MarkKey(service))
	return e.Value, e.Revision, err
}

// PutMark stores a service's mark and returns m, or the one that is there, which a
// replica has stored, where its number is not smaller. It proves that NATS stores what
// it is given. Unlike other keys it is no point at which a service is made to die
// (package failpoint): it is written by the clock.
func (b *Bus) PutMark(ctx context.Context, service string, m api.StoreMark) (api.StoreMark, error) {
	data, err := api.Encode(m)
	if err != nil {
		return m, err
	}
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	msg := nats.NewMsg("$KV." + api.Coordination + "." + api.MarkKey(service))
	msg.Data = data
	if err := b.permit(msg.Subject); err != nil {
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
		ln := b.use()
		_, err = ln.js.PublishMsg(ctx, msg, jetstream.WithExpectLastSequencePerSubject(last), jetstream.WithRetryAttempts(0))
		ln.release()
		if e, ok := errors.AsType[*jetstream.APIError](err); ok && (e.ErrorCode == codeWrongLast || e.ErrorCode == codeWrongLastBusy) {
			if pause(ctx, backoff(0, 10*time.Millisecond, 100*time.Millisecond)) != nil {
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
