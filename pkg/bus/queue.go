package bus

import (
	"sync/atomic"

	"github.com/nats-io/nats.go"
)

// Limit bounds the requests of one type that a process handles at a time: [Workers] or
// [Queue].
type Limit interface{ limit(*pool) }

// Workers limits how many requests of one type are handled at a time.
type Workers int

// DefaultWorkers is the limit of a [Reply] or [Stream] without Workers.
const DefaultWorkers Workers = 64

// Queue is the number of requests that may be in their handler in addition to Workers, for
// a handler that lets requests wait. A request takes such a place only if no replica took
// it in several tries: otherwise it would wait at one replica while another one has free
// workers. The default is 0.
type Queue int

func (n Workers) limit(p *pool) { p.workers = int(n) }
func (n Queue) limit(p *pool)   { p.queue = int(n) }

// pool counts the requests of one type that are being handled.
type pool struct {
	workers, queue int
	active         atomic.Int64
}

func newPool(limits []Limit) *pool {
	p := &pool{workers: int(DefaultWorkers)}
	for _, l := range limits {
		l.limit(p)
	}
	return p
}

// take takes a place for a request and reports whether there was one. tried is whether no
// replica took the request before.
func (p *pool) take(tried bool) bool {
	most := p.workers
	if tried {
		most += p.queue
	}
	if p.active.Add(1) <= int64(most) {
		return true
	}
	p.leave()
	return false
}

func (p *pool) leave() { p.active.Add(-1) }

// manyTries is the number of tries after which a request may wait in a replica, see
// [Queue]. NATS chooses a replica at random for each, and the pauses between them take 150
// to 310 ms in all.
const manyTries = 5

// tried marks a message that is about to be sent again after a try, which counts from 0.
func tried(m *nats.Msg, try int) {
	if try+1 >= manyTries {
		m.Header.Set(headerTried, "1")
	}
}
