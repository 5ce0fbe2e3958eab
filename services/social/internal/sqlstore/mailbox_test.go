package sqlstore_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/services/social/internal/inbox"
)

func claim(t *testing.T, open open) {
	s := open(silent)
	ctx, bob := t.Context(), address("bob")
	none, err := s.Claim(ctx, bob, "r1", "", 10, noon(0))
	want(t, "claim of an empty mailbox", none, err)
	ok(t, s.Settle(ctx, bob, "r1", noon(0)))
	fill(t, s, 5)
	put(t, s, mail("other", "alice", "carol", noon(0)))

	got, err := s.Claim(ctx, bob, "r1", "", 2, noon(10))
	want(t, "oldest first", got, err, "0", "1")
	if got[0].Status != inbox.InProgress {
		t.Errorf("status: got %s, want %s", got[0].Status, inbox.InProgress)
	}
	got, err = s.Claim(ctx, bob, "r1", "", 10, noon(11))
	want(t, "the same run again", got, err, "0", "1")
	got, err = s.Claim(ctx, bob, "r2", "", 2, noon(12))
	want(t, "another run", got, err, "2", "3")
	unread(t, s, "bob", 5)

	ok(t, s.Settle(ctx, bob, "r1", noon(13)))
	unread(t, s, "bob", 3)
	ok(t, s.Settle(ctx, bob, "r1", noon(14)))
	unread(t, s, "bob", 3)
	got, err = s.Claim(ctx, bob, "r1", "", 10, noon(15))
	want(t, "the first run after settling: its request was executed late", got, err)
	statuses(t, s, "bob", map[inbox.Status]int{inbox.Processed: 2, inbox.InProgress: 2, inbox.Received: 1})
	got, err = s.Claim(ctx, bob, "r3", "", 10, noon(16))
	want(t, "the run that follows", got, err, "4")
	unread(t, s, "carol", 1)

	// Messages that do not fit into one response remain unclaimed.
	for i := range 4 {
		m := mail(fmt.Sprint("large", i), "alice", "dave", noon(i))
		m.Content = strings.Repeat("\x01", api.MaxMessageBytes)
		put(t, s, m)
	}
	got, err = s.Claim(ctx, address("dave"), "r1", "", 10, noon(20))
	want(t, "large ones", got, err, "large0", "large1")
	got, err = s.Claim(ctx, address("dave"), "r2", "", 10, noon(20))
	want(t, "the rest", got, err, "large2", "large3")

	// Messages of one sender.
	for i, from := range []string{"alice", "carol", "alice", "carol"} {
		put(t, s, mail(fmt.Sprint("from", i), from, "erin", noon(30+i)))
	}
	all, err := s.List(ctx, address("erin"), inbox.Received, address("carol"), 0, 10)
	want(t, "list of one sender", all, err, "from3", "from1")
	got, err = s.Claim(ctx, address("erin"), "r1", address("carol"), 10, noon(40))
	want(t, "claim of one sender", got, err, "from1", "from3")
	got, err = s.Claim(ctx, address("erin"), "r2", "", 10, noon(41))
	want(t, "messages of the other sender", got, err, "from0", "from2")
}

func waiting(t *testing.T, open open) {
	s := open(silent)
	ctx, bob := t.Context(), address("bob")
	look := func(what, run string, want inbox.MailboxState) {
		t.Helper()
		if got, err := s.MailboxState(ctx, "bob", run); err != nil || got != want {
			t.Errorf("%s: got %+v, %v, want %+v", what, got, err, want)
		}
	}
	fill(t, s, 3)
	look("an agent that is unknown", "r1", inbox.MailboxState{})
	ok(t, s.PutAgent(ctx, inbox.LocalAgent{Agent: "bob", Name: "Bob", Address: bob, Seq: 1}))
	look("before a claim", "r1", inbox.MailboxState{Address: bob, Unread: 3})
	got, err := s.Claim(ctx, bob, "r1", "", 1, noon(10))
	want(t, "claim", got, err, "0")
	look("claimed", "r1", inbox.MailboxState{Address: bob, Unread: 3, Claimed: true})
	look("claimed by another", "r2", inbox.MailboxState{Address: bob, Unread: 3})
	got, err = s.Claim(ctx, bob, "r2", "", 1, noon(10).Add(inbox.ClaimTimeout))
	want(t, "claim after it expired", got, err, "0")
	look("lost", "r1", inbox.MailboxState{Address: bob, Unread: 3})
	ok(t, s.Settle(ctx, bob, "r2", noon(20).Add(inbox.ClaimTimeout)))
	look("settled", "r2", inbox.MailboxState{Address: bob, Unread: 2})
	got, err = s.Claim(ctx, bob, "r3", "", 1, noon(30).Add(inbox.ClaimTimeout))
	want(t, "the next claim", got, err, "1")
	got, err = s.Claim(ctx, bob, "r4", "", 1, noon(30).Add(2*inbox.ClaimTimeout))
	want(t, "and after it expired", got, err, "1")
	got, err = s.Claim(ctx, bob, "r5", "", 1, noon(30).Add(3*inbox.ClaimTimeout))
	want(t, "and once more", got, err, "1")
	got, err = s.Claim(ctx, bob, "r6", "", 1, noon(30).Add(4*inbox.ClaimTimeout))
	want(t, "the third claim expired", got, err, "2")
	look("failed, and still of its last run", "r5", inbox.MailboxState{Address: bob, Unread: 1, Claimed: true})
}

