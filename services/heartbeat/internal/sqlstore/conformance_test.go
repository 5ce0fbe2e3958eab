package sqlstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
	"github.com/anima-run/anima/services/heartbeat/internal/schedule"
	"github.com/anima-run/anima/services/heartbeat/internal/sqlstore"
)

// open opens the store of a test. announce is called with what Fire records, in the same
// transaction; its error must roll back everything.
type open func(announce func([]schedule.Fired) error) store

// TestStore tests the conformance to [schedule.Store] on every engine.
func TestStore(t *testing.T) {
	t.Parallel()
	for name, check := range map[string]func(*testing.T, open){
		"agents":                  agents,
		"many agents":             many,
		"schedule":                entries,
		"schedules at once":       schedulesAtOnce,
		"due entries":             dueEntries,
		"entries wait for agents": waiting,
		"alarms":                  alarms,
		"stale alarms":            staleAlarms,
		"postponed alarms":        postponedAlarms,
		"fire is atomic":          atomic,
		"fire is once":            once,
		"history":                 history,
		"record":                  record,
		"restore":                 restore,
		"pings":                   pings,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sqldbtest.Each(t, sqlstore.Migrations(), func(t *testing.T, db *sqldb.DB) {
				check(t, func(announce func([]schedule.Fired) error) store {
					return store{sqlstore.New(db, func(_ context.Context, _ *sqldb.Tx, f []schedule.Fired) error { return announce(f) }), db}
				})
			})
		})
	}
}

func noon(seconds int) time.Time {
	return time.Date(2026, 3, 2, 12, 0, seconds, 0, time.UTC)
}

func silent([]schedule.Fired) error { return nil }

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func see(t *testing.T, s store, a schedule.Agent, want bool) {
	t.Helper()
	got, err := s.SeeAgents(t.Context(), a)
	if err != nil || got != want {
		t.Fatalf("see %+v: stirred %v, %v, want %v", a, got, err, want)
	}
}

func sleeping(id string, seq int64) schedule.Agent {
	return schedule.Agent{ID: id, State: api.StateSleeping, Seq: seq, Changed: noon(0)}
}

func set(t *testing.T, s store, agent string, now time.Time, entries ...schedule.Entry) {
	t.Helper()
	checked, faults := schedule.Check(agent, entries, now)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	ok(t, s.SetSchedule(t.Context(), agent, checked))
}

func due(t *testing.T, s store, now time.Time) []schedule.Due {
	t.Helper()
	got, err := s.Due(t.Context(), now, 100)
	ok(t, err)
	return got
}

func next(t *testing.T, s store, want time.Time) {
	t.Helper()
	got, err := s.Next(t.Context())
	ok(t, err)
	if !got.Equal(want) {
		t.Fatalf("next: got %s, want %s", got, want)
	}
}

func diff(t *testing.T, what string, want, got any) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Fatalf("%s: -want +got\n%s", what, d)
	}
}

// fire records everything that is due, as the clock does.
func fire(t *testing.T, s store, now time.Time) []schedule.Fired {
	t.Helper()
	got, err := s.Fire(t.Context(), fired(t, due(t, s, now), now))
	ok(t, err)
	return got
}

func fired(t *testing.T, due []schedule.Due, now time.Time) []schedule.Fired {
	t.Helper()
	var all []schedule.Fired
	for _, d := range due {
		f := schedule.Fired{Due: d, When: now}
		if d.Alarm == "" {
			var err error
			f.Next, err = schedule.Following(d.Cron, now)
			ok(t, err)
		}
		all = append(all, f)
	}
	return all
}

func agents(t *testing.T, open open) {
	s := open(silent)
	has := func(id string, want bool) {
		t.Helper()
		if got, err := s.HasAgent(t.Context(), id); err != nil || got != want {
			t.Fatalf("has %s: got %v, %v, want %v", id, got, err, want)
		}
	}
	has("a", false)
	see(t, s, sleeping("a", 2), true)
	has("a", true)
	has("b", false)
	dead := sleeping("a", 4)
	dead.State = api.StateDead
	see(t, s, dead, false)
	see(t, s, sleeping("a", 3), false) // older: ignored
	see(t, s, sleeping("a", 4), false) // the same state again
	critical := sleeping("b", 1)
	critical.State = api.StateCritical
	see(t, s, critical, true)
	see(t, s, sleeping("c", 1), true)
	poor := func(after string, limit int, want ...string) {
		t.Helper()
		got, err := s.Poor(t.Context(), after, limit)
		ok(t, err)
		diff(t, "agents that cannot pay", want, got)
	}
	poor("", 9, "a", "b")
	poor("", 1, "a")
	poor("a", 9, "b")
	see(t, s, sleeping("a", 5), true) // no longer dead
	see(t, s, sleeping("a", 6), false)
	poor("", 9, "b")
}

