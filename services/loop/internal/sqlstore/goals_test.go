package sqlstore_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"

	"github.com/anima-run/anima/services/loop/internal/engine/enginetest"
	"github.com/anima-run/anima/services/loop/internal/goal"
	"github.com/anima-run/anima/services/loop/internal/sqlstore"
)

func wanted(key, agent, title string) goal.New {
	return goal.New{
		ID: goal.NewID(key), Agent: agent, Title: title, Description: "Do " + title, Strategy: "fast",
		By: api.Principal{Kind: api.Peer, Address: "0x1"}, Limit: goal.DefaultLimit,
	}
}

// chain returns a plan of three tasks, each dependent on the one before.
func chain() goal.Draft {
	d := goal.Draft{Analysis: "a\x00", Strategy: "s", Roles: []goal.Role{{Name: "r", Description: "d", SystemPrompt: "p"}}, Risks: []string{"x"}, Cents: 50, Minutes: 3}
	for i, title := range []string{"A", "B", "C"} {
		t := goal.DraftTask{Title: title, Description: "do " + title, Role: "generalist", Dependencies: []int{}, Cents: 10, Priority: 50, TimeoutMS: 1000}
		if i > 0 {
			t.Dependencies = []int{i - 1}
		}
		d.Tasks = append(d.Tasks, t)
	}
	return d
}

func changed(t *testing.T, s *sqlstore.Store, id string, f func(*goal.State) error) goal.State {
	t.Helper()
	g, err := s.ChangeGoal(t.Context(), id, at+5, f)
	must(t, err)
	return g
}

// executing creates a goal with an approved plan.
func executing(t *testing.T, s *sqlstore.Store, agent string) goal.State {
	t.Helper()
	g, _, err := s.CreateGoal(t.Context(), wanted("k-"+agent, agent, "A book"), at)
	must(t, err)
	changed(t, s, g.ID, func(s *goal.State) error { return s.Classified(5, 3) })
	changed(t, s, g.ID, func(s *goal.State) error { return s.Propose(0, "planner", chain(), 4, at) })
	return changed(t, s, g.ID, func(s *goal.State) error { return s.Approve(1, "d1", at) })
}

func outboxIDs(t *testing.T, db *sqldb.DB) []string {
	t.Helper()
	ids, err := sqldb.All(t.Context(), db, func(r sqldb.Scanner) (id string, err error) { return id, r.Scan(&id) }, `select id from outbox order by seq`)
	must(t, err)
	return slices.DeleteFunc(ids, func(id string) bool { return strings.HasPrefix(id, "agent_state/") })
}

func TestCreateGoal(t *testing.T) {
	each(t, func(t *testing.T, db *sqldb.DB, s *sqlstore.Store) {
		first, refused, err := s.CreateGoal(t.Context(), wanted("k1", "ada", "A book"), at)
		must(t, err)
		want := goal.State{Goal: goal.Goal{
			ID: goal.NewID("k1"), Agent: "ada", Title: "A book", Description: "Do A book", Strategy: "fast", Status: api.GoalActive,
			By: api.Principal{Kind: api.Peer, Address: "0x1"}, Limit: goal.DefaultLimit, Seq: 1, CreatedAt: at, UpdatedAt: at,
		}}
		if diff := cmp.Diff(want, first); diff != "" || refused != "" {
			t.Errorf("refused %q (-want +got):\n%s", refused, diff)
		}
		read, err := s.Goal(t.Context(), first.ID)
		must(t, err)
		if diff := cmp.Diff(want, read); diff != "" {
			t.Errorf("read (-want +got):\n%s", diff)
		}
		for _, tt := range []struct {
			n    goal.New
			want goal.Refusal
		}{
			{wanted("k1", "ada", "A book"), ""}, // the same call again
			{wanted("k2", "ada", "a BOOK"), goal.Duplicate},
			{wanted("k2", "ada", "A house"), goal.Blocked},
		} {
			got, refused, err := s.CreateGoal(t.Context(), tt.n, at+1)
			must(t, err)
			if refused != tt.want || got.ID != first.ID {
				t.Errorf("%+v: refused %q with %s, want %q", tt.n, refused, got.ID, tt.want)
			}
		}
		other, refused, err := s.CreateGoal(t.Context(), wanted("k3", "bob", "A book"), at+2)
		must(t, err)
		if refused != "" {
			t.Errorf("bob's goal is refused: %s", refused)
		}
		_, _, err = s.CreateGoal(t.Context(), wanted("k4", "nobody", "A book"), at)
		wantNotFound(t, err)
		if diff := cmp.Diff([]string{"goal_created/" + first.ID, "goal_created/" + other.ID}, outboxIDs(t, db)); diff != "" {
			t.Errorf("outbox (-want +got):\n%s", diff)
		}
		changed(t, s, first.ID, func(s *goal.State) error { return s.Cancel("", at) })
		next, refused, err := s.CreateGoal(t.Context(), wanted("k2", "ada", "A house"), at+3)
		must(t, err)
		if refused != "" || next.ID != goal.NewID("k2") {
			t.Errorf("after the end: %q", refused)
		}
		again, refused, err := s.CreateGoal(t.Context(), wanted("k1", "ada", "A book"), at+4)
		must(t, err)
		if refused != "" || again.Status != api.GoalCancelled {
			t.Errorf("the first call once more: %q, %s", refused, again.Status)
		}
		all, err := s.Goals(t.Context(), goal.Query{Agent: "ada"})
		must(t, err)
		active, err := s.Goals(t.Context(), goal.Query{Status: api.GoalActive, Limit: 1})
		must(t, err)
		if len(all) != 2 || all[0].ID != next.ID || len(active) != 1 || active[0].ID != next.ID {
			t.Errorf("lists: %d and %d", len(all), len(active))
		}
		_, err = s.Goal(t.Context(), "none")
		wantNotFound(t, err)
		_, err = s.ChangeGoal(t.Context(), "none", at, func(*goal.State) error { return nil })
		wantNotFound(t, err)
	})
}

