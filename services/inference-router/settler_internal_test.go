package router

import (
	"fmt"
	"runtime"
	"sync"
	"testing"

	"github.com/anima-run/anima/pkg/api"
)

// TestSettlerGathers checks that a single settlement is sent alone, that those which
// arrive meanwhile are sent together, and that each has its own result.
func TestSettlerGathers(t *testing.T) {
	t.Parallel()
	const others = 5
	var sizes []int
	sending, gathered := make(chan struct{}), make(chan struct{})
	var s settler
	s.most = api.MaxSettlements
	s.send = func(group []*settlement) {
		if sizes = append(sizes, len(group)); len(sizes) == 1 {
			close(sending)
			<-gathered
		}
		for _, x := range group {
			x.funds, x.err = &api.Funds{Available: x.what.Amount}, nil
		}
	}
	var all sync.WaitGroup
	pay := func(amount api.Micros) {
		funds, err := s.settle(t.Context(), api.Settle{Amount: amount})
		if err != nil || funds == nil || funds.Available != amount {
			t.Errorf("settlement %d: got %+v, %v", amount, funds, err)
		}
	}
	all.Go(func() { pay(0) })
	<-sending
	for n := range api.Micros(others) {
		all.Go(func() { pay(n + 1) })
	}
	for s.waits() < others {
		runtime.Gosched() // the callers enqueue without blocking
	}
	close(gathered)
	all.Wait()
	if fmt.Sprint(sizes) != fmt.Sprint([]int{1, others}) {
		t.Errorf("got groups of %v, want one of 1 and one of %d", sizes, others)
	}
	pay(7)
	if len(sizes) != 3 {
		t.Errorf("got groups of %v, want a third", sizes)
	}
}

func (s *settler) waits() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.waiting)
}

// TestSettlerAfterAPanic checks that after a panic of send no settlement of its group
// counts as sent, and that the next group is sent.
func TestSettlerAfterAPanic(t *testing.T) {
	t.Parallel()
	sending, joined := make(chan struct{}), make(chan struct{})
	n := 0
	var s settler
	s.most = api.MaxSettlements
	s.send = func(group []*settlement) {
		if n++; n == 1 {
			close(sending)
			<-joined
			panic("a bug")
		}
		for _, x := range group {
			x.err = nil
		}
	}
	ended := make(chan any)
	go func() {
		defer func() { ended <- recover() }()
		_, _ = s.settle(t.Context(), api.Settle{})
	}()
	<-sending
	next := make(chan error)
	go func() {
		_, err := s.settle(t.Context(), api.Settle{})
		next <- err
	}()
	for s.waits() == 0 {
		runtime.Gosched() // the caller enqueues without blocking
	}
	close(joined)
	if <-ended == nil {
		t.Error("the first caller did not panic")
	}
	if err := <-next; err != nil {
		t.Errorf("the settlement after the panic: got %v", err)
	}
}
