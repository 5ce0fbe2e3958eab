package sqlstore_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
	"github.com/anima-run/anima/services/social/internal/inbox"
	"github.com/anima-run/anima/services/social/internal/sqlstore"
)

func receive(t *testing.T, open open) {
	var announced []string
	s := open(func(agent, id string) error {
		announced = append(announced, agent+" "+id)
		return nil
	})
	register(t, s, "alice")
	register(t, s, "bob")
	m := mail("m1", "alice", "bob", noon(1))
	m.ReplyTo, m.Content = "m0", "žluťoučký 🐎\n"
	put(t, s, m)
	put(t, s, mail("m2", "alice", "stranger", noon(2)))
	all, err := s.List(t.Context(), address("bob"), "", "", 0, 10)
	ok(t, err)
	m.Status, m.Peer = inbox.Received, "The alice"
	if len(all) != 1 {
		t.Fatalf("got %d messages, want 1", len(all))
	}
	m.Seq = all[0].Seq
	if d := cmp.Diff(m, all[0]); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
	if d := cmp.Diff([]string{"bob m1"}, announced); d != "" {
		t.Errorf("announced: -want +got\n%s", d)
	}
}

func atomic(t *testing.T, open open) {
	fault := errors.New("the announcement failed")
	fail := true
	s := open(func(string, string) error {
		if fail {
			return fault
		}
		return nil
	})
	register(t, s, "bob")
	m := mail("m1", "alice", "bob", noon(1))
	if _, err := s.Receive(t.Context(), m, fresh); !errors.Is(err, fault) {
		t.Fatalf("got %v, want %v", err, fault)
	}
	unread(t, s, "bob", 0)
	fail = false
	put(t, s, m)
	unread(t, s, "bob", 1)

	put(t, s, mail("m2", "alice", "carol", noon(2)))
	fail = true
	carol := inbox.LocalAgent{Agent: "carol", Address: address("carol"), Seq: 1}
	if err := s.PutAgent(t.Context(), carol); !errors.Is(err, fault) {
		t.Fatalf("see carol: got %v, want %v", err, fault)
	}
	if got, err := s.AddressOf(t.Context(), "carol"); err != nil || got != "" {
		t.Errorf("address of carol: got %q, %v, want none", got, err)
	}
}

func receiveParallel(t *testing.T, open open) {
	s := open(silent)
	const n = 40
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			// Half of them write to each other, so that locks could be taken in opposite
			// order.
			from, to := fmt.Sprint("a", i/4), "bob"
			if i%2 == 1 {
				from, to = "bob"+fmt.Sprint(i/8), fmt.Sprint("a", i/4)
			}
			if _, err := s.Receive(t.Context(), mail(fmt.Sprint(i), from, to, noon(0)), fresh); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	all, err := s.List(t.Context(), address("bob"), "", "", 0, 100)
	ok(t, err)
	seen := map[int64]bool{}
	for _, m := range all {
		seen[m.Seq] = true
	}
	if len(all) != n/2 || len(seen) != n/2 {
		t.Errorf("got %d messages in %d places, want %d in as many", len(all), len(seen), n/2)
	}
}

func duplicates(t *testing.T, open open) {
	var mu sync.Mutex
	announced := 0
	s := open(func(string, string) error {
		mu.Lock()
		defer mu.Unlock()
		announced++
		return nil
	})
	register(t, s, "bob")
	m := mail("m1", "alice", "bob", noon(1))
	put(t, s, m)
	old := errors.New("too old by now")
	dup, err := s.Receive(t.Context(), m, func() error { return old })
	if err != nil || !dup {
		t.Errorf("the same again: got duplicate %v, %v, want true: its age does not matter any more", dup, err)
	}
	if _, err := s.Receive(t.Context(), mail("m2", "alice", "bob", noon(1)), func() error { return old }); !errors.Is(err, old) {
		t.Errorf("a new one that is too old: got %v, want %v", err, old)
	}
	// Concurrent copies of a message, more than the rate of a sender.
	var first int
	var wg sync.WaitGroup
	for range 3 * inbox.Rate {
		wg.Go(func() {
			dup, err := s.Receive(t.Context(), mail("m3", "alice", "bob", noon(2)), fresh)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			if !dup {
				first++
			}
		})
	}
	wg.Wait()
	unread(t, s, "bob", 2)
	if first != 1 || announced != 2 {
		t.Errorf("got %d first copies and %d announcements, want 1 and 2", first, announced)
	}
}

