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

// objectLife is the age at which an object is removed.
const objectLife = 7 * 24 * time.Hour

// objectChunk is the size of the parts in which an object is stored, in bytes. It is the
// default of NATS.
const objectChunk = 128 << 10

// Objects is a bucket of named objects that are too large for a message. It uses the
// format of NATS object stores, so `nats object get` can read it, but never purges:
// replaced objects are removed by age. It is safe for concurrent use.
type Objects struct {
	bus    *Bus
	bucket string
}

// NewObjects returns the bucket of that name, which [Bus.Ensure] creates.
func NewObjects(b *Bus, bucket string) *Objects { return &Objects{b, bucket} }

// objectStream returns the configuration of a bucket's stream, as NATS creates it, except
// that only its leader answers reads, so that a writer reads its own writes.
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

// info returns the description of an object. Errors: NotFound.
func (o *Objects) info(ctx context.Context, name string) (jetstream.ObjectInfo, error) {
	var info jetstream.ObjectInfo
	raw, err := o.bus.getLast(ctx, "OBJ_"+o.bucket, o.meta(name))
	if err != nil {
		return info, o.failure(name, err)
	}
	if err := json.Unmarshal(raw.Data, &info); err != nil {
		return info, fmt.Errorf("object %s: %w", name, err)
	}
	return info, nil
}

// Put stores data under a name and replaces an earlier object. Storing the same data
// again changes nothing. Readers find the earlier object until Put returns. A crash
// during Put leaves chunks that no description refers to and that are removed by age.
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

// store publishes one message. The stream drops a repeated one by its id.
func (o *Objects) store(ctx context.Context, name, id string, msg *nats.Msg) error {
	return o.failure(name, o.bus.retry(ctx, func(ctx context.Context, cl *client) error {
		_, err := cl.js.PublishMsg(ctx, msg, jetstream.WithMsgID(id))
		return err
	}))
}

// Read returns up to limit bytes of an object from an offset on, and the size of the
// whole object in bytes. At or after its end the part is empty. Errors: NotFound.
func (o *Objects) Read(ctx context.Context, name string, offset int64, limit int) (part []byte, size int64, err error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	info, err := o.info(ctx, name)
	if err != nil {
		return nil, 0, err
	}
	size = int64(info.Size) //nolint:gosec // Put sets Size from a length
	subject := "$O." + o.bucket + ".C." + info.NUID
	next := uint64(1)
	for at := int64(0); at < size && at < offset+int64(limit); {
		raw, err := o.bus.getNext(ctx, "OBJ_"+o.bucket, subject, next)
		if err != nil {
			return nil, 0, o.failure(name, err) // chunks and description have the same age, so they are removed together
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
	switch {
	case err == nil:
		return nil
	case errorCode(err) == codeFull:
		return &api.Error{Code: api.Unavailable, Reason: api.ReasonLimit, Message: "the bucket " + o.bucket + " is full"}
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return api.Errorf(api.NotFound, "there is no object %s", name)
	case temporary(err):
		return unavailable("the bucket "+o.bucket+" did not answer", "check that NATS is up")
	}
	return fmt.Errorf("object %s: %w", name, err)
}
