package heartbeat_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/embednats"
	"github.com/anima-run/anima/pkg/executor/executortest"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/services/heartbeat"
	"github.com/anima-run/anima/services/heartbeat/internal/schedule"
	"github.com/anima-run/anima/services/heartbeat/internal/sqlstore"
)

func call[Resp any](t *testing.T, b *bus.Bus, req api.Message) Resp {
	t.Helper()
	resp, err := bus.Call[Resp](t.Context(), b, req)
	if err != nil {
		t.Fatalf("%T: %v", req, err)
	}
	return resp
}

// known publishes the state of a sleeping agent and waits until heartbeat has stored it.
func known(t *testing.T, b *bus.Bus, agent string) {
	t.Helper()
	m := api.AgentChanged{Agent: agent, Name: agent, State: api.StateSleeping, Seq: 1, At: time.Now().UnixMicro()}
	if err := b.Publish(t.Context(), "agent_state/"+agent+"/1", m); err != nil {
		t.Fatal(err)
	}
	var err error
	for t.Context().Err() == nil {
		_, err = bus.Call[api.Wake](t.Context(), b, api.RequestWake{Agent: agent, Cause: "known"})
		if api.CodeOf(err) != api.NotFound {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

func wakes(t *testing.T, b *bus.Bus) *bus.Bucket[api.Wake] {
	t.Helper()
	bucket, err := bus.OpenBucket[api.Wake](t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	return bucket
}

func isCause(prefix string) func(api.WakeRequested) bool {
	return func(m api.WakeRequested) bool { return strings.HasPrefix(m.Wake.Cause, prefix) }
}

func TestAlarmFiresOnce(t *testing.T) {
	t.Parallel()
	b := apptest.Bus(t, heartbeat.Service)
	requested, ticked := apptest.Watch[api.WakeRequested](t, b), apptest.Watch[api.Ticked](t, b)
	known(t, b, "lucky")

	at := time.Now().Add(100 * time.Millisecond).UnixMicro()
	set := api.SetAlarm{ID: "t1.0", Agent: "lucky", At: at, Reason: "slept enough"}
	want := api.Alarm{Agent: "lucky", At: at}
	if got := call[api.Alarm](t, b, set); got != want {
		t.Errorf("alarm: got %+v, want %+v", got, want)
	}
	wake := apptest.Next(t, requested, isCause("alarm-")).Wake
	if wake.Agent != "lucky" || wake.Reason != "slept enough" || wake.By != (api.Principal{Kind: api.HeartbeatKind}) || wake.At < at {
		t.Errorf("wake: got %+v", wake)
	}
	e, err := wakes(t, b).Get(t.Context(), api.WakeKey("lucky", wake.Cause))
	if e.Value.Trace == "" {
		t.Error("the wake in the bucket leads to no trace")
	}
	wake.Trace = e.Value.Trace
	if err != nil || e.Value != wake {
		t.Errorf("in the bucket: got %+v, %v, want %+v", e.Value, err, wake)
	}
	tick := apptest.Next(t, ticked, nil)
	if tick.Agent != "lucky" || tick.Name != "alarm" || tick.Due != at {
		t.Errorf("tick: got %+v", tick)
	}
	t.Logf("fired %d µs after its time", tick.At-tick.Due)

	// The same request, as from a turn that is repeated after a crash.
	set.At = time.Now().UnixMicro()
	if got := call[api.Alarm](t, b, set); got != want {
		t.Errorf("set again: got %+v, want %+v", got, want)
	}
	fence := api.SetAlarm{ID: "t2.0", Agent: "lucky", At: time.Now().UnixMicro()}
	call[api.Alarm](t, b, fence)
	if got := apptest.Next(t, ticked, nil); got.Due != fence.At {
		t.Errorf("tick after the fence: got %+v, want one due %d", got, fence.At)
	}
	ticks := call[api.Ticks](t, b, api.ListTicks{Agent: "lucky"}).Ticks
	var paged []api.Ticked
	for page := (api.Ticks{Page: api.Page{More: true}}); page.More; {
		page = call[api.Ticks](t, b, api.ListTicks{Agent: "lucky", Limit: 1, After: page.Next})
		paged = append(paged, page.Ticks...)
	}
	if !slices.Equal(paged, ticks) {
		t.Errorf("in pages of one: got %+v, want %+v", paged, ticks)
	}
	if len(ticks) != 2 || ticks[1] != tick {
		t.Errorf("history: got %+v, want two, %+v the older", ticks, tick)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	b := apptest.Bus(t, heartbeat.Service)
	_, err := bus.Call[api.Schedule](t.Context(), b, api.SetSchedule{Agent: "lucky", Beats: []api.Beat{
		{Name: "a b", Cron: "* * * * *"}, {Name: "bad", Cron: "61 * * * *"},
	}})
	if api.CodeOf(err) != api.Invalid || len(api.Wire(err).Details) != 2 {
		t.Errorf("bad schedule: got %v, want invalid with two details", err)
	}
	far := time.Now().Add(25 * time.Hour).UnixMicro()
	if _, err := bus.Call[api.Alarm](t.Context(), b, api.SetAlarm{ID: "x", Agent: "lucky", At: far}); api.CodeOf(err) != api.Invalid {
		t.Errorf("far alarm: got %v, want invalid", err)
	}
	if _, err := bus.Call[api.Wake](t.Context(), b, api.RequestWake{Agent: "unknown", Cause: "c"}); api.CodeOf(err) != api.NotFound {
		t.Errorf("wake of an unknown agent: got %v, want not found", err)
	}
	if _, err := bus.Call[api.Wake](t.Context(), b, api.RequestWake{Agent: "lucky", Cause: "a.b"}); api.CodeOf(err) != api.Invalid {
		t.Errorf("wake without a proper cause: got %v, want invalid", err)
	}
}

func TestSchedule(t *testing.T) {
	t.Parallel()
	b := apptest.Bus(t, heartbeat.Service)
	set := api.SetSchedule{Agent: "lucky", Beats: []api.Beat{{Name: "leap", Cron: "0  0 29 2 *", Reason: "rare"}, {Name: "noon", Cron: "0 12 * * *"}}}
	first := call[api.Schedule](t, b, set)
	if len(first.Entries) != 2 || first.Entries[0].Beat.Cron != "0 0 29 2 *" || first.Entries[0].Beat.Reason != "rare" || first.Entries[1].Beat.Next == 0 {
		t.Errorf("got %+v", first)
	}
	call[api.Schedule](t, b, api.SetSchedule{Agent: "other", Beats: []api.Beat{{Name: "noon", Cron: "0 12 * * *"}}})
	if d := cmp.Diff(first, call[api.Schedule](t, b, set)); d != "" {
		t.Errorf("set again: -first +second\n%s", d)
	}
	if d := cmp.Diff(first, call[api.Schedule](t, b, api.GetSchedule{Agent: "lucky"})); d != "" {
		t.Errorf("get: -want +got\n%s", d)
	}
	if all := call[api.Schedule](t, b, api.GetSchedule{}); len(all.Entries) != 3 {
		t.Errorf("everyone's: got %+v, want 3 entries", all)
	}
}

// TestWakeOfANewAgent checks that a wake may arrive before the first event of its agent.
func TestWakeOfANewAgent(t *testing.T) {
	t.Parallel()
	b := apptest.Bus(t, heartbeat.Service)
	woken := make(chan error, 1)
	go func() {
		_, err := bus.Call[api.Wake](t.Context(), b, api.RequestWake{Agent: "lucky", Cause: "creator-1"})
		woken <- err
	}()
	select {
	case err := <-woken:
		t.Fatalf("before there is an agent: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	m := api.AgentChanged{Agent: "lucky", Name: "lucky", State: api.StateSleeping, Seq: 1, At: time.Now().UnixMicro()}
	if err := b.Publish(t.Context(), "agent_state/lucky/1", m); err != nil {
		t.Fatal(err)
	}
	if err := <-woken; err != nil {
		t.Error(err)
	}
}

func TestWakeOncePerCause(t *testing.T) {
	t.Parallel()
	b := apptest.Bus(t, heartbeat.Service)
	requested := apptest.Watch[api.WakeRequested](t, b)
	known(t, b, "lucky")
	req := api.RequestWake{Agent: "lucky", Cause: "creator-1", Reason: "I want to talk"}
	first := call[api.Wake](t, b, req)
	if first.By.Kind != api.Creator || first.Reason != req.Reason {
		t.Errorf("got %+v", first)
	}
	req.Reason = "again"
	if second := call[api.Wake](t, b, req); second != first {
		t.Errorf("again: got %+v, want %+v", second, first)
	}
	// After loop has consumed the wake, the cause can be used again.
	bucket, key := wakes(t, b), api.WakeKey("lucky", "creator-1")
	e, err := bucket.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	if err := bucket.Delete(t.Context(), key, e.Revision); err != nil {
		t.Fatal(err)
	}
	third := call[api.Wake](t, b, req)
	for _, want := range []api.Wake{first, third} {
		if got := apptest.Next(t, requested, isCause("creator-")).Wake; got != want {
			t.Errorf("announced: got %+v, want %+v", got, want)
		}
	}
}

// TestRunBeatOnce checks that a key of run_beat makes one wake, also after loop has
// consumed it, and none for another entry.
func TestRunBeatOnce(t *testing.T) {
	t.Parallel()
	b := apptest.Bus(t, heartbeat.Service)
	call[api.Schedule](t, b, api.SetSchedule{Agent: "lucky", Beats: []api.Beat{{Name: "morning", Cron: "0 8 * * *", Reason: "news"}, {Name: "noon", Cron: "0 12 * * *"}}})
	req := api.RunBeat{Agent: "lucky", Name: "morning", ID: "k1"}
	first := call[api.Wake](t, b, req)
	if first.Cause != "beat-k1" || first.Reason != "news" || first.By.Kind != api.HeartbeatKind {
		t.Errorf("wake: got %+v, want the reason and authority of the entry", first)
	}
	same := func(when string) {
		t.Helper()
		got := call[api.Wake](t, b, req)
		if got.Trace = first.Trace; got != first {
			t.Errorf("%s: got %+v, want %+v", when, got, first)
		}
	}
	other := func(when string) {
		t.Helper()
		_, err := bus.Call[api.Wake](t.Context(), b, api.RunBeat{Agent: "lucky", Name: "noon", ID: "k1"})
		if api.CodeOf(err) != api.Conflict || api.ReasonOf(err) != api.ReasonKeyTaken {
			t.Errorf("another entry %s: got %v, want conflict with reason %s", when, err, api.ReasonKeyTaken)
		}
	}
	same("while it waits")
	other("while it waits")
	key := api.WakeKey("lucky", first.Cause)
	e, err := wakes(t, b).Get(t.Context(), key)
	if err == nil {
		err = wakes(t, b).Delete(t.Context(), key, e.Revision)
	}
	if err != nil {
		t.Fatal(err)
	}
	same("consumed")
	other("consumed")
	ticks := call[api.Ticks](t, b, api.ListTicks{Agent: "lucky"}).Ticks
	if want := (api.Ticked{Agent: "lucky", Name: "morning", Due: first.At, At: first.At}); len(ticks) != 1 || ticks[0] != want {
		t.Errorf("history: got %+v, want %+v", ticks, want)
	}
	if got := call[api.Wake](t, b, api.RunBeat{Agent: "lucky", Name: "morning", ID: "k2"}); got.At <= first.At {
		t.Errorf("another key: got %+v, want a later wake than %+v", got, first)
	}
}

func TestInboxMessageWakes(t *testing.T) {
	t.Parallel()
	b := apptest.Bus(t, heartbeat.Service)
	requested := apptest.Watch[api.WakeRequested](t, b)
	const from = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"
	m := api.MessageReceived{ID: "0123456789abcdef0123456789abcdef", Agent: "lucky", From: from}
	for _, id := range []string{"one", "two"} { // it may be delivered twice
		if err := b.Publish(t.Context(), id, m); err != nil {
			t.Fatal(err)
		}
	}
	other := api.MessageReceived{ID: "fedcba9876543210", Agent: "lucky", From: from}
	if err := b.Publish(t.Context(), "other", other); err != nil {
		t.Fatal(err)
	}
	causes := map[string]bool{}
	for range 2 {
		w := apptest.Next(t, requested, nil).Wake
		if w.Agent != "lucky" || w.By != (api.Principal{Kind: api.Peer, Address: from}) || !strings.Contains(w.Reason, from) {
			t.Errorf("got %+v", w)
		}
		causes[w.Cause] = true
	}
	if d := cmp.Diff(map[string]bool{"inbox-0123456789ab": true, "inbox-fedcba987654": true}, causes); d != "" {
		t.Errorf("causes: -want +got\n%s", d)
	}
}

// TestGoalEndWakes checks that the end of a goal wakes its agent once, and that other
// changes of a goal cause no wake.
func TestGoalEndWakes(t *testing.T) {
	t.Parallel()
	b := apptest.Bus(t, heartbeat.Service)
	requested := apptest.Watch[api.WakeRequested](t, b)
	for i, m := range []api.GoalChanged{
		{Goal: "g0", Previous: api.PhaseReview, Phase: api.PhaseExecuting},
		{Goal: "g0", Previous: api.PhaseExecuting, Phase: api.PhaseCancelled},
		{Goal: "g1", Previous: api.PhaseExecuting, Phase: api.PhaseComplete, Title: "tea"},
		{Goal: "g1", Previous: api.PhaseExecuting, Phase: api.PhaseComplete, Title: "tea"}, // it may be delivered twice
		{Goal: "g1", Previous: api.PhaseComplete, Phase: api.PhaseComplete, Title: "tea"},  // a run of the goal was stopped after the goal's end
		{Goal: "g2", Previous: api.PhasePlanning, Phase: api.PhaseFailed, Title: "gold", Reason: "policy denied the plan"},
	} {
		m.Agent, m.At = "lucky", 1_790_000_000_000_000
		if err := b.Publish(t.Context(), strconv.Itoa(i), m); err != nil {
			t.Fatal(err)
		}
	}
	got := map[string]string{}
	for range 2 {
		w := apptest.Next(t, requested, nil).Wake
		if w.Agent != "lucky" || w.By.Kind != api.HeartbeatKind {
			t.Errorf("got %+v", w)
		}
		got[w.Cause] = w.Reason
	}
	if d := cmp.Diff(map[string]string{
		"goal-g1": `your goal "tea" is complete`, "goal-g2": `your goal "gold" has failed: policy denied the plan`,
	}, got); d != "" {
		t.Errorf("wakes: -want +got\n%s", d)
	}
	known(t, b, "fence")
	if w := apptest.Next(t, requested, nil).Wake; w.Agent != "fence" {
		t.Errorf("announced %+v, want nothing more of goals", w)
	}
}

// TestMessageToldAgain checks that a redelivered message, after its wake was consumed,
// results in the same wake: with the same time, by which loop recognises it, and
// announced once.
func TestMessageToldAgain(t *testing.T) {
	t.Parallel()
	b := apptest.Bus(t, heartbeat.Service)
	requested, bucket := apptest.Watch[api.WakeRequested](t, b), wakes(t, b)
	m := api.MessageReceived{ID: "0123456789ab", Agent: "lucky", From: "0x1", At: 1_790_000_000_000_000}
	key := api.WakeKey("lucky", "inbox-0123456789ab")
	for _, id := range []string{"first", "again"} {
		if err := b.Publish(t.Context(), id, m); err != nil {
			t.Fatal(err)
		}
		seen := errors.New("seen")
		var e bus.Entry[api.Wake]
		err := bucket.Watch(t.Context(), key, nil, func(v bus.Entry[api.Wake]) error {
			if e = v; v.Deleted {
				return nil
			}
			return seen
		})
		if !errors.Is(err, seen) || e.Value.At != m.At {
			t.Fatalf("%s: got %+v, %v, want a wake of the message's time", id, e.Value, err)
		}
		if err := bucket.Delete(t.Context(), key, e.Revision); err != nil {
			t.Fatal(err)
		}
	}
	known(t, b, "fence")
	for _, want := range []string{"lucky", "fence"} {
		if w := apptest.Next(t, requested, nil).Wake; w.Agent != want {
			t.Errorf("announced %+v, want one of %s", w, want)
		}
	}
}

// seed creates the database of a heartbeat that was down for some minutes.
func seed(t *testing.T, server *embednats.Server, data string, agents ...string) {
	t.Helper()
	world := apptest.Start(t, apptest.Options{Data: data, Server: server}, heartbeat.Service) // creates the folder and the schema
	world.Stop()
	db, err := sqldb.Open(t.Context(), "sqlite:"+filepath.Join(data, "heartbeat", "heartbeat.db"), sqldb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := sqldb.Migrate(t.Context(), db, sqlstore.Migrations()); err != nil {
		t.Fatal(err)
	}
	store := sqlstore.New(db, func(context.Context, *sqldb.Tx, []schedule.Fired) error { return nil })
	// Due two minutes ago and then after most of an hour, so that the test never meets the next time.
	past, due := time.Now().Add(-5*time.Minute), time.Now().Add(-2*time.Minute)
	for _, agent := range agents {
		entries, faults := schedule.Check(agent, []schedule.Entry{{Name: "often", Cron: fmt.Sprintf("%d * * * *", due.Minute()), Reason: "look around"}}, past)
		if len(faults) > 0 {
			t.Fatal(faults)
		}
		if err := store.SetSchedule(t.Context(), agent, entries); err != nil {
			t.Fatal(err)
		}
		if err := sqldb.InTx(t.Context(), db, func(tx *sqldb.Tx) error {
			_, err := store.SeeAgents(t.Context(), tx, []schedule.Agent{{ID: agent, State: api.StateSleeping, Seq: 1, Changed: past}})
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTwoReplicasFireOnceAndARestartNothing(t *testing.T) {
	t.Parallel()
	data, server := t.TempDir(), apptest.Server(t)
	var agents []string
	for i := range 20 {
		agents = append(agents, fmt.Sprint("agent", i))
	}
	seed(t, server, data, agents...)
	start := func() *apptest.World {
		return apptest.Start(t, apptest.Options{Data: data, Server: server}, heartbeat.Service)
	}
	one, two := start(), start()
	b := one.Bus
	requested, ticked := apptest.Watch[api.WakeRequested](t, b), apptest.Watch[api.Ticked](t, b)
	woken := map[string]bool{}
	for range agents {
		w := apptest.Next(t, requested, nil).Wake
		if woken[w.Agent] || !strings.HasPrefix(w.Cause, "cron-often-") || w.Reason != "look around" {
			t.Errorf("got %+v, want one cron wake for each agent", w)
		}
		woken[w.Agent] = true
		apptest.Next(t, ticked, nil)
	}
	one.Stop()
	two.Stop()

	start()
	known(t, b, "fence")
	if w := apptest.Next(t, requested, nil).Wake; w.Agent != "fence" {
		t.Errorf("after a restart: got %+v, want nothing but the fence", w)
	}
	ticks := call[api.Ticks](t, b, api.ListTicks{Limit: 100}).Ticks
	if len(ticks) != len(agents) {
		t.Errorf("history: got %d ticks, want %d", len(ticks), len(agents))
	}
	for _, e := range call[api.Schedule](t, b, api.GetSchedule{Agent: agents[0]}).Entries {
		if e.Beat.Runs != 1 || e.Beat.Last == 0 || e.Beat.Next <= e.Beat.Last {
			t.Errorf("schedule: got %+v, want one run and a later next", e.Beat)
		}
	}
}

// TestReplicasKickEachOther checks the case that the replica that handles a request does
// not run the clock.
func TestReplicasKickEachOther(t *testing.T) {
	t.Parallel()
	data, server := t.TempDir(), apptest.Server(t)
	var b *bus.Bus
	for range 2 {
		b = apptest.Start(t, apptest.Options{Data: data, Server: server}, heartbeat.Service).Bus
	}
	ticked := apptest.Watch[api.Ticked](t, b)
	for i := range 10 {
		at := time.Now().Add(20 * time.Millisecond).UnixMicro()
		call[api.Alarm](t, b, api.SetAlarm{ID: "t1.0", Agent: fmt.Sprint("agent", i), At: at})
		// Without a kick it would be up to schedule.Safety late.
		if m := apptest.Next(t, ticked, nil); m.At-m.Due > (schedule.Safety / 3).Microseconds() {
			t.Errorf("%s fired %d µs late", m.Agent, m.At-m.Due)
		}
	}
}

func TestDeadLeaseHolderIsReplaced(t *testing.T) {
	t.Parallel()
	server := apptest.Server(t)
	world := apptest.Start(t, apptest.Options{Server: server})
	leases, err := bus.OpenBucket[api.Lease](t.Context(), world.Bus)
	if err != nil {
		t.Fatal(err)
	}
	// A replica that was killed does not release its lease.
	key := api.LeaseKey("heartbeat-clock")
	if _, err := leases.Create(t.Context(), key, api.Lease{Owner: "killed"}, 2*time.Second); err != nil {
		t.Fatal(err)
	}
	b := apptest.Start(t, apptest.Options{Server: server}, heartbeat.Service).Bus
	ticked := apptest.Watch[api.Ticked](t, b)
	call[api.Alarm](t, b, api.SetAlarm{ID: "t1.0", Agent: "lucky", At: time.Now().UnixMicro()})
	apptest.Next(t, ticked, nil)
	e, err := leases.Get(t.Context(), key)
	if err != nil || e.Value.Owner == "killed" {
		t.Errorf("lease: got %+v, %v, want another owner", e.Value, err)
	}
}

// TestTools checks that an agent can change its schedule and ping, with policy's token
// for each call.
func TestTools(t *testing.T) {
	t.Parallel()
	b := apptest.Bus(t, heartbeat.Service, executortest.Policy())
	if got := call[api.ToolList](t, b, api.ListHeartbeatTools{}).Tools; !slices.Equal(got, []string{"heartbeat_ping", "modify_heartbeat"}) {
		t.Errorf("executes %v", got)
	}
	known(t, b, "lucky")
	call[api.Schedule](t, b, api.SetSchedule{Agent: "lucky", Beats: []api.Beat{{Name: "morning", Cron: "0 8 * * *", Reason: "news"}}})
	n := 0
	run := func(tool, args string) (string, error) {
		n++
		m := executortest.Allowed(t, api.Invocation{
			Agent: "lucky", Turn: "r.1", Index: n, Tool: tool, Args: json.RawMessage(args), At: 1_790_000_000_000_000,
		})
		var text string
		for range 2 { // repeated as after a crash
			out, err := bus.Call[api.Returned](t.Context(), b, api.CallHeartbeatTool{Invocation: m})
			if err != nil {
				return "", err
			}
			text = out.Text
		}
		return text, nil
	}
	for _, c := range []struct {
		args string
		want map[string]string // cron by name
	}{
		{`{"action":"add","name":"dusk"}`, map[string]string{"morning": "0 8 * * *", "dusk": "0 * * * *"}},
		{`{"action":"update","name":"dusk","schedule":"30 18 * * *","task":"look back"}`, map[string]string{"morning": "0 8 * * *", "dusk": "30 18 * * *"}},
		{`{"action":"remove","name":"morning"}`, map[string]string{"dusk": "30 18 * * *"}},
		{`{"action":"add","name":"noon","schedule":"0 12 * * *"}`, map[string]string{"dusk": "30 18 * * *", "noon": "0 12 * * *"}},
		{`{"action":"update","name":"noon","enabled":false}`, map[string]string{"dusk": "30 18 * * *"}},
	} {
		text, err := run("modify_heartbeat", c.args)
		if err != nil {
			t.Fatalf("%s: %v", c.args, err)
		}
		got := map[string]string{}
		for _, e := range call[api.Schedule](t, b, api.GetSchedule{Agent: "lucky"}).Entries {
			got[e.Beat.Name] = e.Beat.Cron
			if !strings.Contains(text, e.Beat.Name+": "+e.Beat.Cron) {
				t.Errorf("%s: told %q, which lacks %s", c.args, text, e.Beat.Name)
			}
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.args, diff)
		}
	}
	for args, want := range map[string]api.Code{
		`{"action":"update","name":"nothing"}`: api.NotFound, `{"action":"add","name":"x","schedule":"61 * * * *"}`: api.Invalid,
	} {
		if text, err := run("modify_heartbeat", args); api.CodeOf(err) != want {
			t.Errorf("%s: %q, %v, want %s", args, text, err, want)
		}
	}
	if text, err := run("heartbeat_ping", `{}`); err != nil || !strings.Contains(text, "2026-09-21T14:13:20Z") || !strings.Contains(text, "dusk") {
		t.Errorf("a ping: %q, %v", text, err)
	}
	refused := api.Invocation{Agent: "lucky", Turn: "r.1", Tool: "modify_heartbeat", Args: json.RawMessage(`{"action":"remove","name":"dusk"}`)}
	if _, err := bus.Call[api.Returned](t.Context(), b, api.CallHeartbeatTool{Invocation: refused}); api.CodeOf(err) != api.Denied {
		t.Errorf("without policy's word: %v, want denied", err)
	}
}

// TestAgentsAreKnown checks that heartbeat reads the changes of agents, separate ones and
// those in a run's journal, published before its first start, while it was stopped, and
// while it runs.
func TestAgentsAreKnown(t *testing.T) {
	t.Parallel()
	data, server := t.TempDir(), apptest.Server(t)
	b := apptest.Start(t, apptest.Options{Server: server}).Bus
	change := func(agent string, seq int64, state api.AgentState) api.AgentChanged {
		return api.AgentChanged{Agent: agent, Name: agent, State: state, Seq: seq, At: time.Now().UnixMicro()}
	}
	alone := func(m api.AgentChanged) {
		t.Helper()
		if err := b.Publish(t.Context(), "agent_state/"+m.Agent+"/"+strconv.FormatInt(m.Seq, 10), m); err != nil {
			t.Fatal(err)
		}
	}
	journal := func(changes ...api.AgentChanged) {
		t.Helper()
		entry, err := api.Encode(map[string]any{"changed": changes, "release": true})
		if err != nil {
			t.Fatal(err)
		}
		m := api.Journal{Session: changes[0].Agent + "-main", Run: "r", Agent: changes[0].Agent, Kind: api.EntryRelease, Form: api.JournalForm, Entry: entry}
		if err := b.Publish(t.Context(), "journal/"+changes[0].Agent+"/"+strconv.FormatInt(changes[0].Seq, 10), m); err != nil {
			t.Fatal(err)
		}
	}
	want := func(all ...string) {
		t.Helper()
		for _, agent := range all {
			call[api.Wake](t, b, api.RequestWake{Agent: agent, Cause: "creator-1"})
		}
	}
	alone(change("before", 1, api.StateSleeping))
	journal(change("running", 2, api.StateWaking), change("running", 3, api.StateRunning))
	world := apptest.Start(t, apptest.Options{Data: data, Server: server}, heartbeat.Service)
	want("before", "running")
	world.Stop()
	journal(change("meanwhile", 2, api.StateRunning))
	apptest.Start(t, apptest.Options{Data: data, Server: server}, heartbeat.Service)
	want("meanwhile")
	alone(change("now", 1, api.StateSleeping))
	want("now")
}

// TestConfig checks that settings which cannot work are refused by their names.
func TestConfig(t *testing.T) {
	t.Parallel()
	valid := heartbeat.Config{Lease: time.Second, History: time.Hour, Topups: time.Second}
	if err := valid.Validate(); err != nil {
		t.Errorf("the smallest values: %v", err)
	}
	for name, change := range map[string]func(*heartbeat.Config){
		"ANIMA_HEARTBEAT_LEASE is 0s":               func(c *heartbeat.Config) { c.Lease = 0 },
		"ANIMA_HEARTBEAT_HISTORY is 0s":             func(c *heartbeat.Config) { c.History = 0 },
		"ANIMA_HEARTBEAT_HISTORY is -1h0m0s":        func(c *heartbeat.Config) { c.History = -time.Hour },
		"ANIMA_HEARTBEAT_TOPUP_EVERY is 999.999ms:": func(c *heartbeat.Config) { c.Topups = time.Second - time.Microsecond },
	} {
		c := valid
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("got %v, want an error that says %q", err, name)
		}
	}
}