// TestOneActiveGoal checks that one of several concurrent calls creates a goal.
func TestOneActiveGoal(t *testing.T) {
	each(t, func(t *testing.T, db *sqldb.DB, s *sqlstore.Store) {
		var wg sync.WaitGroup
		var mu sync.Mutex
		made := 0
		for i := range 8 {
			wg.Go(func() {
				_, refused, err := s.CreateGoal(t.Context(), wanted(fmt.Sprint(i), "ada", fmt.Sprint(i)), at)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					t.Errorf("goal %d: %v", i, err)
				}
				if refused == "" {
					made++
				}
			})
		}
		wg.Wait()
		if n := len(outboxIDs(t, db)); made != 1 || n != 1 {
			t.Errorf("%d made, %d announced", made, n)
		}
	})
}

// TestChangeGoal checks that a state is read back as it was written, after every kind of
// change, and that each change commits with its messages.
func TestChangeGoal(t *testing.T) {
	each(t, func(t *testing.T, db *sqldb.DB, s *sqlstore.Store) {
		g := executing(t, s, "ada")
		task := func(n int) string { return fmt.Sprintf("%s-1-%d", g.ID, n) }
		var run string
		sent := outboxIDs(t, db)
		for _, f := range []func(*goal.State) error{
			func(s *goal.State) error { return s.Claim(task(1), 1, at+9) },
			func(s *goal.State) error { run = s.Tasks[0].Lease; return s.FailTask(run, "X", "no\x00", true, at+10) },
			func(s *goal.State) error { return s.Ended(run, 77, at+11) },
			func(s *goal.State) error { return s.Claim(task(1), 2, at+12) },
			func(s *goal.State) error { return s.Complete(s.Tasks[0].Lease, "forty-two", "a.txt", at+13) },
			func(s *goal.State) error { return s.Claim(task(2), 1, at+14) },
			func(s *goal.State) error { return s.FailTask(s.Tasks[1].Lease, "X", "for good", false, at+15) },
			func(s *goal.State) error { return s.Propose(1, "planner", chain(), 5, at+16) },
			func(s *goal.State) error { return s.Hold(2, "d2", "too dear") },
			func(s *goal.State) error { return s.Reject(2, "no", at+17) },
			func(s *goal.State) error { return s.Propose(2, "fallback", goal.One("t", "d"), 5, at+18) },
			func(s *goal.State) error { return s.Approve(3, "", at+19) },
			func(s *goal.State) error { s.Stopped([]string{s.Attempts[2].Run}, at+20); return nil },
			func(s *goal.State) error { return s.Cancel("enough", at+21) },
		} {
			before, err := s.Goal(t.Context(), g.ID)
			must(t, err)
			_, effects, err := goal.Apply(before, at, f)
			must(t, err)
			for _, m := range effects.Messages {
				sent = append(sent, m.ID)
			}
			wrote := changed(t, s, g.ID, f)
			read, err := s.Goal(t.Context(), g.ID)
			must(t, err)
			clean(&wrote)
			if diff := cmp.Diff(wrote, read); diff != "" {
				t.Fatalf("in phase %s (-written +read):\n%s", wrote.Phase(), diff)
			}
		}
		got := outboxIDs(t, db)
		if diff := cmp.Diff(sent, got); diff != "" {
			t.Errorf("messages (-effects of the changes +sent):\n%s", diff)
		}
		for _, id := range []string{"task/" + task(1) + "/1", "task/" + task(1) + "/2", "task/" + task(2) + "/1", "run/" + run} {
			if !slices.Contains(got, id) {
				t.Errorf("%s was not sent; sent: %v", id, got)
			}
		}
		var sessions int
		must(t, db.QueryRowContext(t.Context(), `select count(*) from sessions where id like 'ada-task-%'`).Scan(&sessions))
		if sessions != 2 {
			t.Errorf("%d sessions of tasks, want 2", sessions)
		}

		// A change that is refused, or changes nothing, stores nothing.
		before := len(got)
		_, err := s.ChangeGoal(t.Context(), g.ID, at+30, func(s *goal.State) error { s.Title = "x"; return s.Cancel("", at) })
		if api.CodeOf(err) != api.Conflict {
			t.Errorf("cancelled twice: %v", err)
		}
		changed(t, s, g.ID, func(*goal.State) error { return nil })
		read, err := s.Goal(t.Context(), g.ID)
		must(t, err)
		if read.Title != "A book" || len(outboxIDs(t, db)) != before {
			t.Errorf("%q, %d messages after %d", read.Title, len(outboxIDs(t, db)), before)
		}
	})
}

