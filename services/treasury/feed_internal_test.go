package treasury

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/host"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
	"github.com/anima-run/anima/services/treasury/internal/ledger"
	"github.com/anima-run/anima/services/treasury/internal/sqlstore"
)

// treasuryBus returns the bus of a treasury without routes.
func treasuryBus(t *testing.T) *bus.Bus {
	t.Helper()
	got := make(chan *bus.Bus, 1)
	apptest.Start(t, apptest.Options{}, host.Define("treasury", struct{}{}, fs.FS(nil), func(ctx context.Context, env *host.Env, _ struct{}) error {
		got <- env.Bus
		return env.Serve(ctx)
	}))
	return <-got
}

// replica is the ledger as one process opens it.
type replica struct {
	*ledger.Ledger
	store *sqlstore.Store
}

// openLedger opens the ledger as another process would, with an account of lucky.
func openLedger(t *testing.T, db *sqldb.DB) replica {
	t.Helper()
	again, err := db.Reopen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	store := sqlstore.New(again, nil)
	b := ledger.New(store, ledger.Options{Now: time.Now})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { b.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
		if err := again.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	if err := b.Open(t.Context(), "lucky"); err != nil {
		t.Fatal(err)
	}
	return replica{b, store}
}

func (r replica) deposit(t *testing.T, id, memo string) {
	t.Helper()
	_, err := r.Deposit(t.Context(), ledger.DepositRequest{ID: id, Agent: "lucky", Amount: 1, Source: "faucet", Memo: memo})
	if err != nil {
		t.Errorf("deposit %s: %v", id, err)
	}
}

// wantPublished checks that the stream has all transactions after a sequence number, once
// and in order.
func wantPublished(t *testing.T, b *bus.Bus, own replica, after int64) (batches []api.PostedBatch) {
	t.Helper()
	var want, got []api.Posted
	for at := after; ; {
		ts, err := own.store.Transactions(t.Context(), "", at, 1000)
		if err != nil {
			t.Fatal(err)
		}
		for i := range ts {
			want = append(want, posted(&ts[i]))
			at = ts[i].Seq
		}
		if len(ts) == 0 {
			break
		}
	}
	var subject api.PostedBatch
	for from := uint64(0); ; {
		m, err := b.Next(t.Context(), subject.Subject(), from)
		if api.CodeOf(err) == api.NotFound {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		from = m.Sequence + 1
		var batch api.PostedBatch
		if err := api.Decode(m.Data, &batch); err != nil {
			t.Fatal(err)
		}
		batches = append(batches, batch)
		if strings.HasPrefix(batch.Entries[0].ID, "elsewhere") {
			continue
		}
		if batch.First != batch.Entries[0].Seq || batch.Last != batch.Entries[len(batch.Entries)-1].Seq {
			t.Errorf("message %d: it says %d to %d and has %d to %d", m.Sequence, batch.First, batch.Last, batch.Entries[0].Seq, batch.Entries[len(batch.Entries)-1].Seq)
		}
		got = append(got, batch.Entries...)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("published (-kept +published):\n%s", diff)
	}
	return batches
}

func pass(t *testing.T, f *feed) {
	t.Helper()
	if err := f.pass(t.Context()); err != nil {
		t.Errorf("pass: %v", err)
	}
}

// TestFeedsOfReplicas checks two replicas that write and publish at the same time.
func TestFeedsOfReplicas(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		b := treasuryBus(t)
		replicas := []replica{openLedger(t, db), openLedger(t, db)}
		var writing, publishing sync.WaitGroup
		written := make(chan struct{})
		for i, r := range replicas {
			f := newFeed(r.store, postedStream{b}, apptest.Log(t))
			for w := range 4 {
				writing.Go(func() {
					for n := range 20 {
						r.deposit(t, fmt.Sprintf("%d-%d-%d", i, w, n), "")
					}
				})
			}
			publishing.Go(func() {
				for done := false; !done; {
					select {
					case <-written:
						done = true
					default:
					}
					if err := f.pass(t.Context()); err != nil && api.CodeOf(err) != api.Unavailable {
						t.Errorf("pass: %v", err)
					}
				}
			})
		}
		writing.Wait()
		close(written)
		publishing.Wait()
		pass(t, newFeed(replicas[0].store, postedStream{b}, apptest.Log(t)))
		if batches := wantPublished(t, b, replicas[0], 0); len(batches) == 0 || batches[len(batches)-1].Last != 160 {
			t.Errorf("got %d messages, want all of 160 transactions in them", len(batches))
		}
	})
}

