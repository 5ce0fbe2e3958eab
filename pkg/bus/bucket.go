package bus

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/failpoint"
	"github.com/anima-run/anima/pkg/wait"
)

// markerTTL is how long the server keeps the marker of a deleted or expired key. Watchers
// receive the marker as the deletion.
const markerTTL = 5 * time.Second

const (
	coordination  = "KV_" + api.Coordination // stream of the bucket
	dedupOfBucket = 2 * time.Minute
)

// MinTTL is the smallest TTL of a key that the server supports.
const MinTTL = time.Second

// Bucket is a typed view of the coordination bucket; T is the type of its values. A read
// may be outdated by the time its result is used; only a compare-and-set decides.
type Bucket[T any] struct {
	bus *Bus

	mu      sync.Mutex
	markers map[string]marker // of the keys that this Bucket has deleted
}

// marker is the marker of a deleted key, which the server removes when it expires.
type marker struct {
	revision uint64
	expires  time.Time
}

// maxMarkers limits the number of markers that a Bucket keeps in memory. A marker that
// was dropped costs the next Create of its key two more requests.
const maxMarkers = 1024

// Entry is a key with its value. Revision increases over the whole bucket, so the
// revision of an acquired key fences all previous holders. Only watchers receive deleted
// entries; their Value is zero.
type Entry[T any] struct {
	Key      string
	Value    T
	Revision uint64
	Deleted  bool
}

// OpenBucket binds to the coordination bucket that [Bus.Ensure] created.
func OpenBucket[T any](ctx context.Context, b *Bus) (*Bucket[T], error) {
	cl := b.use()
	defer cl.release()
	if _, err := cl.stream(deadline(ctx), coordination); err != nil {
		return nil, fmt.Errorf("bucket %s: %w", api.Coordination, err)
	}
	return &Bucket[T]{bus: b}, nil
}

// Get returns the entry of a key. Errors: NotFound.
func (k *Bucket[T]) Get(ctx context.Context, key string) (Entry[T], error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	e, data, err := k.last(ctx, key)
	switch {
	case err != nil:
		return Entry[T]{}, err
	case e.Deleted:
		return Entry[T]{}, api.Errorf(api.NotFound, "no key %s", key)
	}
	return e, api.Decode(data, &e.Value)
}

// Create stores a key that does not exist and returns its revision. With a ttl (at least
// [MinTTL]; 0 for none) the server removes the key when it expires, to the millisecond.
// Errors: Conflict when the key exists. After Unavailable the key may exist; the caller
// recognises its own write by the value.
func (k *Bucket[T]) Create(ctx context.Context, key string, v T, ttl time.Duration) (uint64, error) {
	data, err := api.Encode(v)
	if err != nil {
		return 0, err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	last := k.takeMarker(key)
	for try := 0; ; try++ {
		rev, err := k.write(ctx, key, data, "", last, ttl)
		if api.CodeOf(err) != api.Conflict {
			return rev, err
		}
		// The existing message may be the marker of a deleted key, which may expire
		// between two reads. The read only supplies the expected revision: the next write
		// decides.
		e, _, errGet := k.last(ctx, key)
		switch {
		case api.CodeOf(errGet) == api.NotFound && last != 0:
			last = 0
		case errGet == nil && e.Deleted && e.Revision != last:
			last = e.Revision
		case errGet != nil && api.CodeOf(errGet) != api.NotFound:
			return 0, errGet
		case errGet == nil:
			return 0, err
		default: // the conflicting message is not visible: it is being removed, or the leader is behind (ADR 11)
			_ = wait.For(ctx, backoff(try, time.Millisecond, 50*time.Millisecond)) // the next write returns the error of ctx
		}
	}
}

// Take creates a key, or replaces its value if free reports that the value no longer
// holds the key. Errors: Conflict when the existing value holds the key; held is that
// value. After Unavailable the key may be taken, as after [Bucket.Create].
func (k *Bucket[T]) Take(ctx context.Context, key string, v T, ttl time.Duration, free func(T) bool) (revision uint64, held T, err error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	for range takes {
		revision, err = k.Create(ctx, key, v, ttl)
		if api.CodeOf(err) != api.Conflict {
			return revision, held, err
		}
		revision, held, err = k.Replace(ctx, key, v, ttl, free)
		if code := api.CodeOf(err); code != api.NotFound && code != api.Conflict || code == api.Conflict && !free(held) {
			return revision, held, err
		}
		// The key was removed or replaced concurrently, between two reads.
	}
	return 0, held, api.Errorf(api.Conflict, "key %s was changed concurrently", key)
}

// takes is the number of tries of [Bucket.Take] when the key changes concurrently.
const takes = 3

// Replace stores a new value if free reports that the existing one no longer holds the
// key, by compare-and-set on the revision of the existing value. Errors: NotFound when
// there is no key; Conflict when the existing value holds the key or was changed
// concurrently. held is the existing value.
func (k *Bucket[T]) Replace(ctx context.Context, key string, v T, ttl time.Duration, free func(T) bool) (revision uint64, held T, err error) {
	e, err := k.Get(ctx, key)
	if err != nil {
		return 0, held, err
	}
	if !free(e.Value) {
		return 0, e.Value, api.Errorf(api.Conflict, "key %s is held", key)
	}
	revision, err = k.Update(ctx, key, v, e.Revision, ttl)
	return revision, e.Value, err
}

// Sweep deletes the keys that match a pattern and for whose values over returns true. A
// key that changes concurrently is kept, and so is one whose last change the server that
// Sweep reads from has not applied yet: a later Sweep finds it.
func (k *Bucket[T]) Sweep(ctx context.Context, pattern string, over func(T) bool) error {
	reading, end := context.WithCancel(ctx)
	defer end()
	var found []Entry[T]
	err := k.Watch(reading, pattern, end, func(e Entry[T]) error {
		if !e.Deleted && over(e.Value) {
			found = append(found, e)
		}
		return nil
	})
	if reading.Err() == nil || ctx.Err() != nil {
		return err
	}
	for _, e := range found {
		if err := k.Delete(ctx, e.Key, e.Revision); err != nil && api.CodeOf(err) != api.Conflict {
			return err
		}
	}
	return nil
}

// Update replaces the value of a key at the given revision, restarts its TTL with ttl,
// and returns the new revision. Errors: Conflict when the key was changed, deleted or has
// expired.
func (k *Bucket[T]) Update(ctx context.Context, key string, v T, revision uint64, ttl time.Duration) (uint64, error) {
	data, err := api.Encode(v)
	if err != nil {
		return 0, err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	return k.write(ctx, key, data, "", revision, ttl)
}

// Delete removes a key at the given revision. Errors: Conflict when the key was changed
// or does not exist any more.
func (k *Bucket[T]) Delete(ctx context.Context, key string, revision uint64) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	revision, err := k.write(ctx, key, nil, kvPurge, revision, markerTTL)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.markers == nil || len(k.markers) >= maxMarkers {
		k.markers = map[string]marker{}
	}
	k.markers[key] = marker{revision, time.Now().Add(markerTTL)}
	return nil
}

// takeMarker removes a key's marker from k.markers and returns its revision, 0 if there
// is none or it has expired.
func (k *Bucket[T]) takeMarker(key string) uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	m, ok := k.markers[key]
	delete(k.markers, key)
	if !ok || time.Now().After(m.expires) {
		return 0
	}
	return m.revision
}