// clean replaces what a text column cannot store, as the store does.
func clean(s *goal.State) {
	for i := range s.Tasks {
		s.Tasks[i].Error = strings.ReplaceAll(s.Tasks[i].Error, "\x00", "\uFFFD")
	}
}

// TestOneClaim checks that one of several concurrent calls claims an attempt.
func TestOneClaim(t *testing.T) {
	each(t, func(t *testing.T, db *sqldb.DB, s *sqlstore.Store) {
		g := executing(t, s, "ada")
		var wg sync.WaitGroup
		var mu sync.Mutex
		claimed := 0
		for range 8 {
			wg.Go(func() {
				_, err := s.ChangeGoal(t.Context(), g.ID, at, func(s *goal.State) error { return s.Claim(s.ID+"-1-1", 1, at) })
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					claimed++
				} else if api.CodeOf(err) != api.Conflict {
					t.Errorf("claim: %v", err)
				}
			})
		}
		wg.Wait()
		runs := 0
		for _, id := range outboxIDs(t, db) {
			if strings.HasPrefix(id, "run/") {
				runs++
			}
		}
		if claimed != 1 || runs != 1 {
			t.Errorf("%d claims, %d runs", claimed, runs)
		}
	})
}

func TestOverdue(t *testing.T) {
	each(t, func(t *testing.T, _ *sqldb.DB, s *sqlstore.Store) {
		g := executing(t, s, "ada")
		executing(t, s, "bob") // none of its tasks has an attempt
		g = changed(t, s, g.ID, func(s *goal.State) error { return s.Claim(s.ID+"-1-1", 1, at) })
		due := g.Tasks[0].Deadline
		for n, want := range map[int64]int{due: 0, due + 1: 1} {
			got, err := s.Overdue(t.Context(), n)
			must(t, err)
			if len(got) != want || want == 1 && got[0] != g.ID {
				t.Errorf("at %d: %v, want %d", n-due, got, want)
			}
		}
		changed(t, s, g.ID, func(s *goal.State) error { s.Expire(due + 1); return nil })
		if got, err := s.Overdue(t.Context(), due+1); err != nil || len(got) != 0 {
			t.Errorf("after it expired: %v, %v", got, err)
		}
	})
}