// many stores the states of many agents in one call, in any order.
func many(t *testing.T, open open) {
	s := open(silent)
	const n = 301 // more than one statement holds
	var all []schedule.Agent
	for i := range n {
		id := fmt.Sprint("a", i)
		all = append(all, sleeping(id, 2), sleeping(id, 3), sleeping(id, 1))
		set(t, s, id, noon(0), schedule.Entry{Name: "one", Cron: "* * * * *"})
	}
	for i, want := range []bool{true, false} { // a repeated call changes nothing
		if stirred, err := s.SeeAgents(t.Context(), all...); err != nil || stirred != want {
			t.Fatalf("seen %d times: stirred %v, %v, want %v", i+1, stirred, err, want)
		}
	}
	for _, id := range []string{"a0", "a255", "a256", "a300"} {
		if has, err := s.HasAgent(t.Context(), id); err != nil || !has {
			t.Errorf("has %s: %v, %v", id, has, err)
		}
		dead := sleeping(id, 3)
		dead.State = api.StateDead
		see(t, s, dead, false)
	}
	got, err := s.Due(t.Context(), noon(60), 2*n)
	ok(t, err)
	if len(got) != n {
		t.Errorf("%d entries are due, want %d: a state that is not newer was kept", len(got), n)
	}
	dead := sleeping("a7", 4)
	dead.State = api.StateDead
	if stirred, err := s.SeeAgents(t.Context(), dead, sleeping("a8", 4), sleeping("b", 1)); err != nil || !stirred {
		t.Errorf("one of three is new: stirred %v, %v", stirred, err)
	}
	got, err = s.Due(t.Context(), noon(60), 2*n)
	ok(t, err)
	if len(got) != n-1 {
		t.Errorf("%d entries are due, want those of all but a dead agent", len(got))
	}
	if stirred, err := s.SeeAgents(t.Context()); err != nil || stirred {
		t.Errorf("of no agent: stirred %v, %v", stirred, err)
	}
}

func entries(t *testing.T, open open) {
	s := open(silent)
	see(t, s, sleeping("a", 1), true)
	set(t, s, "a", noon(0),
		schedule.Entry{Name: "keep", Cron: "*/5 * * * *", Reason: "old"},
		schedule.Entry{Name: "move", Cron: "*/5 * * * *"},
		schedule.Entry{Name: "drop", Cron: "*/5 * * * *"})
	set(t, s, "b", noon(0), schedule.Entry{Name: "keep", Cron: "0 0 * * *"})
	fire(t, s, noon(300))

	set(t, s, "a", noon(400),
		schedule.Entry{Name: "keep", Cron: "*/5 * * * *", Reason: "new"},
		schedule.Entry{Name: "move", Cron: "0 * * * *"},
		schedule.Entry{Name: "more", Cron: "*/10 * * * *"})
	got, err := s.Schedule(t.Context(), "a")
	ok(t, err)
	want := []schedule.Entry{
		{Agent: "a", Name: "keep", Cron: "*/5 * * * *", Reason: "new", Next: noon(600), Last: noon(300), Runs: 1},
		{Agent: "a", Name: "more", Cron: "*/10 * * * *", Next: noon(600)},
		{Agent: "a", Name: "move", Cron: "0 * * * *", Next: noon(3600), Last: noon(300), Runs: 1},
	}
	diff(t, "schedule of a", want, got)

	all, err := s.Schedule(t.Context(), "")
	ok(t, err)
	diff(t, "schedule of all agents", append(want, schedule.Entry{Agent: "b", Name: "keep", Cron: "0 0 * * *", Next: noon(43200)}), all)

	// The same schedule again, after an entry is due and before it has fired: the firing
	// must not be lost or repeated.
	set(t, s, "a", noon(700), schedule.Entry{Name: "keep", Cron: "*/5 * * * *"})
	next(t, s, noon(600))
	set(t, s, "a", noon(700))
	got, err = s.Schedule(t.Context(), "a")
	ok(t, err)
	diff(t, "emptied schedule", []schedule.Entry(nil), got)
	next(t, s, time.Time{}) // b is not known yet
}

