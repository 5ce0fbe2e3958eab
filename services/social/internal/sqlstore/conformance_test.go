package sqlstore_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
	"github.com/anima-run/anima/services/social/internal/inbox"
	"github.com/anima-run/anima/services/social/internal/sqlstore"
)

// open opens the store of a test. announce is called in the transaction that makes a
// message available to a local agent; its error must roll back everything.
type open func(announce func(agent, id string) error) inbox.Store

// TestStore tests the conformance to [inbox.Store] on every engine.
func TestStore(t *testing.T) {
	t.Parallel()
	for name, check := range map[string]func(*testing.T, open){
		"receive":               receive,
		"receive is atomic":     atomic,
		"receive in parallel":   receiveParallel,
		"duplicates":            duplicates,
		"rate":                  rate,
		"local agents":          localAgents,
		"concurrent agents":     concurrentAgents,
		"claim":                 claim,
		"waiting":               waiting,
		"claims expire":         expire,
		"claims in parallel":    claimParallel,
		"settle late":           settleLate,
		"release":               release,
		"list":                  list,
		"large messages":        largeMessages,
		"poll":                  poll,
		"poll of a local agent": pollLocalAgent,
		"prune":                 prune,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
				check(t, func(announce func(agent, id string) error) inbox.Store {
					return sqlstore.New(db, func(_ context.Context, _ *sqldb.Tx, agent string, m inbox.Message) error {
						return announce(agent, m.ID)
					})
				})
			})
		})
	}
}

func noon(seconds int) time.Time {
	return time.Date(2026, 3, 2, 12, 0, seconds, 0, time.UTC)
}

func address(name string) string {
	sum := sha256.Sum256([]byte(name))
	return "0x" + hex.EncodeToString(sum[:20])
}

func silent(string, string) error { return nil }

func fresh() error { return nil }

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func mail(id, from, to string, at time.Time) inbox.Message {
	return inbox.Message{
		ID: id, From: address(from), To: address(to), Content: "content of " + id, SignedAt: "2026-03-02T12:00:00.000Z",
		Signature: "0x" + id, Received: at,
	}
}

func put(t *testing.T, s inbox.Store, m inbox.Message) {
	t.Helper()
	dup, err := s.Receive(t.Context(), m, fresh)
	if err != nil || dup {
		t.Fatalf("receive %s: duplicate %v, %v", m.ID, dup, err)
	}
}

// fill stores n messages for bob, each of another sender, one per second from noon on;
// their ids are 0, 1, …
func fill(t *testing.T, s inbox.Store, n int) {
	t.Helper()
	for i := range n {
		put(t, s, mail(fmt.Sprint(i), fmt.Sprint("sender", i), "bob", noon(i)))
	}
}

func register(t *testing.T, s inbox.Store, agent string) {
	t.Helper()
	ok(t, s.PutAgent(t.Context(), inbox.LocalAgent{Agent: agent, Name: "The " + agent, Address: address(agent), Seq: 1}))
}

func ids(all []inbox.Message) []string {
	out := []string{}
	for _, m := range all {
		out = append(out, m.ID)
	}
	return out
}

func want(t *testing.T, what string, got []inbox.Message, err error, want ...string) {
	t.Helper()
	ok(t, err)
	if d := cmp.Diff(append([]string{}, want...), ids(got)); d != "" {
		t.Fatalf("%s: -want +got\n%s", what, d)
	}
}

func unread(t *testing.T, s inbox.Store, name string, want int64) {
	t.Helper()
	if got, err := s.Unread(t.Context(), address(name)); err != nil || got != want {
		t.Fatalf("unread of %s: got %d, %v, want %d", name, got, err, want)
	}
}

func statuses(t *testing.T, s inbox.Store, name string, want map[inbox.Status]int) {
	t.Helper()
	all, err := s.List(t.Context(), address(name), "", "", 0, 100)
	ok(t, err)
	got := map[inbox.Status]int{}
	for _, m := range all {
		got[m.Status]++
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Fatalf("states of %s: -want +got\n%s", name, d)
	}
}