// Headers and values with which NATS marks a deleted or expired key.
const (
	kvOperation = "KV-Operation"
	kvPurge     = "PURGE"
	kvMarker    = "Nats-Marker-Reason"
)

// write stores the next message of a key if last is the sequence of the previous one (0
// for none). It does not use kv.Create, kv.Update and kv.Purge: Update drops the TTL of
// the key, so that a renewed lock would never expire, and Create reports that a key
// exists if the key's marker expires during the call.
func (k *Bucket[T]) write(ctx context.Context, key string, data []byte, op string, last uint64, ttl time.Duration) (uint64, error) {
	msg, err := k.bus.keyMessage(key, data)
	if err != nil {
		return 0, err
	}
	if op != "" {
		msg.Header.Set(kvOperation, op)
		msg.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
	}
	opts := []jetstream.PublishOpt{jetstream.WithExpectLastSequencePerSubject(last)}
	if ttl > 0 {
		opts = append(opts, jetstream.WithMsgTTL(ttl))
	}
	// A lost answer is Unavailable after 3 s; the caller then reads the key.
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	for try := 0; ; try++ {
		cl := k.bus.use()
		ack, err := failpoint.Value(ctx, failpoint.BusKey, func(ctx context.Context) (*jetstream.PubAck, error) {
			return cl.js.PublishMsg(ctx, msg, opts...)
		})
		cl.release()
		if err == nil {
			return ack.Sequence, nil
		}
		// Another write of the key is in progress on the replicas: retry until it is
		// decided.
		if errorCode(err) != codeWrongLastBusy || wait.For(ctx, backoff(try, time.Millisecond, 50*time.Millisecond)) != nil {
			return 0, k.failure(key, err)
		}
	}
}

// last returns the last message of a key from the stream's leader: an Entry without its
// value, and the encoded value. A marker is an Entry with Deleted. Errors: NotFound.
func (k *Bucket[T]) last(ctx context.Context, key string) (Entry[T], []byte, error) {
	m, err := k.bus.getLast(ctx, coordination, keySubject(key))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return Entry[T]{}, nil, api.Errorf(api.NotFound, "no key %s", key)
	} else if err != nil {
		return Entry[T]{}, nil, k.failure(key, err)
	}
	return Entry[T]{
		Key: key, Revision: m.Sequence,
		Deleted: m.Header.Get(kvOperation) != "" || m.Header.Get(kvMarker) != "",
	}, m.Data, nil
}

func keySubject(key string) string { return "$KV." + api.Coordination + "." + key }

// keyMessage returns the message that stores data under a key of the bucket.
func (b *Bus) keyMessage(key string, data []byte) (*nats.Msg, error) {
	for token := range strings.SplitSeq(key, ".") {
		if !api.ValidKey(token) {
			return nil, api.Errorf(api.Invalid, "%q cannot be a key of the bucket", key)
		}
	}
	msg := nats.NewMsg(keySubject(key))
	msg.Data = data
	return msg, b.permit(msg.Subject)
}

// wrongLast reports whether the last message of a key is not the expected one.
func wrongLast(err error) bool {
	code := errorCode(err)
	return code == codeWrongLast || code == codeWrongLastBusy
}

func (k *Bucket[T]) failure(key string, err error) error {
	switch {
	case wrongLast(err):
		return api.Errorf(api.Conflict, "key %s exists or was changed", key)
	case temporary(err):
		return unavailable("the coordination bucket did not answer", "check that NATS is up")
	}
	return fmt.Errorf("key %s: %w", key, err)
}