func rate(t *testing.T, open open) {
	s := open(silent)
	// Concurrently: the limit must hold across replicas too.
	var mu sync.Mutex
	stored, refused := 0, 0
	var wg sync.WaitGroup
	for i := range 2 * inbox.Rate {
		wg.Go(func() {
			_, err := s.Receive(t.Context(), mail(fmt.Sprint(i), "alice", fmt.Sprint("to", i%3), noon(0)), fresh)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				stored++
			case api.ReasonOf(err) == api.ReasonLimit && api.Wire(err).RetryAfter == inbox.RateWindow.Milliseconds():
				refused++
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if stored != inbox.Rate || refused != inbox.Rate {
		t.Errorf("got %d stored and %d refused, want %d each", stored, refused, inbox.Rate)
	}
	put(t, s, mail("other", "bob", "to1", noon(1)))
	put(t, s, mail("later", "alice", "to1", noon(0).Add(inbox.RateWindow)))
	if dup, err := s.Receive(t.Context(), mail("later", "alice", "to1", noon(61)), fresh); err != nil || !dup {
		t.Errorf("a copy: got duplicate %v, %v, want true: it is counted once", dup, err)
	}

	// The clock is set back by an hour.
	for i := range inbox.Rate {
		put(t, s, mail(fmt.Sprint("back", i), "alice", "to1", noon(i).Add(-time.Hour)))
	}
	if _, err := s.Receive(t.Context(), mail("eleventh", "alice", "to1", noon(30).Add(-time.Hour)), fresh); api.ReasonOf(err) != api.ReasonLimit {
		t.Errorf("the eleventh since then: got %v, want that it is refused", err)
	}
}

func localAgents(t *testing.T, open open) {
	var announced []string
	s := open(func(agent, id string) error {
		announced = append(announced, agent+" "+id)
		return nil
	})
	ctx := t.Context()
	addressOf := func(want string) {
		t.Helper()
		if got, err := s.AddressOf(ctx, "bob"); err != nil || got != want {
			t.Fatalf("address of bob: got %q, %v, want %q", got, err, want)
		}
	}
	fill(t, s, 3)
	_, err := s.Poll(ctx, address("bob"), 0, 10, noon(9))
	ok(t, err)
	addressOf("")
	ok(t, s.PutAgent(ctx, inbox.LocalAgent{Agent: "bob", Name: "Bob", Seq: 1})) // no wallet yet
	addressOf("")
	ok(t, s.PutAgent(ctx, inbox.LocalAgent{Agent: "bob", Name: "Bob", Address: address("bob"), Seq: 3}))
	ok(t, s.PutAgent(ctx, inbox.LocalAgent{Agent: "bob", Name: "Old", Address: address("old"), Seq: 2}))
	ok(t, s.PutAgent(ctx, inbox.LocalAgent{Agent: "bob", Name: "Bobby", Address: address("bob"), Seq: 4}))
	addressOf(address("bob"))
	put(t, s, mail("after", "bob", "bob", noon(10)))
	if d := cmp.Diff([]string{"bob 0", "bob 1", "bob 2", "bob after"}, announced); d != "" {
		t.Errorf("announced: -want +got\n%s", d)
	}
	all, err := s.List(ctx, address("bob"), "", "", 0, 1)
	want(t, "latest", all, err, "after")
	if all[0].Peer != "Bobby" {
		t.Errorf("peer: got %q, want Bobby", all[0].Peer)
	}
}

// concurrentAgents checks that a message is announced once, whether it or its recipient is stored
// first.
func concurrentAgents(t *testing.T, open open) {
	var mu sync.Mutex
	announced := map[string]bool{}
	s := open(func(agent, id string) error {
		mu.Lock()
		defer mu.Unlock()
		announced[agent+" "+id] = true
		return nil
	})
	const n = 40
	var wg sync.WaitGroup
	for i := range n {
		agent := fmt.Sprint("agent", i)
		wg.Go(func() {
			if _, err := s.Receive(t.Context(), mail(fmt.Sprint(i), "sender"+agent, agent, noon(0)), fresh); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			if err := s.PutAgent(t.Context(), inbox.LocalAgent{Agent: agent, Address: address(agent), Seq: 1}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for i := range n {
		if want := fmt.Sprintf("agent%d %d", i, i); !announced[want] {
			t.Errorf("not announced: %s", want)
		}
	}
}

// TestPruneInParts checks that more rows than one transaction deletes are deleted by
// several, so that messages that arrive meanwhile do not wait for all of them.
func TestPruneInParts(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		ctx, s := t.Context(), sqlstore.New(db, nil)
		const rows = "with recursive n (i) as (select 1 union all select i + 1 from n where i < 2500) select "
		for _, insert := range []string{
			"mail (id, to_address, seq, from_address, content, reply_to, signed_at, signature, received_at, max_retries, announced) " +
				rows + "'m' || i, 'bob', i, 'alice', '', '', '', '', i, 1, 0 from n",
			"senders (address, last_at) " + rows + "'s' || i, i from n",
			"mailboxes (address, seq) " + rows + "'b' || i, i from n",
			"used_nonces (nonce, expires_at) " + rows + "'n' || i, i from n",
			"api_keys (id, hash, hint, address, name, scopes, created_at, expires_at) " + rows + "'k' || i, 'h' || i, '', 'alice', '', 'x', 0, i from n",
			"key_owners (address, changed) " + rows + "'o' || i, i from n",
		} {
			_, err := db.ExecContext(ctx, "insert into "+insert)
			ok(t, err)
		}
		before := db.Stats().Commits
		ok(t, s.Prune(ctx, noon(0)))
		ok(t, s.PruneKeys(ctx, noon(0), noon(0)))
		if got := db.Stats().Commits - before; got < 6*3 {
			t.Errorf("%d transactions, want at least three for each table", got)
		}
		for _, table := range []string{"mail", "senders", "mailboxes", "used_nonces", "api_keys", "key_owners"} {
			left, err := sqldb.One[int](ctx, db, "select count(*) from "+table)
			if err != nil || left != 0 {
				t.Errorf("%d rows are left in %s, %v", left, table, err)
			}
		}
	})
}

func prune(t *testing.T, open open) {
	s := open(silent)
	ctx := t.Context()
	fill(t, s, 3)
	before, err := s.Poll(ctx, address("bob"), 0, 10, noon(9))
	want(t, "before", before, err, "0", "1", "2")
	ok(t, s.Prune(ctx, noon(2)))
	all, err := s.List(ctx, address("bob"), "", "", 0, 10)
	want(t, "pruned", all, err, "2")
	ok(t, s.Prune(ctx, noon(100)))
	unread(t, s, "bob", 0)
	// A mailbox that is created again continues after the cursors of its owner.
	put(t, s, mail("new", "alice", "bob", noon(0).Add(24*time.Hour)))
	after, err := s.Poll(ctx, address("bob"), before[2].Seq, 10, noon(101))
	want(t, "after", after, err, "new")
}
