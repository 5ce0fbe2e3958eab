package sqlstore_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"

	"github.com/anima-run/anima/services/loop/internal/agent"
	"github.com/anima-run/anima/services/loop/internal/engine/enginetest"
	"github.com/anima-run/anima/services/loop/internal/goal"
	"github.com/anima-run/anima/services/loop/internal/memory"
	"github.com/anima-run/anima/services/loop/internal/sqlstore"
)

// TestDelete checks that a deleted agent is not found, that its sessions are terminated,
// that the deletion is announced once, and that applying it again restores it.
func TestDelete(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		s := sqlstore.New(db, t.TempDir())
		m := sqlstore.Memory{Store: s}
		def := agent.Definition{Name: "Ada", Tools: []string{"sleep"}, Body: "Be useful."}
		address := "0x1"
		apply := func(at int64) sqlstore.Applied {
			t.Helper()
			v, err := s.Apply(t.Context(), def, "ada", address, "source", at)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
		announced := func() (n int) {
			t.Helper()
			if err := db.QueryRowContext(t.Context(), `select count(*) from outbox`).Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		if _, err := s.Delete(t.Context(), "ada", "why", false, 1); api.CodeOf(err) != api.NotFound || api.Wire(err).Next == "" {
			t.Errorf("one that never was: got %v, want not_found and what to do", err)
		}
		apply(10)
		if _, err := m.Remember(t.Context(), "ada", memory.Fact{Category: "domain", Key: "price", Value: "four", Confidence: 1, By: api.Principal{Kind: api.Self}, At: 11}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Terminate(t.Context(), "ada-main", "done", 12); err != nil {
			t.Fatal(err)
		}
		before := announced()
		for _, at := range []int64{20, 21} {
			gone, err := s.Delete(t.Context(), "ada", "why", false, at)
			if err != nil || gone.At != 20 || gone.Address != "0x1" {
				t.Fatalf("at %d: got %+v, %v, want it deleted at 20", at, gone, err)
			}
		}
		if n := announced() - before; n != 1 {
			t.Errorf("it was announced %d times, want once", n)
		}
		if _, err := s.Agent(t.Context(), "ada"); api.CodeOf(err) != api.NotFound {
			t.Errorf("got %v, want not_found", err)
		}
		if all, err := s.Agents(t.Context(), "", 10); err != nil || len(all) != 0 {
			t.Errorf("got %+v, %v, want none", all, err)
		}
		main, err := s.Session(t.Context(), "ada-main-2")
		if err != nil || main.Terminated != 20 {
			t.Errorf("the main session is %+v, %v, want it terminated at 20", main, err)
		}
		if c, err := s.ApplyBalance(t.Context(), "ada", api.Dollar, 0, 30); c != nil || api.CodeOf(err) != api.NotFound {
			t.Errorf("money: got %+v, %v, want that it stays deleted", c, err)
		}
		if all, _, err := s.LowOnFunds(t.Context(), ""); err != nil || len(all) != 0 {
			t.Errorf("poor: got %v, %v, want none", all, err)
		}

		if changed, err := s.SetAddress(t.Context(), "ada", "0x2", 35); changed || api.CodeOf(err) != api.NotFound {
			t.Errorf("another wallet: got %t, %v, want not_found", changed, err)
		}
		address = "0x2"
		back := apply(40)
		if !back.Changed || back.Agent.State != api.StateSleeping || back.Agent.Address != "0x2" {
			t.Errorf("applied again: got %+v, want it asleep, with the address of its present wallet", back)
		}
		if main, err = s.Session(t.Context(), back.Agent.Session); err != nil || main.ID != "ada-main-2" || main.Terminated != 0 {
			t.Errorf("the main session is %+v, %v, want it open", main, err)
		}
		if first, err := s.Session(t.Context(), "ada-main"); err != nil || first.Terminated != 12 {
			t.Errorf("the session before is %+v, %v, want it terminated at 12", first, err)
		}
		facts := func() (keys []string) {
			t.Helper()
			all, err := m.Latest(t.Context(), "ada", "", memory.Semantic, 50, 10)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range all {
				keys = append(keys, e.ID)
			}
			return keys
		}
		if diff := cmp.Diff([]string{"domain/price"}, facts()); diff != "" {
			t.Errorf("facts (-want +got):\n%s", diff)
		}
		in := func(run string) api.Run {
			cmd := enginetest.Command("ada", run)
			cmd.Session = back.Agent.Session
			return cmd
		}
		turns(t, m, in("r1"), 1, func(*api.Turn) {})
		if n, err := m.Ingest(t.Context(), 59, back.Agent.Session); err != nil || n != 1 {
			t.Fatalf("%d turns became memories, %v", n, err)
		}
		turns(t, m, in("r2"), 1, func(*api.Turn) {}) // not ingested yet
		for range 2 {
			if _, err := s.Delete(t.Context(), "ada", "why", true, 60); err != nil {
				t.Fatal(err)
			}
		}
		if n, err := m.Ingest(t.Context(), 61, back.Agent.Session); err != nil || n != 0 {
			t.Errorf("%d turns became memories after the end, %v", n, err)
		}
		apply(70)
		if got := facts(); len(got) != 0 {
			t.Errorf("it remembers %q, want nothing", got)
		}
		if got := search(t, m, "ada", memory.Semantic, "four"); len(got) != 0 {
			t.Errorf("the index has %q, want nothing", got)
		}
		// A turn of a run that was accepted before the deletion, stored later.
		accepted := func(run string, at int64) api.Run { cmd := in(run); cmd.AcceptedAt = at; return cmd }
		turns(t, m, accepted("r3", 60), 1, func(*api.Turn) {})
		if n, err := m.Ingest(t.Context(), 71, back.Agent.Session); err != nil || n != 0 {
			t.Errorf("%d turns of the time before became memories, %v", n, err)
		}
		if k, err := s.Known(t.Context(), in("r4")); err != nil || k.Reset != k.Last || k.Last != 3 {
			t.Errorf("the prompts leave out %d of %d turns, %v, want all 3", k.Reset, k.Last, err)
		}
		turns(t, m, accepted("r4", 61), 1, func(*api.Turn) {})
		if n, err := m.Ingest(t.Context(), 72, back.Agent.Session); err != nil || n != 1 {
			t.Errorf("%d turns of the time after became memories, %v, want 1", n, err)
		}
	})
}

// TestPages checks that lists of sessions and goals can be read in pages, also when times
// are equal.
func TestPages(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
		s := sqlstore.New(db, t.TempDir())
		const at = 1_790_000_000_000_000
		def := agent.Definition{Name: "Ada", Tools: []string{"sleep"}, Body: "Be useful."}
		if _, err := s.Apply(t.Context(), def, "ada", "0x1", "source", at); err != nil {
			t.Fatal(err)
		}
		for id, when := range map[string]int64{"ada-1": at + 1, "ada-2": at + 1, "ada-3": at + 2} {
			if err := s.NewSession(t.Context(), id, "ada", when); err != nil {
				t.Fatal(err)
			}
		}
		var sessions []string
		for place := (sqlstore.Place{}); ; {
			page, err := s.Sessions(t.Context(), "ada", place, 1)
			if err != nil {
				t.Fatal(err)
			}
			if len(page) == 0 {
				break
			}
			sessions = append(sessions, page[0].ID)
			place = sqlstore.Place{At: page[0].UpdatedAt, ID: page[0].ID}
		}
		if diff := cmp.Diff([]string{"ada-3", "ada-1", "ada-2", "ada-main"}, sessions); diff != "" {
			t.Errorf("sessions (-want +got):\n%s", diff)
		}
		if _, _, err := s.CreateGoal(t.Context(), goal.New{ID: "g1", Agent: "ada", Title: "t", Description: "d"}, at); err != nil {
			t.Fatal(err)
		}
		for after, want := range map[int64]int{0: 1, at: 0, at + 1: 1} {
			all, err := s.Goals(t.Context(), goal.Query{Agent: "ada", AfterAt: after, AfterID: "g1"})
			if err != nil || len(all) != want {
				t.Errorf("goals behind %d: got %d, %v, want %d", after, len(all), err, want)
			}
		}
		if all, err := (sqlstore.Memory{Store: s}).SoulsBefore(t.Context(), "ada", at, 10); err != nil || len(all) != 0 {
			t.Errorf("souls: got %+v, %v, want none", all, err)
		}
	})
}