// forgetful is a store whose cursor cannot be advanced, as after a crash before the
// advance.
type forgetful struct{ *sqlstore.Store }

func (forgetful) Advance(context.Context, int64, uint64) error { return errors.New("dead") }

// TestFeedDiesBeforeItsCursor checks that after a crash between the append and the
// advance of the cursor, the feed continues after the appended message, also if the
// ledger has grown meanwhile.
func TestFeedDiesBeforeItsCursor(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		b, own := treasuryBus(t), openLedger(t, db)
		for i := range 3 {
			own.deposit(t, fmt.Sprintf("a%d", i), "")
			if err := newFeed(forgetful{own.store}, postedStream{b}, apptest.Log(t)).pass(t.Context()); err == nil {
				t.Error("pass without a cursor: got no error")
			}
			pass(t, newFeed(own.store, postedStream{b}, apptest.Log(t))) // repeats the same message
			own.deposit(t, fmt.Sprintf("b%d", i), "")
			if err := newFeed(forgetful{own.store}, postedStream{b}, apptest.Log(t)).pass(t.Context()); err == nil {
				t.Error("pass without a cursor: got no error")
			}
			own.deposit(t, fmt.Sprintf("c%d", i), "")
			pass(t, newFeed(own.store, postedStream{b}, apptest.Log(t)))
		}
		wantPublished(t, b, own, 0)
		if seq, _, err := own.store.Cursor(t.Context()); err != nil || seq != 9 {
			t.Errorf("cursor: got %d, %v, want 9", seq, err)
		}
	})
}

// TestFeedOnAnotherStream checks that the ledger is published from the cursor on if the
// stream has another ledger or has lost the message of the cursor.
func TestFeedOnAnotherStream(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		b, own := treasuryBus(t), openLedger(t, db)
		f := newFeed(own.store, postedStream{b}, apptest.Log(t))
		for i := range 4 {
			own.deposit(t, fmt.Sprintf("d%d", i), "")
		}
		if err := own.store.Advance(t.Context(), 2, 99); err != nil {
			t.Fatal(err)
		}
		pass(t, f)
		wantPublished(t, b, own, 2)
		elsewhere := api.PostedBatch{First: 1, Last: 500, Entries: []api.Posted{{Seq: 500, ID: "elsewhere", Hash: "00"}}}
		if err := b.Publish(t.Context(), "elsewhere", elsewhere); err != nil {
			t.Fatal(err)
		}
		own.deposit(t, "after", "")
		pass(t, f)
		wantPublished(t, b, own, 2)
	})
}

func TestBatchesAreBounded(t *testing.T) {
	t.Parallel()
	ts := make([]ledger.Transaction, feedPage)
	for i := range ts {
		ts[i] = ledger.Transaction{Seq: int64(i + 11), ID: strings.Repeat("i", 200), Memo: strings.Repeat("\x01", 1000)}
	}
	n := 0
	for after := int64(10); n < len(ts); {
		b, err := batchOf(ts[n:], after)
		if err != nil || len(b.Entries) == 0 || b.First != after+1 || b.Last != after+int64(len(b.Entries)) {
			t.Fatalf("batch after %d: got %d to %d with %d, %v", after, b.First, b.Last, len(b.Entries), err)
		}
		text, err := api.Encode(b)
		if err != nil || len(text) > feedBytes+8192 {
			t.Errorf("batch after %d: got %d bytes, %v, want about %d at most", after, len(text), err, feedBytes)
		}
		n += len(b.Entries)
		after = b.Last
	}
	gap := []ledger.Transaction{{Seq: 1}, {Seq: 2}, {Seq: 4}}
	if b, err := batchOf(gap, 0); err != nil || b.Last != 2 || len(b.Entries) != 2 {
		t.Errorf("before a gap: got %+v, %v, want 1 and 2", b, err)
	}
	if b, err := batchOf(gap[2:], 2); err == nil {
		t.Errorf("at a gap: got %+v, want an error", b)
	}
}
