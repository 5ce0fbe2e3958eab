package router

import (
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/anima-run/anima/pkg/wait"
)

// gatherer sends items in groups, one group at a time. An item that arrives while no group
// is in progress is sent at once or after the pause; items that arrive meanwhile form the
// next group. gatherer starts no goroutine: the first caller sends its group, then one of
// the waiting callers sends the next. It is safe for concurrent use.
type gatherer[T any] struct {
	most  int                  // items in a group
	send  func(group []T)      // sets the result of each item
	pause func() time.Duration // how long a group waits for further items before it is sent; nil: not at all

	mu      sync.Mutex
	waiting []*gathered[T]
	sending bool
}

// gathered is one call of [gatherer.do] in progress.
type gathered[T any] struct {
	item     T
	sendNext chan bool // receives one value: true, this caller sends the next group; false, its item was sent
}

// do sends an item and returns when its group was sent. It waits for at most two groups,
// unless more than most items wait. The result of an item must be an error before: it
// remains if send panics.
func (g *gatherer[T]) do(item T) {
	x := &gathered[T]{item: item, sendNext: make(chan bool, 1)}
	g.mu.Lock()
	g.waiting = append(g.waiting, x)
	leads := !g.sending
	g.sending = true
	g.mu.Unlock()
	if leads || <-x.sendNext {
		g.sendGroup(x)
	}
}

// sendGroup sends the next group of waiting items; x is the first of them.
func (g *gatherer[T]) sendGroup(x *gathered[T]) {
	runtime.Gosched() // goroutines that are ready to add an item join the group
	if g.pause != nil {
		if d := g.pause(); d > 0 {
			_ = wait.For(context.Background(), d) // bounded by the pause
		}
	}
	g.mu.Lock()
	n := min(len(g.waiting), g.most)
	group := g.waiting[:n:n]
	g.waiting = g.waiting[n:]
	g.mu.Unlock()
	defer func() { // deferred, because the other callers wait even if send panics
		for _, y := range group {
			if y != x {
				y.sendNext <- false
			}
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.sending = len(g.waiting) > 0; g.sending {
			g.waiting[0].sendNext <- true
		}
	}()
	items := make([]T, n)
	for i, y := range group {
		items[i] = y.item
	}
	g.send(items)
}
