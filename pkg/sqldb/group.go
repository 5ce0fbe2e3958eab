package sqldb

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
)

const (
	// groupMax bounds how long the first of a group waits for the last.
	groupMax = 64
	// groupTimeout is of a group's transaction. It is nobody's in particular, so the
	// context of none ends it.
	groupTimeout = 30 * time.Second
)

// committer is group commit for SQLite: its writers queue anyway, so whoever waits
// when a commit ends shares the next one. One leads: it begins, lets each of the group
// run its function where that was called, first itself and then the others, each between
// a savepoint and its release, and commits. Then it hands over to one of those that came
// meanwhile.
type committer struct {
	pool  *litePool
	spans *spans

	mu      sync.Mutex
	led     bool      // somebody leads
	waiting []*member // in the order in which they came
}

// member is a transaction that waits for a leader.
type member struct {
	later bool           // it does not lead
	turn  chan *liteConn // told once: run your function in this, or, without one, lead the next group
	ran   chan error     // what became of the function
	done  chan error     // told once: committed, or not
}

// errAlone is the answer to who must try again by itself: another one of the group
// has broken the transaction that they shared.
var errAlone = errors.New("another transaction of the group failed")

// inTx runs fn in a transaction that it may share. later is how long it waits for
// others to begin one.
func (c *committer) inTx(ctx context.Context, later time.Duration, fn func(*Tx) error) error {
	err := c.join(ctx, later, fn)
	if !errors.Is(err, errAlone) {
		return err
	}
	return c.pool.once(ctx, beginWrite, fn)
}

func (c *committer) join(ctx context.Context, later time.Duration, fn func(*Tx) error) error {
	m := c.enter(later > 0)
	if m == nil {
		return c.lead(ctx, fn)
	}
	var patience <-chan time.Time
	if m.later {
		t := time.NewTimer(later)
		defer t.Stop()
		patience = t.C
	}
	gone, span := ctx.Done(), trace.Span(nil)
	for {
		select {
		case raw := <-m.turn:
			if raw == nil {
				return c.lead(ctx, fn)
			}
			if m.runs(raw, fn) {
				span = c.spans.start(ctx, "commit") // which the leader does, and this one waits for
			}
		case err := <-m.done:
			finish(ctx, span, err)
			return err
		case <-patience:
			if c.hurry(m) {
				return c.lead(ctx, fn)
			}
		case <-gone:
			if c.leave(m) {
				return ctx.Err()
			}
			gone = nil // it was taken along: fn may run, and must not outlive this
		}
	}
}

// enter makes the caller the leader, and returns nil, or one that waits.
func (c *committer) enter(later bool) *member {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.led && !later {
		c.led = true
		return nil
	}
	m := &member{later: later, turn: make(chan *liteConn, 1), ran: make(chan error, 1), done: make(chan error, 1)}
	c.waiting = append(c.waiting, m)
	return m
}

// hurry ends the patience of m and reports whether it leads.
func (c *committer) hurry(m *member) (leads bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m.later = false
	i := slices.Index(c.waiting, m)
	if c.led || i < 0 {
		return false
	}
	c.waiting = slices.Delete(c.waiting, i, i+1)
	c.led = true
	return true
}

// leave takes m out of those that wait; false means that it waits no more.
func (c *committer) leave(m *member) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.Index(c.waiting, m)
	if i >= 0 {
		c.waiting = slices.Delete(c.waiting, i, i+1)
	}
	return i >= 0
}

// handOver lets the next one lead.
func (c *committer) handOver() {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.waiting, func(m *member) bool { return !m.later })
	if c.led = i >= 0; c.led {
		m := c.waiting[i]
		c.waiting = slices.Delete(c.waiting, i, i+1)
		m.turn <- nil
	}
}

// lead runs fn, and all that wait now, in one transaction.
func (c *committer) lead(ctx context.Context, fn func(*Tx) error) error {
	defer c.handOver() // also when fn panics
	// Goroutines that are ready to run may be about to write, too: they join this
	// transaction. Where there are none, this costs nothing.
	runtime.Gosched()
	c.mu.Lock()
	n := min(len(c.waiting), groupMax-1)
	others := slices.Clone(c.waiting[:n])
	c.waiting = slices.Delete(c.waiting, 0, n)
	c.mu.Unlock()
	if len(others) == 0 {
		return c.pool.once(ctx, beginWrite, fn)
	}
	results := make([]error, len(others)+1)
	for i := range results {
		results[i] = errAlone // unless it is known better
	}
	defer func() {
		for i, o := range others {
			o.done <- results[i+1]
		}
	}()
	c.together(ctx, others, fn, results)
	return results[0]
}

// together runs the functions of a leader and of others in one transaction, and fills
// in what became of each: own errors stay with who caused them.
func (c *committer) together(ctx context.Context, others []*member, fn func(*Tx) error, results []error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), groupTimeout)
	defer cancel()
	conn, err := c.pool.acquire(ctx)
	if err == nil {
		defer c.pool.release(conn) // rolls back what is not committed
		if err = conn.control(savepointsInMemory); err == nil {
			err = conn.control(beginWrite)
		}
	}
	if err != nil {
		for i := range results {
			results[i] = mapIn(ctx, err)
		}
		return
	}
	// The leader is the first: if its function fails there is nothing else to keep, and
	// no savepoint is needed to which SQLite would have to copy every page before it is
	// changed.
	good := 0
	if err := insideShared(conn, fn); err == nil {
		if conn.raw.AutocommitEnabled() {
			return // fn has ended the transaction, and says nothing
		}
		good++
	} else {
		results[0] = err
		if err := conn.rollback(); err != nil {
			return
		}
		if err := conn.control(beginWrite); err != nil {
			for i := range others {
				results[i+1] = mapIn(ctx, err)
			}
			return
		}
	}
	for i, o := range others {
		if err := conn.control("savepoint member"); err != nil {
			return
		}
		o.turn <- conn
		err := <-o.ran
		if err != nil {
			results[i+1] = err
			err = conn.control("rollback to member")
		} else {
			good++
		}
		if err == nil {
			err = conn.control("release member")
		}
		if err != nil {
			return // SQLite has rolled it all back; nothing of the others is kept
		}
	}
	if good == 0 {
		return
	}
	if err = mapIn(ctx, conn.commit(ctx)); err != nil && !errors.Is(err, ErrBusy) {
		return // it may be the fault of one
	}
	for i := range results {
		if errors.Is(results[i], errAlone) {
			results[i] = err
		}
	}
}

// errPanicked is the end of a function that did not return; who called it sees why.
var errPanicked = errors.New("the transaction's function did not return")

// runs runs fn in the group's transaction and tells the leader what became of it.
func (m *member) runs(conn *liteConn, fn func(*Tx) error) (ok bool) {
	err := errPanicked
	defer func() { m.ran <- err }()
	err = insideShared(conn, fn)
	return err == nil
}

// insideShared runs fn in the transaction that is open on conn.
func insideShared(conn *liteConn, fn func(*Tx) error) error {
	defer conn.endReading()
	return inside(&Tx{Engine: SQLite, lite: conn}, fn)
}

// savepointsInMemory keeps the pages as they were at a savepoint in memory: a temporary
// file costs a system call for each. SQLite does it when the statement is compiled, once
// for a connection, and before the transaction. A connection without groups is left as it
// is opened: a migration may sort more than there is memory.
const savepointsInMemory = "pragma temp_store=memory"

// beginWrite begins a transaction that is the only writer from its start.
const beginWrite = "begin immediate"
