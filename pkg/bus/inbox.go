package bus

import (
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

// inboxBytes is what may wait for the caller of a streamed reply. A piece beyond it is
// dropped; the answer at the end never is.
const inboxBytes = 8 << 20

// inbox holds the messages of one streamed reply until its caller reads them. It never
// blocks the connection, which brings the replies of all callers.
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
		return // its number will be missing
	}
	i.msgs, i.bytes = append(i.msgs, m), i.bytes+len(m.Data)
	select {
	case i.ready <- struct{}{}:
	default: // the caller has been told already
	}
}

// refusal in an inbox says that NATS may have dropped the question.
var refusal = &nats.Msg{}

func (i *inbox) refuse() { i.put(refusal) }

// take returns all that waits.
func (i *inbox) take() []*nats.Msg {
	i.mu.Lock()
	defer i.mu.Unlock()
	all := i.msgs
	i.msgs, i.bytes = nil, 0
	return all
}

// isPiece says that a message of a streamed reply is one of its deltas.
func isPiece(m *nats.Msg) bool {
	return m.Header.Get(headerSeq) != "" && m.Header.Get(headerEnd) == "" && m.Header.Get(micro.ErrorCodeHeader) == ""
}