// TestRunOutcome checks that the outcome of a run is read from its rows.
func TestRunOutcome(t *testing.T) {
	each(t, func(t *testing.T, _ *sqldb.DB, s *sqlstore.Store) {
		ctx := context.WithoutCancel(t.Context())
		cmd := enginetest.Command("ada", "r1")
		_, err := s.RunOutcome(ctx, cmd.Run)
		wantNotFound(t, err)
		must(t, s.Persist(ctx, enginetest.Record(cmd, 1), enginetest.Input(cmd), nil))
		_, err = s.RunOutcome(ctx, cmd.Run)
		wantNotFound(t, err)
		rec, end := enginetest.Record(cmd, 2), enginetest.End(cmd, 2)
		rec.Turn.Calls = nil
		end.Response = "forty-two"
		must(t, s.Persist(ctx, rec, enginetest.Input(cmd), end))
		got, err := s.RunOutcome(ctx, cmd.Run)
		must(t, err)
		want := goal.Outcome{Success: true, Response: "forty-two", Turns: 2, MaxTurns: 25, Cost: 1220}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		cmd = enginetest.Command("ada", "r2")
		end = enginetest.End(cmd, 1)
		end.Success, end.Code, end.Reason, end.Error = false, api.Denied, api.ReasonInsufficient, "no money"
		must(t, s.Persist(ctx, enginetest.Record(cmd, 1), enginetest.Input(cmd), end))
		got, err = s.RunOutcome(ctx, cmd.Run)
		must(t, err)
		want = goal.Outcome{Code: api.Denied, Reason: api.ReasonInsufficient, Error: "no money", Response: end.Response, Turns: 1, MaxTurns: 25, Calls: true, Cost: 610}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		_, err = s.GoalOfRun(ctx, cmd.Run)
		wantNotFound(t, err)
	})
}

// TestStraysAreCancelled checks that a change which takes a task from its run also
// cancels the run: the next owner finds it cancelled, and the current owner cannot
// persist another turn.
func TestStraysAreCancelled(t *testing.T) {
	each(t, func(t *testing.T, _ *sqldb.DB, s *sqlstore.Store) {
		g := executing(t, s, "ada")
		g = changed(t, s, g.ID, func(s *goal.State) error { return s.Claim(g.Tasks[0].ID, 1, at+5) })
		cmd := enginetest.Command("ada", g.Tasks[0].Lease)
		cmd.Kind, cmd.Session = api.RunTask, goal.Session(g.Tasks[0])
		must(t, s.Persist(t.Context(), enginetest.Record(cmd, 1), enginetest.Input(cmd), nil))
		changed(t, s, g.ID, func(s *goal.State) error { return s.Cancel("enough", at+6) })
		k, err := s.Known(t.Context(), cmd)
		must(t, err)
		if want := "cancelled: the attempt at task " + g.Tasks[0].ID + " is over: CANCELLED: the goal is cancelled"; k.Cancelled != want {
			t.Errorf("the run is cancelled because of %q, want %q", k.Cancelled, want)
		}
		if err := s.Persist(t.Context(), enginetest.Record(cmd, 2), enginetest.Input(cmd), nil); api.ReasonOf(err) != api.ReasonCancelled {
			t.Errorf("another turn is persisted: %v, want refused as cancelled", err)
		}
	})
}

// TestTaskRunsLeaveTheirAgentAlone checks that the run of a task does not change its
// agent's state.
func TestTaskRunsLeaveTheirAgentAlone(t *testing.T) {
	each(t, func(t *testing.T, _ *sqldb.DB, s *sqlstore.Store) {
		before, err := s.Agent(t.Context(), "ada")
		must(t, err)
		cmd := enginetest.Command("ada", "r1")
		cmd.Kind = api.RunTask
		changes, err := s.Started(t.Context(), cmd, enginetest.Input(cmd), api.TierHigh, at+1)
		must(t, err)
		first, last := enginetest.Record(cmd, 1), enginetest.Record(cmd, 2)
		must(t, s.Persist(t.Context(), first, enginetest.Input(cmd), nil))
		end := enginetest.End(cmd, 2)
		must(t, s.Persist(t.Context(), last, enginetest.Input(cmd), end))
		after, err := s.Agent(t.Context(), "ada")
		must(t, err)
		before.Turns += 2
		if diff := cmp.Diff(before, after); diff != "" || len(changes) > 0 || first.Changed != nil || end.Changed != nil {
			t.Errorf("changes %v, %v, %v (-before +after):\n%s", changes, first.Changed, end.Changed, diff)
		}
	})
}
