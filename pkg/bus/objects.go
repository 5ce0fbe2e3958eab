package bus

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/anima-run/anima/pkg/api"
)

// objectLife is how long an object is kept.
const objectLife = 7 * 24 * time.Hour

// objectChunk is how much of an object one message carries, in bytes: what NATS
// itself takes.
const objectChunk = 128 << 10

// Objects is an object bucket: bytes too large for a message, under names. It is
// written as NATS object stores are, so `nats object get` reads it too, but never
// purges: what was replaced goes with its age. It is safe for concurrent use.
type Objects struct {
	bus    *Bus
	bucket string
}

// NewObjects returns the door to a bucket that [Bus.Ensure] makes.
func NewObjects(b *Bus, bucket string) *Objects { return &Objects{b, bucket} }

// objectStream is the stream behind a bucket, as NATS makes it; but its leader
// alone answers reads, so that a writer finds what it wrote.
func (b *Bus) objectStream(bucket string) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: "OBJ_" + bucket, Subjects: []string{"$O." + bucket + ".C.>", "$O." + bucket + ".M.>"},
		Replicas: b.opts.Replicas, Storage: jetstream.FileStorage, MaxAge: objectLife, Discard: jetstream.DiscardNew,
		AllowRollup: true, Duplicates: 2 * time.Minute,
	}
}

func (o *Objects) meta(name string) string {
	return "$O." + o.bucket + ".M." + base64.URLEncoding.EncodeToString([]byte(name))
}

// info returns what is stored under a name, or NotFound.
func (o *Objects) info(ctx context.Context, name string) (jetstream.ObjectInfo, error) {
	var info jetstream.ObjectInfo
	var raw *jetstream.RawStreamMsg
	err := o.bus.look(ctx, func(ctx context.Context, ln *line) error {
		st, err := ln.stream(ctx, "OBJ_"+o.bucket)
		if err == nil {
			raw, err = st.GetLastMsgForSubject(ctx, o.meta(name))
		}
		return err
	})
	if err != nil {
		return info, o.failure(name, err)
	}
	if err := json.Unmarshal(raw.Data, &info); err != nil {
		return info, fmt.Errorf("object %s: %w", name, err)
	}
	return info, nil
}

// Put stores data under a name; it replaces what is there. The same data again
// changes nothing. Until it returns, readers find what was there before: dying in
// between leaves chunks that nobody finds and that go with their age.
func (o *Objects) Put(ctx context.Context, name string, data []byte) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	if err := o.bus.permit(o.meta(name)); err != nil {
		return err
	}
	sum := sha256.Sum256(data)
	digest := "SHA-256=" + base64.URLEncoding.EncodeToString(sum[:])
	old, err := o.info(ctx, name)
	if err == nil && old.Digest == digest {
		return nil
	}
	if err != nil && api.CodeOf(err) != api.NotFound {
		return err
	}
	id := rand.Text()
	info := jetstream.ObjectInfo{
		ObjectMeta: jetstream.ObjectMeta{Name: name, Opts: &jetstream.ObjectMetaOptions{ChunkSize: objectChunk}},
		Bucket:     o.bucket, NUID: id, Size: uint64(len(data)), Digest: digest,
	}
	for begin := 0; begin < len(data); begin += objectChunk {
		msg := nats.NewMsg("$O." + o.bucket + ".C." + id)
		msg.Data = data[begin:min(begin+objectChunk, len(data))]
		if err := o.store(ctx, name, id+"/"+strconv.FormatUint(uint64(info.Chunks), 10), msg); err != nil {
			return err
		}
		info.Chunks++
	}
	msg := nats.NewMsg(o.meta(name))
	msg.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
	if msg.Data, err = json.Marshal(info); err != nil {
		return fmt.Errorf("object %s: %w", name, err)
	}
	return o.store(ctx, name, id, msg)
}

// store publishes one message; the id makes a second try of it the same.
func (o *Objects) store(ctx context.Context, name, id string, msg *nats.Msg) error {
	return o.failure(name, o.bus.look(ctx, func(ctx context.Context, ln *line) error {
		_, err := ln.js.PublishMsg(ctx, msg, jetstream.WithMsgID(id))
		return err
	}))
}

// Read returns at most limit bytes of an object from an offset on, and the size of
// the whole. From its end on there are none. Errors: NotFound.
func (o *Objects) Read(ctx context.Context, name string, offset int64, limit int) (part []byte, size int64, err error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	info, err := o.info(ctx, name)
	if err != nil {
		return nil, 0, err
	}
	size = int64(info.Size) //nolint:gosec // sizes were lengths
	subject := "$O." + o.bucket + ".C." + info.NUID
	next := uint64(1)
	for at := int64(0); at < size && at < offset+int64(limit); {
		var raw *jetstream.RawStreamMsg
		err := o.bus.look(ctx, func(ctx context.Context, ln *line) error {
			st, err := ln.stream(ctx, "OBJ_"+o.bucket)
			if err == nil {
				raw, err = st.GetMsg(ctx, next, jetstream.WithGetMsgSubject(subject))
			}
			return err
		})
		if err != nil {
			return nil, 0, o.failure(name, err) // its chunks are as old as it is: they go together
		}
		end := at + int64(len(raw.Data))
		if end > offset {
			from, to := max(offset-at, 0), min(offset+int64(limit), end)-at
			part = append(part, raw.Data[from:to]...)
		}
		at, next = end, raw.Sequence+1
	}
	return part, size, nil
}

func (o *Objects) failure(name string, err error) error {
	if full, ok := errors.AsType[*jetstream.APIError](err); ok && full.ErrorCode == codeFull {
		return &api.Error{Code: api.Unavailable, Reason: api.ReasonLimit, Message: "the bucket " + o.bucket + " is full"}
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return api.Errorf(api.NotFound, "there is no object %s", name)
	case passing(err):
		return &api.Error{Code: api.Unavailable, Message: "the bucket " + o.bucket + " did not answer", Next: "check that NATS is up", RetryAfter: 1000}
	}
	return fmt.Errorf("object %s: %w", name, err)
}
