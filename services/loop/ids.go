package loop

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
)

// runID is the id of a run, and the id that the previous release derives from the same
// message or wake. The keys of a run's rows begin with its id, in all services. So an id
// begins with a time where a repetition can compute the same one: rows that are written
// together are then on few pages of an index (docs/adr/0026-ids-begin-with-their-time.md).
type runID struct{ run, former string }

// messageID returns the id of the message with the run's command. It is the one of the
// previous release: when two replicas of different releases accept the same message or
// wake, the queue stores one command.
func (id runID) messageID() string { return "run/" + id.former }

// over reports whether a run has ended under either id: a replica of the previous release
// may have executed it.
func (h *handlers) over(ctx context.Context, id runID) (bool, error) {
	over, err := h.store.Over(ctx, id.run)
	if err != nil || over {
		return over, err
	}
	return h.store.Over(ctx, id.former)
}

// runOfMessage returns the id of the run of a message. It derives from the idempotency key
// and its scope: different callers, agents or sessions may use the same key for different
// messages. Session "" is the main session. Without a key it is the id of the request,
// see [bus.RequestID], or a new one.
func runOfMessage(ctx context.Context, key string, by api.Principal, agent, session string) runID {
	if key != "" {
		id := hashed(fmt.Sprintf("message:%q %q %q %q %q", by.Kind, by.Address, agent, session, key))
		return runID{id, id}
	}
	id := runID{run: newID(ctx)}
	id.former = id.run
	if request, err := uuid.Parse(bus.RequestID(ctx)); err == nil && request.Version() == 7 {
		id.run = request.String()
	}
	return id
}

// runOfEvent returns the id of the run for an event, such as a wake, with a name that is the
// same on every replica. at is the time of the event in Unix microseconds.
func runOfEvent(name string, at int64) runID {
	id := runID{former: hashed(name)}
	ordered := uuid.MustParse(id.former)
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(max(0, time.UnixMicro(at).UnixMilli())))
	copy(ordered[:6], ms[2:])
	ordered[6] = ordered[6]&0x0f | 0x80 // version 8: a form of its own (RFC 9562, section 5.8)
	id.run = ordered.String()
	return id
}

// newID returns the id for what a request without an idempotency key creates. A request
// that [bus.Call] repeats, because its answer was lost or late, has the same id.
func newID(ctx context.Context) string {
	if request := bus.RequestID(ctx); request != "" {
		return hashed("request:" + request)
	}
	return uuid.Must(uuid.NewV7()).String()
}

// hashed returns the UUID of a name.
func hashed(name string) string {
	return uuid.NewSHA1(uuid.NameSpaceURL, []byte("anima:"+name)).String()
}