func expire(t *testing.T, open open) {
	s := open(silent)
	ctx, bob := t.Context(), address("bob")
	fill(t, s, 2)
	now := noon(0)
	for try := range inbox.MaxAttempts {
		got, err := s.Claim(ctx, bob, fmt.Sprint("r", try), "", 1, now)
		want(t, fmt.Sprint("try ", try), got, err, "0")
		// A run that claims again renews its claim.
		now = now.Add(inbox.ClaimTimeout - time.Second)
		got, err = s.Claim(ctx, bob, fmt.Sprint("r", try), "", 1, now)
		want(t, fmt.Sprint("again, try ", try), got, err, "0")
		now = now.Add(inbox.ClaimTimeout)
	}
	got, err := s.Claim(ctx, bob, "last", "", 1, now)
	want(t, "after three expired claims", got, err, "1")
	statuses(t, s, "bob", map[inbox.Status]int{inbox.Failed: 1, inbox.InProgress: 1})
	unread(t, s, "bob", 1)
}

func claimParallel(t *testing.T, open open) {
	s := open(silent)
	const n, runs = 40, 8
	fill(t, s, n)
	var mu sync.Mutex
	holders := map[string]string{}
	var wg sync.WaitGroup
	for r := range runs {
		wg.Go(func() {
			run := fmt.Sprint("r", r)
			got, err := s.Claim(t.Context(), address("bob"), run, "", n/runs, noon(100))
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			for _, m := range got {
				if other, held := holders[m.ID]; held {
					t.Errorf("%s is held by %s and %s", m.ID, other, run)
				}
				holders[m.ID] = run
			}
		})
	}
	wg.Wait()
	if len(holders) != n {
		t.Errorf("%d of %d messages are held", len(holders), n)
	}
}

func settleLate(t *testing.T, open open) {
	s := open(silent)
	ctx, bob := t.Context(), address("bob")
	fill(t, s, 2)
	_, err := s.Claim(ctx, bob, "slow", "", 2, noon(0))
	ok(t, err)
	late := noon(0).Add(2 * inbox.ClaimTimeout)
	got, err := s.Claim(ctx, bob, "quick", "", 1, late)
	want(t, "expired", got, err, "0")
	ok(t, s.Settle(ctx, bob, "slow", late))
	// Messages that another run has claimed since can be settled only by that run.
	statuses(t, s, "bob", map[inbox.Status]int{inbox.InProgress: 1, inbox.Processed: 1})
	ok(t, s.Settle(ctx, bob, "quick", late))
	unread(t, s, "bob", 0)
}

// release tests that the messages of a run that has not answered them are claimed again,
// and are failed after the third run.
func release(t *testing.T, open open) {
	s := open(silent)
	ctx, bob := t.Context(), address("bob")
	fill(t, s, 2)
	ok(t, s.Release(ctx, bob, "none"))
	for try := range inbox.MaxAttempts {
		run := fmt.Sprint("r", try)
		got, err := s.Claim(ctx, bob, run, "", 1, noon(try))
		want(t, run, got, err, "0")
		for range 2 {
			ok(t, s.Release(ctx, bob, run))
		}
	}
	statuses(t, s, "bob", map[inbox.Status]int{inbox.Failed: 1, inbox.Received: 1})
	got, err := s.Claim(ctx, bob, "last", "", 10, noon(10))
	want(t, "after three runs", got, err, "1")
	ok(t, s.Release(ctx, bob, "r0")) // of another run's claim
	statuses(t, s, "bob", map[inbox.Status]int{inbox.Failed: 1, inbox.InProgress: 1})
}

