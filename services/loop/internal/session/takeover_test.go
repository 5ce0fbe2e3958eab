package session

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"

	"github.com/anima-run/anima/services/loop/internal/engine"
)

// takeovers returns the number of takeovers in ANIMA_TAKEOVERS, which make takeovers
// sets, or a small default.
func takeovers(t *testing.T) int {
	v := os.Getenv("ANIMA_TAKEOVERS")
	if v == "" {
		return 160
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 {
		t.Fatalf("ANIMA_TAKEOVERS=%q", v)
	}
	return n
}

// TestTakeovers takes sessions over from paused owners, as when their lease expires,
// and lets both owners write concurrently: the previous owner that resumes and the new
// owner. Then the journal of each session, read from the stream, must have one writer
// at a time, whichever owner was first.
func TestTakeovers(t *testing.T) {
	t.Parallel()
	b := apptest.Bus(t)
	locks, err := bus.OpenBucket[api.Lock](t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	const sessions = 8
	var refused, overtaken atomic.Int64
	var all sync.WaitGroup
	each := (takeovers(t) + sessions - 1) / sessions
	for i := range sessions {
		all.Go(func() {
			s := contested{
				cmd: api.Run{Run: fmt.Sprintf("r%d", i), Session: fmt.Sprintf("s%d", i), Agent: "a"}, journal: Journal{b},
				// The lease is longer than the test, so no owner renews it, and a
				// paused owner is really paused. The clock of each owner shows that the
				// lease of the previous owner has expired.
				locks: func(owner int) Locks {
					now := func() time.Time { return time.Now().Add(time.Duration(owner) * 2 * time.Hour) }
					return NewLocks(locks, Journal{b}, strconv.Itoa(owner), time.Hour, now, apptest.Log(t))
				},
				rng: rand.New(rand.NewPCG(1, uint64(i))), refused: &refused, overtaken: &overtaken,
			}
			if err := s.run(t.Context(), each); err != nil {
				t.Errorf("%s: %v", s.cmd.Session, err)
			}
			if err := s.judge(t.Context(), b, each); err != nil {
				t.Errorf("%s: %v", s.cmd.Session, err)
			}
		})
	}
	all.Wait()
	t.Logf("%d take-overs: %d times the owner before was refused, %d times it was still first", sessions*each, refused.Load(), overtaken.Load())
	if refused.Load() != int64(sessions*each) {
		t.Errorf("%d owners of the past were refused in the end, want all %d", refused.Load(), sessions*each)
	}
}

// contested is a session that several owners take over in turn.
type contested struct {
	cmd                api.Run
	journal            Journal
	locks              func(owner int) Locks // each owner is a separate process
	owners             int
	rng                *rand.Rand
	persisted          uint64 // sequence up to which new owners need not read
	refused, overtaken *atomic.Int64
}

// owner holds a session until release is called.
type owner struct {
	ctx   context.Context //nolint:containedctx // with its ownership
	last  uint64          // last sequence that it has read
	leave chan struct{}
	left  chan error
}

// own takes the session as a run does.
func (s *contested) own(ctx context.Context) (*owner, error) {
	o := &owner{last: s.persisted, leave: make(chan struct{}), left: make(chan error, 1)}
	has := make(chan struct{})
	s.owners++
	locks := s.locks(s.owners)
	go func() {
		o.left <- locks.With(ctx, s.cmd, func(ctx context.Context) error {
			o.ctx = ctx
			close(has)
			<-o.leave
			return nil
		})
	}()
	select {
	case <-has:
		return o, nil
	case err := <-o.left:
		return nil, err
	}
}

func (o *owner) release() error {
	close(o.leave)
	return <-o.left
}

// write appends a step that contains the sequence it was appended on top of.
func (s *contested) write(o *owner, step engine.Step) error {
	step.Turn = 1
	if step.Begin != nil {
		step.Begin.At = int64(o.last)
	} else {
		step.Result = &engine.Result{At: int64(o.last)}
	}
	seq, err := s.journal.Append(o.ctx, s.cmd, step, o.last)
	if err == nil {
		o.last = seq
	}
	return err
}

// begin starts or resumes the run: it reads the tail of the journal and appends a
// begin. It retries if the previous owner was faster.
func (s *contested) begin(o *owner) error {
	for {
		var err error
		if _, o.last, err = s.journal.Tail(o.ctx, s.cmd, o.last); err != nil {
			return err
		}
		err = s.write(o, engine.Step{Begin: &engine.Begin{Attempt: 1}})
		if api.CodeOf(err) != api.Conflict {
			return err
		}
		s.overtaken.Add(1)
	}
}

func (s *contested) run(ctx context.Context, times int) error {
	now, err := s.own(ctx)
	if err != nil {
		return err
	}
	if err := s.begin(now); err != nil {
		return err
	}
	for range times {
		before := now
		for range s.rng.IntN(3) {
			if err := s.write(before, engine.Step{}); err != nil {
				return fmt.Errorf("the only owner: %w", err)
			}
		}
		s.persisted = before.last
		// The owner is paused, and its lease expires.
		if now, err = s.own(ctx); err != nil {
			return fmt.Errorf("take over: %w", err)
		}
		// The owner resumes, after the begin of the next owner or concurrently with it.
		awake := make(chan error, 1)
		wake := func() {
			for range 3 {
				if err := s.write(before, engine.Step{}); err != nil {
					awake <- err
					return
				}
			}
			awake <- nil
		}
		early := s.rng.IntN(2) == 0
		if early {
			go wake()
		}
		if err := s.begin(now); err != nil {
			return fmt.Errorf("begin: %w", err)
		}
		if !early {
			go wake()
		}
		for range 3 {
			if err := s.write(now, engine.Step{}); err != nil {
				return fmt.Errorf("the new owner: %w", err)
			}
		}
		if err := <-awake; err != nil && api.CodeOf(err) != api.Conflict || err == nil && !early {
			return fmt.Errorf("the owner of the past, woken early %t, must be refused with a conflict: %w", early, err)
		}
		if err := s.write(before, engine.Step{}); api.CodeOf(err) != api.Conflict {
			return fmt.Errorf("the owner of the past must be refused once more with a conflict: %w", err)
		}
		s.refused.Add(1)
		if err := before.release(); err != nil {
			return err
		}
	}
	return now.release()
}

// judge reads the session's journal from the stream and checks it.
func (s *contested) judge(ctx context.Context, b *bus.Bus, times int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	end, err := b.Last(ctx, api.Journal{Session: s.cmd.Session}.Subject())
	if err != nil {
		return err
	}
	done := errors.New("all read")
	var last, epoch uint64
	owners := 0
	err = b.Follow(ctx, 0, func(m bus.Stored) error {
		var e api.Journal
		if err := api.Decode(m.Data, &e); err != nil {
			return err
		}
		var top struct {
			Begin, Result *struct{ At uint64 }
			Release       bool
		}
		if err := api.Decode(e.Entry, &top); err != nil {
			return err
		}
		if top.Release && m.Sequence == end.Sequence { // the last owner releases the session
			return done
		}
		on := top.Begin
		if on == nil {
			on = top.Result
		}
		switch {
		case on.At != last:
			return fmt.Errorf("entry %d was written on top of %d, and follows %d", m.Sequence, on.At, last)
		case e.Epoch < epoch:
			return fmt.Errorf("entry %d is of epoch %d, after one of %d", m.Sequence, e.Epoch, epoch)
		case e.Epoch > epoch && top.Begin == nil:
			return fmt.Errorf("epoch %d does not begin", e.Epoch)
		case e.Epoch > epoch:
			owners++
		}
		if last, epoch = m.Sequence, e.Epoch; last == end.Sequence {
			return done
		}
		return nil
	}, api.Journal{Session: s.cmd.Session}.Subject().String())
	switch {
	case !errors.Is(err, done):
		return err
	case owners != times+1:
		return fmt.Errorf("%d owners wrote, want %d", owners, times+1)
	}
	return nil
}
