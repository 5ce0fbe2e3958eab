package bus

import (
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

// inboxBytes limits the deltas that are buffered for the caller of a streamed reply, in
// bytes. Deltas beyond it are dropped; the final answer never is.
const inboxBytes = 8 << 20

// inbox buffers the messages of one streamed reply until its caller reads them. It never
// blocks the connection, which all callers share.
type inbox struct {
	ready chan struct{} // has a value when there may be messages

	mu    sync.Mutex
	msgs  []*nats.Msg
	bytes int
}

func newInbox() *inbox { return &inbox{ready: make(chan struct{}, 1)} }

func (i *inbox) put(m *nats.Msg) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if isPiece(m) && i.bytes+len(m.Data) > inboxBytes {
		return // the reader sees the gap in the numbers
	}
	i.msgs, i.bytes = append(i.msgs, m), i.bytes+len(m.Data)
	select {
	case i.ready <- struct{}{}:
	default: // the reader has been notified
	}
}

// refusal is put into an inbox when NATS may have dropped the request.
var refusal = &nats.Msg{}

func (i *inbox) refuse() { i.put(refusal) }

// closing is put into an inbox when its reader has called Close.
var closing = &nats.Msg{}

// take removes and returns all buffered messages.
func (i *inbox) take() []*nats.Msg {
	i.mu.Lock()
	defer i.mu.Unlock()
	all := i.msgs
	i.msgs, i.bytes = nil, 0
	return all
}

// isPiece reports whether a message of a streamed reply is a delta.
func isPiece(m *nats.Msg) bool {
	return m.Header.Get(headerSeq) != "" && m.Header.Get(headerEnd) == "" && m.Header.Get(micro.ErrorCodeHeader) == ""
}