// schedulesAtOnce checks that of several schedules that replicas set concurrently one
// remains, and not the entries of all.
func schedulesAtOnce(t *testing.T, open open) {
	s := open(silent)
	const replicas = 4
	for i := range 20 {
		agent := fmt.Sprint("a", i)
		var wg sync.WaitGroup
		for r := range replicas {
			wg.Go(func() {
				entries, _ := schedule.Check(agent, []schedule.Entry{{Name: fmt.Sprint("r", r), Cron: "* * * * *"}}, noon(0))
				if err := s.SetSchedule(context.WithoutCancel(t.Context()), agent, entries); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		got, err := s.Schedule(t.Context(), agent)
		ok(t, err)
		if len(got) != 1 {
			t.Errorf("%s: got %d entries of %d schedules with one each, want 1", agent, len(got), replicas)
		}
	}
}

func dueEntries(t *testing.T, open open) {
	s := open(silent)
	see(t, s, sleeping("a", 1), true)
	next(t, s, time.Time{})
	set(t, s, "a", noon(0),
		schedule.Entry{Name: "five", Cron: "*/5 * * * *", Reason: "r"}, schedule.Entry{Name: "one", Cron: "* * * * *"})
	next(t, s, noon(60))
	diff(t, "due before the time", []schedule.Due(nil), due(t, s, noon(59)))
	one := schedule.Due{Agent: "a", Name: "one", Cron: "* * * * *", At: noon(60)}
	five := schedule.Due{Agent: "a", Name: "five", Cron: "*/5 * * * *", Reason: "r", At: noon(300)}
	diff(t, "due at the time", []schedule.Due{one}, due(t, s, noon(60)))
	// Missed firings collapse into one, with the first missed time.
	diff(t, "due later, the oldest first", []schedule.Due{one, five}, due(t, s, noon(301)))
	limited, err := s.Due(t.Context(), noon(301), 1)
	ok(t, err)
	diff(t, "due, one at most", []schedule.Due{one}, limited)
	if got := fire(t, s, noon(301)); len(got) != 2 {
		t.Fatalf("fired %+v, want both", got)
	}
	diff(t, "due after firing", []schedule.Due(nil), due(t, s, noon(302)))
	next(t, s, noon(360))
}

func waiting(t *testing.T, open open) {
	s := open(silent)
	set(t, s, "a", noon(0), schedule.Entry{Name: "one", Cron: "* * * * *"})
	diff(t, "due of an unknown agent", []schedule.Due(nil), due(t, s, noon(600)))
	see(t, s, sleeping("a", 1), true)
	next(t, s, noon(60))
	fire(t, s, noon(60))
	dead := sleeping("a", 2)
	dead.State = api.StateDead
	see(t, s, dead, false)
	next(t, s, time.Time{})
	diff(t, "due of a dead agent", []schedule.Due(nil), due(t, s, noon(600)))
	see(t, s, sleeping("a", 3), true)
	if got := due(t, s, noon(600)); len(got) != 1 {
		t.Errorf("due of a revived agent: got %+v, want one", got)
	}
}

func alarms(t *testing.T, open open) {
	s := open(silent)
	ctx := t.Context()
	first := schedule.Alarm{ID: "t1", Agent: "a", At: noon(10), Reason: "r", Set: noon(0)}
	got, err := s.SetAlarm(ctx, first)
	ok(t, err)
	diff(t, "set", first, got)
	again := first
	again.At, again.Set = noon(20), noon(5)
	got, err = s.SetAlarm(ctx, again)
	ok(t, err)
	diff(t, "set again", first, got)
	next(t, s, noon(10))

	second := schedule.Alarm{ID: "t2", Agent: "a", At: noon(30), Set: noon(6)}
	_, err = s.SetAlarm(ctx, second)
	ok(t, err)
	next(t, s, noon(30))
	diff(t, "due before the time", []schedule.Due(nil), due(t, s, noon(29)))
	want := schedule.Due{Agent: "a", Name: schedule.AlarmName, Alarm: "t2", At: noon(30)}
	diff(t, "due", []schedule.Due{want}, due(t, s, noon(30)))
	if got := fire(t, s, noon(31)); len(got) != 1 {
		t.Fatalf("fired %+v, want the alarm", got)
	}
	next(t, s, time.Time{})
	// A turn that is repeated after a crash sets the alarm that has fired.
	got, err = s.SetAlarm(ctx, second)
	ok(t, err)
	diff(t, "set after it fired", second, got)
	diff(t, "due after it fired", []schedule.Due(nil), due(t, s, noon(100)))
}

func staleAlarms(t *testing.T, open open) {
	s := open(func(f []schedule.Fired) error {
		if len(f) > 0 {
			return fmt.Errorf("announced %+v", f)
		}
		return nil
	})
	_, err := s.SetAlarm(t.Context(), schedule.Alarm{ID: "t1", Agent: "a", At: noon(10), Set: noon(0)})
	ok(t, err)
	dead := schedule.Agent{ID: "a", State: api.StateDead, Seq: 9, Changed: noon(5)}
	see(t, s, dead, false)
	got := due(t, s, noon(10))
	if len(got) != 1 || !got[0].Stale {
		t.Fatalf("due: got %+v, want one that is stale", got)
	}
	fire(t, s, noon(10))
	next(t, s, time.Time{})
	ticks, err := s.History(t.Context(), "", time.Time{}, 0, 10)
	ok(t, err)
	diff(t, "history", []schedule.Tick(nil), ticks)
}

// postponedAlarms checks that an alarm is not due while another cause keeps its agent awake,
// also if that run sets no alarm, and is due afterwards.
func postponedAlarms(t *testing.T, open open) {
	s := open(silent)
	ctx := t.Context()
	see(t, s, sleeping("a", 1), true)
	_, err := s.SetAlarm(ctx, schedule.Alarm{ID: "t1", Agent: "a", At: noon(10), Set: noon(0)})
	ok(t, err)
	_, err = s.SetAlarm(ctx, schedule.Alarm{ID: "t2", Agent: "b", At: noon(20), Set: noon(0)}) // of an unknown agent
	ok(t, err)
	next(t, s, noon(10))
	want := schedule.Due{Agent: "a", Name: schedule.AlarmName, Alarm: "t1", At: noon(10)}
	diff(t, "asleep", []schedule.Due{want}, due(t, s, noon(10)))

	state := func(to api.AgentState, seq int64, at time.Time) {
		t.Helper()
		see(t, s, schedule.Agent{ID: "a", State: to, Seq: seq, Changed: at}, to == api.StateSleeping)
	}
	state(api.StateRunning, 2, noon(5))
	diff(t, "woken by another cause", []schedule.Due(nil), due(t, s, noon(15)))
	next(t, s, noon(20))
	state(api.StateSleeping, 3, noon(12))
	next(t, s, noon(10))
	want.Postponed = true
	diff(t, "asleep again", []schedule.Due{want}, due(t, s, noon(15)))
	want.Postponed = false
	state(api.StateWaking, 4, noon(10)) // possibly by this alarm
	diff(t, "woken at its time", []schedule.Due{want}, due(t, s, noon(15)))
	if got := fire(t, s, noon(15)); len(got) != 1 {
		t.Fatalf("fired %+v, want the alarm", got)
	}
	next(t, s, noon(20))

	// An agent sets its alarm during a run.
	_, err = s.SetAlarm(ctx, schedule.Alarm{ID: "t3", Agent: "a", At: noon(18), Set: noon(16)})
	ok(t, err)
	diff(t, "not yet asleep", []schedule.Due{{Agent: "a", Name: schedule.AlarmName, Alarm: "t3", At: noon(18)}}, due(t, s, noon(18)))
}

func atomic(t *testing.T, open open) {
	fault := errors.New("the announcement failed")
	var fail bool
	s := open(func([]schedule.Fired) error {
		if fail {
			return fault
		}
		return nil
	})
	see(t, s, sleeping("a", 1), true)
	set(t, s, "a", noon(0), schedule.Entry{Name: "one", Cron: "* * * * *"})
	_, err := s.SetAlarm(t.Context(), schedule.Alarm{ID: "t1", Agent: "a", At: noon(10), Set: noon(0)})
	ok(t, err)
	fail = true
	before := due(t, s, noon(60))
	if _, err := s.Fire(t.Context(), fired(t, before, noon(60))); !errors.Is(err, fault) {
		t.Fatalf("fire: got %v, want %v", err, fault)
	}
	diff(t, "due after a failure", before, due(t, s, noon(60)))
	ticks, err := s.History(t.Context(), "a", time.Time{}, 0, 10)
	ok(t, err)
	diff(t, "history after a failure", []schedule.Tick(nil), ticks)
	fail = false
	if got := fire(t, s, noon(60)); len(got) != 2 {
		t.Errorf("fired %+v, want both", got)
	}
}

func once(t *testing.T, open open) {
	s := open(silent)
	const n = 20
	for i := range n {
		id := fmt.Sprint("a", i)
		see(t, s, sleeping(id, 1), true)
		set(t, s, id, noon(0), schedule.Entry{Name: "one", Cron: "* * * * *"})
		_, err := s.SetAlarm(t.Context(), schedule.Alarm{ID: "t1", Agent: id, At: noon(10), Set: noon(0)})
		ok(t, err)
	}
	all := fired(t, due(t, s, noon(60)), noon(60))
	var mu sync.Mutex
	var recorded int
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			mine, err := s.Fire(context.WithoutCancel(t.Context()), all)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			recorded += len(mine)
		})
	}
	wg.Wait()
	ticks, err := s.History(t.Context(), "", time.Time{}, 0, 1000)
	ok(t, err)
	if len(ticks) != 2*n || recorded != 2*n {
		t.Errorf("got %d recorded and %d ticks, want %d", recorded, len(ticks), 2*n)
	}
	entries, err := s.Schedule(t.Context(), "")
	ok(t, err)
	for _, b := range entries {
		if b.Runs != 1 {
			t.Errorf("%s of %s ran %d times, want once", b.Name, b.Agent, b.Runs)
		}
	}
}

