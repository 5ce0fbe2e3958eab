package sqldb

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"
)

const (
	// groupMax is the maximum number of transactions in a group: the first one waits for
	// the last.
	groupMax = 64
	// groupTimeout is the time limit of a group's transaction. The context of no single
	// member ends it, because it is shared.
	groupTimeout = 30 * time.Second
)

// committer implements group commit for SQLite. Writers queue for the only write
// connection; those that wait when a commit ends share the next one. One of them is the
// leader: it begins the transaction, runs its own function, then lets each of the other
// members run its function in the goroutine of the member, between a savepoint and its
// release, and commits. Then it hands the leadership over to a member that joined
// meanwhile.
type committer struct {
	pool *litePool

	mu      sync.Mutex
	led     bool      // a leader is active
	waiting []*member // in the order of arrival
}

// member is a transaction that waits for a leader.
type member struct {
	later bool           // cannot be the leader while it defers its write
	turn  chan *liteConn // receives a connection to run the function on, or nil to lead the next group
	ran   chan error     // the error of the function
	done  chan error     // receives the result of the commit once
}

// errAlone makes a member retry in a separate transaction, because another member
// broke the shared one.
var errAlone = errors.New("another transaction of the group failed")

// inTx runs fn in a transaction that it may share. later is how long it waits for another
// transaction to join; 0 means that it begins one as soon as it can.
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
	gone := ctx.Done()
	for {
		select {
		case raw := <-m.turn:
			if raw == nil {
				return c.lead(ctx, fn)
			}
			m.runs(raw, fn)
		case err := <-m.done:
			return err
		case <-patience:
			if c.hurry(m) {
				return c.lead(ctx, fn)
			}
		case <-gone:
			if c.leave(m) {
				return ctx.Err()
			}
			gone = nil // fn may be running and must not outlive this call
		}
	}
}

// enter makes the caller the leader and returns nil, or returns a member that waits.
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

// hurry ends the deferral of m and reports whether m is now the leader.
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

// leave removes m from the waiting members; it returns false if m was not waiting any
// more.
func (c *committer) leave(m *member) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.Index(c.waiting, m)
	if i >= 0 {
		c.waiting = slices.Delete(c.waiting, i, i+1)
	}
	return i >= 0
}

// handOver makes the next waiting member the leader, unless all of them are deferred.
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

// lead runs fn and the functions of the waiting members in one transaction.
func (c *committer) lead(ctx context.Context, fn func(*Tx) error) error {
	defer c.handOver() // also when fn panics
	// Runnable goroutines may be about to write too: they join this transaction. If there
	// are none, this costs almost nothing.
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
		results[i] = errAlone // the default, until the function or the commit has a result
	}
	defer func() {
		for i, o := range others {
			o.done <- results[i+1]
		}
	}()
	c.together(ctx, others, fn, results)
	return results[0]
}

// together runs the functions of the leader and of the others in one transaction, and
// sets the result of each. The error of a function is the result of its own member only.
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
	// The leader runs first and without a savepoint: if its function fails, there is
	// nothing else to keep. With a savepoint SQLite would copy every page before changing
	// it.
	good := 0
	if err := insideShared(conn, fn); err == nil {
		if conn.raw.AutocommitEnabled() {
			return // fn ended the transaction without an error: each member retries alone
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
			return // SQLite rolled back the whole transaction: the members without an error retry alone
		}
	}
	if good == 0 {
		return
	}
	if err = mapIn(ctx, conn.commit(ctx)); err != nil && !errors.Is(err, ErrBusy) {
		return // one member may have caused it: each retries alone
	}
	for i := range results {
		if errors.Is(results[i], errAlone) {
			results[i] = err
		}
	}
}

// errPanicked is the result of a function that panicked. Its caller receives the panic.
var errPanicked = errors.New("the transaction's function did not return")

// runs runs fn in the group's transaction and sends its error to the leader.
func (m *member) runs(conn *liteConn, fn func(*Tx) error) {
	err := errPanicked
	defer func() { m.ran <- err }()
	err = insideShared(conn, fn)
}

// insideShared runs fn in the open transaction of conn.
func insideShared(conn *liteConn, fn func(*Tx) error) error {
	defer conn.endReading()
	return inside(&Tx{Engine: SQLite, lite: conn}, fn)
}

// savepointsInMemory makes SQLite keep the saved pages of a savepoint in memory: a
// temporary file costs a system call for each page. It must run before the transaction;
// SQLite applies it when the statement is compiled, once for each connection. It is not
// set when a connection is opened, because a migration may sort more data than fits into
// memory.
const savepointsInMemory = "pragma temp_store=memory"

// beginWrite begins a transaction that is the only writer from its start.
const beginWrite = "begin immediate"
