package bus

import (
	"fmt"
	"strconv"
	"sync"

	"github.com/nats-io/nats.go"
)

// mux receives all streamed replies of a client on one wildcard subscription.
type mux struct {
	bus     *Bus
	client  *client
	mu      sync.Mutex
	sub     *nats.Subscription
	prefix  string
	waiting map[string]*inbox
	count   int // replies registered
}

func newMux(b *Bus, cl *client) *mux {
	return &mux{bus: b, client: cl, waiting: map[string]*inbox{}}
}

func (x *mux) open() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.sub != nil {
		return nil
	}
	x.prefix = x.client.nc.NewInbox() + "."
	sub, err := x.client.nc.Subscribe(x.prefix+"*", func(m *nats.Msg) {
		x.mu.Lock()
		c := x.waiting[m.Subject]
		x.mu.Unlock()
		if c == nil {
			// The caller gave up before it received the control subject, or its
			// cancellation was lost.
			x.bus.cancelAt(m.Header.Get(headerControl), m.Subject)
			return
		}
		c.put(m)
	})
	if err != nil {
		return fmt.Errorf("replies: %w", err)
	}
	x.sub = sub
	return nil
}

func (x *mux) register() (string, *inbox, error) {
	if err := x.open(); err != nil {
		return "", nil, err
	}
	c := newInbox()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.count++
	reply := x.prefix + strconv.Itoa(x.count)
	x.waiting[reply] = c
	return reply, c, nil
}

func (x *mux) remove(reply string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.waiting, reply)
}

func (x *mux) close() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.sub != nil {
		_ = x.sub.Unsubscribe() // an error means that the connection is closed
		x.sub = nil
	}
}