func history(t *testing.T, open open) {
	s := open(silent)
	for _, id := range []string{"a", "b"} {
		see(t, s, sleeping(id, 1), true)
		set(t, s, id, noon(0), schedule.Entry{Name: "one", Cron: "* * * * *"})
	}
	fire(t, s, noon(61))
	fire(t, s, noon(122))
	got, err := s.History(t.Context(), "a", time.Time{}, 0, 10)
	ok(t, err)
	want := []schedule.Tick{
		{Agent: "a", Name: "one", Due: noon(120), At: noon(122)},
		{Agent: "a", Name: "one", Due: noon(60), At: noon(61)},
	}
	diff(t, "history of a", want, got)
	all, err := s.History(t.Context(), "", time.Time{}, 0, 3)
	ok(t, err)
	if len(all) != 3 || !all[0].At.Equal(noon(122)) {
		t.Errorf("history: got %+v, want the latest three", all)
	}
	var paged []schedule.Tick // the two ticks of a minute have the same time
	for _, place := range []struct {
		until time.Time
		skip  int
	}{{time.Time{}, 0}, {noon(122), 1}, {noon(122), 2}, {noon(61), 1}} {
		page, err := s.History(t.Context(), "", place.until, place.skip, 1)
		ok(t, err)
		paged = append(paged, page...)
	}
	whole, err := s.History(t.Context(), "", time.Time{}, 0, 10)
	ok(t, err)
	diff(t, "history in pages", whole, paged)
	pruned(t, s, noon(100), false)
	got, err = s.History(t.Context(), "a", time.Time{}, 0, 10)
	ok(t, err)
	diff(t, "pruned history", want[:1], got)
	// More ticks than one part has.
	_, err = s.db.ExecContext(t.Context(), `insert into ticks (agent, cause, name, due, at)
		with recursive n (i) as (select 1 union all select i + 1 from n where i < 1500) select 'a', 'old-' || i, 'one', 0, i from n`)
	ok(t, err)
	pruned(t, s, noon(100), true)
	pruned(t, s, noon(100), false)
	got, err = s.History(t.Context(), "a", time.Time{}, 0, 10)
	ok(t, err)
	diff(t, "pruned history", want[:1], got)
}