func list(t *testing.T, open open) {
	s := open(silent)
	ctx, bob := t.Context(), address("bob")
	fill(t, s, 3)
	_, err := s.Claim(ctx, bob, "r1", "", 1, noon(10))
	ok(t, err)
	got, err := s.List(ctx, bob, "", "", 0, 10)
	want(t, "all, the latest first", got, err, "2", "1", "0")
	if behind, err := s.List(ctx, bob, "", "", got[0].Seq, 10); err != nil || len(behind) != len(got)-1 {
		t.Errorf("behind the first: got %d, %v, want %d", len(behind), err, len(got)-1)
	}
	got, err = s.List(ctx, bob, "", "", 0, 2)
	want(t, "two at most", got, err, "2", "1")
	got, err = s.List(ctx, bob, inbox.InProgress, "", 0, 10)
	want(t, "of a status", got, err, "0")
	got, err = s.List(ctx, address("carol"), "", "", 0, 10)
	want(t, "of an empty mailbox", got, err)
}

// largeMessages checks that the size of messages bounds how many are read, and that the
// one which does not fit is read, too.
func largeMessages(t *testing.T, open open) {
	s := open(silent)
	const fit, n = inbox.MaxBytes / api.MaxMessageBytes, 30
	for i := range n {
		m := mail(fmt.Sprint(i), fmt.Sprint("sender", i), "bob", noon(i))
		m.Content = strings.Repeat("x", api.MaxMessageBytes)
		put(t, s, m)
	}
	for before, last := int64(0), n; last > 0; last -= fit {
		all, err := s.List(t.Context(), address("bob"), "", "", before, 1000)
		ok(t, err)
		if least := min(fit+1, last); len(all) < least || len(all) > fit+2 || all[0].ID != fmt.Sprint(last-1) {
			t.Fatalf("got %d messages, the first is %s; want %d to %d from %d", len(all), all[0].ID, least, fit+2, last-1)
		}
		before = all[min(fit, len(all))-1].Seq
	}
	all, err := s.Poll(t.Context(), address("bob"), 0, 100, noon(100))
	if ok(t, err); len(all) == 0 || len(all) > fit {
		t.Errorf("poll: got %d messages, want at most %d", len(all), fit)
	}
}

func poll(t *testing.T, open open) {
	s := open(silent)
	ctx, bob := t.Context(), address("bob")
	none, err := s.Poll(ctx, bob, 0, 10, noon(0))
	want(t, "empty", none, err)
	fill(t, s, 3)
	first, err := s.Poll(ctx, bob, 0, 2, noon(10))
	want(t, "first page", first, err, "0", "1")
	again, err := s.Poll(ctx, bob, 0, 2, noon(11))
	want(t, "first page again: the answer may have been lost", again, err, "0", "1")
	unread(t, s, "bob", 3)
	second, err := s.Poll(ctx, bob, first[1].Seq, 2, noon(12))
	want(t, "second page", second, err, "2")
	unread(t, s, "bob", 1) // polling after a message settles it and all before
	end, err := s.Poll(ctx, bob, second[0].Seq, 2, noon(13))
	want(t, "after the end", end, err)
	unread(t, s, "bob", 0)
	put(t, s, mail("new", "alice", "bob", noon(3)))
	more, err := s.Poll(ctx, bob, second[0].Seq, 2, noon(14))
	want(t, "later", more, err, "new")
	more, err = s.Poll(ctx, bob, 0, 10, noon(15))
	want(t, "from the start: what is unread", more, err, "new")
}

func pollLocalAgent(t *testing.T, open open) {
	s := open(silent)
	ctx, bob := t.Context(), address("bob")
	register(t, s, "bob")
	fill(t, s, 2)
	all, err := s.Poll(ctx, bob, 0, 10, noon(10))
	want(t, "poll", all, err, "0", "1")
	_, err = s.Poll(ctx, bob, all[1].Seq, 10, noon(11))
	ok(t, err)
	unread(t, s, "bob", 2) // a local agent's messages are settled only by its runs
	got, err := s.Claim(ctx, bob, "r1", "", 10, noon(12))
	want(t, "claim", got, err, "0", "1")
}
