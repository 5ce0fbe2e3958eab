package session

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/embednats/clustertest"

	"github.com/anima-run/anima/services/loop/internal/engine"
)

// sessions holds the resources that the processes of a test share.
type sessions struct {
	bus   *bus.Bus
	locks *bus.Bucket[api.Lock]
}

func openSessions(t *testing.T, b *bus.Bus) sessions {
	t.Helper()
	locks, err := bus.OpenBucket[api.Lock](t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	return sessions{b, locks}
}

// process returns the locks of a separate process.
func (s sessions) process(t *testing.T, owner string, ttl time.Duration) Locks {
	t.Helper()
	return NewLocks(s.locks, Journal{s.bus}, owner, ttl, time.Now, apptest.Log(t))
}

// renewal waits for a renewal of a session's lease with a revision greater than after.
func (s sessions) renewal(ctx context.Context, session string, after uint64) (e bus.Entry[api.Lock], err error) {
	came := errors.New("came")
	err = s.locks.Watch(ctx, api.LockKey(session), nil, func(v bus.Entry[api.Lock]) error {
		if v.Deleted || v.Revision <= after {
			return nil
		}
		e = v
		return came
	})
	if errors.Is(err, came) {
		err = nil
	}
	return e, err
}

// TestTenure tests that a session belongs to the process that has appended the last
// entry of its journal.
func TestTenure(t *testing.T) {
	t.Parallel()
	s := openSessions(t, apptest.Bus(t))
	this, other := s.process(t, "this", time.Hour), s.process(t, "other", time.Hour)
	cmd, next := api.Run{Run: "r", Session: "s", Agent: "a"}, api.Run{Run: "next", Session: "s", Agent: "a"}
	own := func(l Locks, cmd api.Run) error {
		return l.With(t.Context(), cmd, func(ctx context.Context) error { return l.Journal.Own(ctx, cmd, 1) })
	}
	err := this.With(t.Context(), cmd, func(ctx context.Context) error {
		if err := own(this, cmd); api.CodeOf(err) != api.Conflict || api.ReasonOf(err) == api.ReasonBusy {
			t.Errorf("the run itself, delivered again, got %v, want a conflict that is no reason to expire", err)
		}
		if err := own(this, next); api.ReasonOf(err) != api.ReasonBusy {
			t.Errorf("another run of the process got %v, want that the session is busy", err)
		}
		if err := own(other, cmd); err != nil {
			t.Errorf("before the run is in the journal another process got %v, want the session", err)
		}
		if err := this.Journal.Own(ctx, cmd, 1); err != nil {
			return err
		}
		if err := own(other, cmd); api.CodeOf(err) != api.Conflict || api.ReasonOf(err) == api.ReasonBusy || api.Wire(err).RetryAfter != 1000 {
			t.Errorf("the same run in another process got %v, want a conflict for a second", err)
		}
		if err := own(other, next); api.ReasonOf(err) != api.ReasonBusy {
			t.Errorf("another run in another process got %v, want that the session is busy", err)
		}
		if _, err := s.locks.Get(ctx, api.LockKey("s")); api.CodeOf(err) != api.NotFound {
			t.Errorf("a run that has just written has renewed its lease: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	m, err := s.bus.Last(t.Context(), api.Journal{Session: "s"}.Subject())
	var e api.Journal
	if err == nil {
		err = api.Decode(m.Data, &e)
	}
	if err != nil || e.Kind != api.EntryRelease || e.Owner != "this" || e.Run != "r" {
		t.Errorf("the journal ends with %+v, %v; want that the run is handed back", e, err)
	}
	// The entry that ends a run releases the session, and no release follows it.
	err = other.With(t.Context(), next, func(ctx context.Context) error {
		if err := other.Journal.Own(ctx, next, 1); err != nil {
			return err
		}
		_, err := other.Journal.Append(ctx, next, engine.Step{Run: "next", Turn: 1, End: &api.LoopEnd{Run: "next"}}, ownershipOf(ctx).last)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if m, err = s.bus.Last(t.Context(), api.Journal{Session: "s"}.Subject()); err == nil {
		err = api.Decode(m.Data, &e)
	}
	if err != nil || e.Kind != api.EntryEnd {
		t.Errorf("the journal ends with %+v, %v; want the end of the run", e, err)
	}
	if err := own(this, cmd); err != nil {
		t.Errorf("after the end another process got %v, want the session", err)
	}
}

// TestRenewals tests that a lease is renewed in the bucket if no entry extends it. The
// answer of NATS may be lost with its leader: a renewal that was stored without an
// answer still belongs to its process.
func TestRenewals(t *testing.T) {
	t.Parallel()
	s := openSessions(t, apptest.Bus(t))
	const ttl = 3 * time.Second // renewed every 0.5 s
	this, other := s.process(t, "this", ttl), s.process(t, "other", ttl)
	cmd := api.Run{Run: "r", Session: "s", Agent: "a"}
	key := api.LockKey(cmd.Session)
	err := this.With(t.Context(), cmd, func(ctx context.Context) error {
		if err := this.Journal.Own(ctx, cmd, 1); err != nil {
			return err
		}
		first, err := s.renewal(ctx, "s", 0)
		if err != nil {
			return err
		}
		if v := first.Value; v.Owner != "this" || v.Run != "r" || v.Epoch != 1 {
			t.Errorf("renewed with %+v", v)
		}
		// A renewal was stored and its answer was lost. The next renewals continue from
		// its revision.
		value := first.Value
		value.Expires = time.Now().Add(ttl).UnixMicro()
		stored, err := s.locks.Update(ctx, key, value, first.Revision, ttl)
		if api.CodeOf(err) == api.Conflict { // the next renewal was faster
			stored, err = first.Revision+1, nil
		}
		if err != nil {
			return err
		}
		if _, err := s.renewal(ctx, "s", stored); err != nil {
			t.Errorf("waiting for a renewal: %v", err)
		}
		var e api.Journal
		if m, err := s.bus.Last(ctx, api.Journal{Session: "s"}.Subject()); err != nil || api.Decode(m.Data, &e) != nil {
			t.Errorf("the journal: %v", err)
		}
		e.Expires = 1 // as after the lease has expired
		if err := other.newOwnership(cmd).free(ctx, e); api.CodeOf(err) != api.Conflict {
			t.Errorf("another process got %v, want that the lease was renewed", err)
		}
		return nil
	})
	if err != nil {
		t.Errorf("with its own renewals: %v", err)
	}
	if _, err := s.locks.Get(t.Context(), key); api.CodeOf(err) != api.NotFound {
		t.Errorf("after the work the renewal is there: %v", err)
	}
	// A renewal by the next owner, whose epoch is later, ends the work.
	err = this.With(t.Context(), cmd, func(ctx context.Context) error {
		if err := this.Journal.Own(ctx, cmd, 1); err != nil {
			return err
		}
		if _, err := s.locks.Create(ctx, key, api.Lock{Run: "r", Owner: "other", Epoch: 1000, Expires: time.Now().Add(time.Hour).UnixMicro()}, time.Hour); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	})
	if !errors.Is(err, errLeaseLost) {
		t.Errorf("got %v, want %v", err, errLeaseLost)
	}
}

// TestReleasedAfterAPanic tests that a session is returned if its run panics, and that its
// lease is not renewed any more.
func TestReleasedAfterAPanic(t *testing.T) {
	t.Parallel()
	s := openSessions(t, apptest.Bus(t))
	this, other := s.process(t, "this", time.Hour), s.process(t, "other", time.Hour)
	cmd := api.Run{Run: "r", Session: "s", Agent: "a"}
	var work context.Context
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was lost")
			}
		}()
		_ = this.With(t.Context(), cmd, func(ctx context.Context) error {
			work = ctx
			if err := this.Journal.Own(ctx, cmd, 1); err != nil {
				return err
			}
			panic("a fault of the engine")
		})
	}()
	if work.Err() == nil {
		t.Error("the context of the run has not ended")
	}
	err := other.With(t.Context(), cmd, func(ctx context.Context) error { return other.Journal.Own(ctx, cmd, 1) })
	if err != nil {
		t.Errorf("another replica got %v, want the session", err)
	}
}

// TestReleasedAgain tests that a session is released even if the first release is lost,
// because its next message may be delivered to another replica.
func TestReleasedAgain(t *testing.T) {
	t.Parallel()
	w := apptest.Start(t, apptest.Options{})
	s := openSessions(t, w.Bus)
	this, other := s.process(t, "this", time.Hour), s.process(t, "other", time.Hour)
	cmd := api.Run{Run: "r", Session: "s", Agent: "a"}
	err := this.With(t.Context(), cmd, func(ctx context.Context) error {
		if err := this.Journal.Own(ctx, cmd, 1); err != nil {
			return err
		}
		stop, err := clustertest.Swallow(w.NATS, api.Journal{Session: "s"}.Subject().String())
		if err == nil {
			t.Cleanup(stop)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	err = other.With(t.Context(), cmd, func(ctx context.Context) error { return other.Journal.Own(ctx, cmd, 1) })
	if err != nil {
		t.Errorf("another replica got %v, want the session", err)
	}
}

// TestLockIsFree tests that a session is held until its lease expires, or until the
// next process with the same data folder requests it. The same applies to the key of a
// renewal, also without a TTL.
func TestLockIsFree(t *testing.T) {
	t.Parallel()
	b := apptest.Bus(t)
	s := openSessions(t, b)
	past, future := time.Now().UnixMicro(), time.Now().Add(time.Hour).UnixMicro()
	for i, c := range []struct {
		name, owner    string
		entry, expires int64 // of the journal entry, and of its renewal
		free           bool
	}{
		{"expired", "other/1", past, past, true},
		{"of the installation, before", api.OwnerName("folder", "1"), future, future, true},
		{"of another installation", api.OwnerName("other", "1"), future, future, false},
		{"of another process", "1", future, past, false},
		{"renewed by another process", "1", past, future, false},
		{"of a release before", "", 0, future, false},
		{"of a release before, expired", "", 0, past, true},
	} {
		cmd := api.Run{Run: "r", Session: fmt.Sprintf("s%d", i), Agent: "a"}
		key := api.LockKey(cmd.Session)
		renewer := c.owner
		if renewer == "" {
			renewer = "1"
		}
		// Without a TTL, as a server restores it.
		if _, err := s.locks.Create(t.Context(), key, api.Lock{Run: "before", Owner: renewer, Expires: c.expires}, 0); err != nil {
			t.Fatal(err)
		}
		entry := api.Journal{Session: cmd.Session, Run: "before", Kind: api.EntryBegin, Owner: c.owner, Expires: c.entry, Entry: []byte(`{}`)}
		if _, err := b.Append(t.Context(), "entry/"+cmd.Session, entry, 0); err != nil {
			t.Fatal(err)
		}
		l := s.process(t, api.OwnerName("folder", "2"), time.Minute)
		err := l.With(t.Context(), cmd, func(ctx context.Context) error { return l.Journal.Own(ctx, cmd, 1) })
		if c.free && err != nil || !c.free && api.ReasonOf(err) != api.ReasonBusy {
			t.Errorf("%s: got %v, want it %t", c.name, err, c.free)
		}
		if err := l.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, err = s.locks.Get(t.Context(), key)
		if gone, want := api.CodeOf(err) == api.NotFound, c.expires == past || api.Predecessor(l.owner, renewer); gone != want {
			t.Errorf("%s: the renewal is deleted %t, %v; want %t", c.name, gone, err, want)
		}
	}
}