func pruned(t *testing.T, s store, before time.Time, want bool) {
	t.Helper()
	if more, err := s.Prune(t.Context(), before); err != nil || more != want {
		t.Errorf("prune: more %v, %v, want %v", more, err, want)
	}
}

func record(t *testing.T, open open) {
	s := open(silent)
	for _, r := range []struct {
		agent, name string
		at, want    time.Time
		named       string
	}{{"a", "one", noon(1), noon(1), "one"}, {"a", "two", noon(2), noon(1), "one"}, {"b", "two", noon(3), noon(3), "two"}} {
		got, err := s.Record(t.Context(), "beat-k", schedule.Tick{Agent: r.agent, Name: r.name, Due: r.at, At: r.at})
		ok(t, err)
		diff(t, "tick of "+r.agent+" with "+r.name, schedule.Tick{Agent: r.agent, Name: r.named, Due: r.want, At: r.want}, got)
	}
}

func pings(t *testing.T, open open) {
	s := open(silent)
	at := func(agent string, want time.Time) {
		t.Helper()
		got, err := s.LastPing(t.Context(), agent)
		if err != nil || !got.Equal(want) {
			t.Errorf("last ping of %s: %s, %v, want %s", agent, got, err, want)
		}
	}
	at("ada", time.Time{})
	for _, second := range []int{2, 2, 1} { // twice, and an older one afterwards
		ok(t, s.Ping(t.Context(), "ada", noon(second)))
	}
	ok(t, s.Ping(t.Context(), "bob", noon(9)))
	at("ada", noon(2))
	ok(t, s.Ping(t.Context(), "ada", noon(3)))
	at("ada", noon(3))
}

// restore checks that a lost agent is restored with its entries and alarm, once, and that
// later entries and alarms remain.
func restore(t *testing.T, open open) {
	s := open(silent)
	ctx := t.Context()
	agent := sleeping("a", 5)
	alarm := schedule.Alarm{ID: "a/lost", Agent: "a", At: noon(500), Reason: "r", Set: noon(100)}
	checked := func(entries ...schedule.Entry) []schedule.Entry {
		t.Helper()
		entries, faults := schedule.Check("a", entries, noon(100))
		if len(faults) > 0 {
			t.Fatal(faults)
		}
		return entries
	}
	daily := checked(schedule.Entry{Name: "daily", Cron: "0 0 * * *"})
	for range 2 {
		ok(t, s.Restore(ctx, agent, daily, alarm, noon(100)))
		next(t, s, noon(500))
	}
	if known, err := s.HasAgent(ctx, "a"); !known || err != nil {
		t.Errorf("the agent is known: %t, %v", known, err)
	}
	if got := fire(t, s, noon(500)); len(got) != 1 {
		t.Fatalf("fired %+v, want the alarm", got)
	}
	// The alarm has fired, and the agent changes its schedule.
	set(t, s, "a", noon(600), schedule.Entry{Name: "own", Cron: "0 1 * * *"})
	ok(t, s.Restore(ctx, agent, daily, alarm, noon(100)))
	next(t, s, noon(13*3600))
	got, err := s.Schedule(ctx, "a")
	ok(t, err)
	diff(t, "own schedule", []schedule.Entry{{Agent: "a", Name: "own", Cron: "0 1 * * *", Next: noon(13 * 3600)}}, got)

	later := schedule.Alarm{ID: "t1", Agent: "a", At: noon(900), Set: noon(700)}
	_, err = s.SetAlarm(ctx, later)
	ok(t, err)
	ok(t, s.Restore(ctx, agent, nil, alarm, noon(100)))
	next(t, s, noon(900))
	// Now the later alarm is one of an older copy.
	ok(t, s.Restore(ctx, agent, nil, alarm, noon(800)))
	next(t, s, noon(500))
	ok(t, s.Restore(ctx, schedule.Agent{ID: "b", State: api.StateDead, Seq: 1, Changed: noon(0)}, nil, schedule.Alarm{}, noon(800)))
	next(t, s, noon(500))
}
