package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/embednats"
)

// scripted returns a machine whose commands get their answers from the given routes over
// real NATS, in the place of loop. It also returns the bus of the routes.
func scripted(t *testing.T, routes ...bus.Route) (*machine, *bus.Bus) {
	t.Helper()
	s, err := embednats.Start(t.Context(), embednats.Options{Dir: t.TempDir(), Listen: "127.0.0.1:0", Log: apptest.Log(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Shutdown)
	b, err := bus.New(apptest.Dial(t, s), bus.Options{Service: "loop", Log: apptest.Log(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	if err := b.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- b.Serve(ctx, time.Second, func() { close(ready) }, routes...) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	<-ready
	m := newMachine(t)
	m.env["ANIMA_NATS_URL"] = s.ClientURL()
	return m, b
}

// scriptedReply answers every request with answer and sends the request to seen.
func scriptedReply[Req api.Message, Resp any](seen chan<- any, answer func(Req) (Resp, error)) bus.Route {
	return bus.Reply(func(_ context.Context, m Req) (Resp, error) {
		seen <- m
		return answer(m)
	})
}

const at = int64(1_790_000_000_000_000)

func TestLifeCommands(t *testing.T) {
	t.Parallel()
	agent := api.Agent{ID: "lucky", Name: "Lucky", State: api.StateSleeping, Reason: "nothing\x1b[2J to do", SleepUntil: at + 60_000_000, Session: "lucky-main"}
	ended := api.RunState{
		Run: "r1", Session: "lucky-main", Agent: "lucky", Kind: api.RunMessage, Status: api.RunEnded, Cancelled: true, Outcome: api.OutcomeMerged, Into: "r0",
		Code: api.Denied, Reason: api.ReasonCancelled, Error: "no more", Response: "I\nstop.", Turns: 2, Cost: 1220, AcceptedAt: at, EndedAt: at + 1,
	}
	seen := make(chan any, 1)
	m, _ := scripted(
		t,
		scriptedReply(seen, func(q api.ExplainAgent) (api.Explanation, error) {
			if q.Agent == "ghost" {
				return api.Explanation{}, &api.Error{Code: api.NotFound, Message: "there is no such agent", Next: "anima agent list"}
			}
			return api.Explanation{
				Agent: agent, Since: at, Next: "it wakes by itself", Counters: api.Counters{Idle: 3, Repeated: 2, Pattern: "exec,look", Why: "too quiet"},
				History: []api.AgentChanged{{Agent: "lucky", State: api.StateSleeping, Previous: api.StateRunning, Reason: "nothing to do", SleepUntil: at, At: at}, {State: api.StateSetup, At: at}},
			}, nil
		}),
		scriptedReply(seen, func(q api.SleepAgent) (api.Agent, error) {
			if q.Agent == "dead" {
				return api.Agent{}, &api.Error{Code: api.Conflict, Message: "the agent is dead", Next: "fund it"}
			}
			g := agent
			g.SleepUntil = q.Until
			return g, nil
		}),
		scriptedReply(seen, func(api.GetRun) (api.RunState, error) { return ended, nil }),
		scriptedReply(seen, func(q api.CancelRun) (api.RunState, error) { return ended, nil }),
		scriptedReply(seen, func(q api.TerminateSession) (api.Session, error) {
			if q.Session == "lucky-main" {
				return api.Session{}, &api.Error{Code: api.Conflict, Message: "it is the main session", Next: "cancel its runs"}
			}
			return api.Session{ID: q.Session, Agent: "lucky", Terminated: at, Reason: q.Reason}, nil
		}),
	)
	says := func(want any, args []string, words ...string) {
		t.Helper()
		out := m.cli(args...)
		for _, w := range words {
			if !strings.Contains(out, w) {
				t.Errorf("%q says\n%s\nwant %q in it", args, out, w)
			}
		}
		if got := <-seen; want != nil && cmp.Diff(want, got) != "" {
			t.Errorf("%q asked (-want +got):\n%s", args, cmp.Diff(want, got))
		}
	}
	says(api.ExplainAgent{Agent: "lucky", Limit: 5}, []string{"agent", "explain", "lucky", "--limit", "5"},
		"lucky is sleeping: nothing\uFFFD[2J to do", "it wakes by itself", "turns that change nothing", "3", "(exec,look)", "too quiet", "running", "(until 2026-", "setup")
	says(api.GetRun{Run: "r1", Session: "lucky-main"}, []string{"run", "get", "r1", "--session", "lucky-main"}, "merged into run r0", "denied cancelled: no more", "stop.")
	says(api.CancelRun{Run: "r1", Reason: "enough"}, []string{"session", "cancel", "r1", "--reason", "enough"}, "cancelled", "yes")
	says(api.TerminateSession{Session: "lucky-2", Reason: "your creator ended it"}, []string{"session", "terminate", "lucky-2"}, "is terminated since 2026-")
	says(api.SleepAgent{Agent: "lucky", Reason: "your creator lets you sleep"}, []string{"agent", "sleep", "lucky"}, "until the next message, wake or alarm")
	says(api.SleepAgent{Agent: "lucky", Until: 4_102_444_800_000_000, Reason: "hush"}, []string{"agent", "sleep", "lucky", "--until", "2100-01-01T00:00:00Z", "--reason", "hush"}, "until 2100-01-01T00:00:00Z")
	says(nil, []string{"agent", "sleep", "lucky", "--for", "1h"}, "lucky is sleeping until ")

	if got := asked[api.Explanation](m, "agent", "explain", "lucky"); got.Counters.Idle != 3 || len(got.History) != 2 {
		t.Errorf("explain -o json says %+v", got)
	}
	<-seen
	m.fails(exitNotFound, "", []string{"agent", "explain", "ghost"}, "no such agent")
	<-seen
	m.fails(exitConflict, "", []string{"agent", "sleep", "dead"}, "dead", "fund it")
	<-seen
	m.fails(exitConflict, "", []string{"session", "terminate", "lucky-main"}, "main session")
	<-seen
	for _, args := range [][]string{{"--for", "-1h"}, {"--for", "soon"}, {"--until", "noon"}, {"--until", "2001-01-01T00:00:00Z"}, {"--for", "1h", "--until", "08:00"}} {
		m.fails(exitUsage, "", append([]string{"agent", "sleep", "lucky"}, args...))
	}
}

func TestTurnOutput(t *testing.T) {
	t.Parallel()
	const all = "one\x1b[2J\ntwo\nthree\n"
	m, _ := scripted(t, bus.Reply(func(_ context.Context, q api.GetOutput) (api.OutputPart, error) {
		end := min(q.Offset+5, int64(len(all)))
		part := api.OutputPart{Text: all[q.Offset:end], Size: int64(len(all))}
		if end < part.Size {
			part.Next = end
		}
		return part, nil
	}))
	if out := m.cli("turn", "output", "t.1", "0"); out != "one\uFFFD[2J\ntwo\nthree\n" {
		t.Errorf("got %q", out)
	}
	var whole strings.Builder
	for _, p := range lines[api.OutputPart](t, m.cli("turn", "output", "t.1", "0", "-o", "json")) {
		whole.WriteString(p.Text)
	}
	if whole.String() != all {
		t.Errorf("as JSON: %q, want %q", whole.String(), all)
	}
}

func TestClock(t *testing.T) {
	t.Parallel()
	zone := time.FixedZone("east", 2*3600)
	now := time.Date(2026, 11, 21, 8, 30, 0, 0, zone)
	for text, want := range map[string]string{
		"08:31": "2026-11-21T08:31:00+02:00", "08:30": "2026-11-22T08:30:00+02:00", "2026-11-21T00:00:00Z": "2026-11-21T00:00:00Z",
	} {
		got, err := clock(text, now)
		if err != nil || got.Format(time.RFC3339) != want {
			t.Errorf("clock(%q) is %s, %v, want %s", text, got.Format(time.RFC3339), err, want)
		}
	}
}

// TestSendFates checks the output for a message that is merged, dropped or expired.
func TestSendFates(t *testing.T) {
	t.Parallel()
	var b *bus.Bus
	say := func(ctx context.Context, run string, end api.LoopEnd) error {
		end.Run, end.Session, end.Agent = run, "lucky-main", "lucky"
		return b.Publish(ctx, "end/"+run, end)
	}
	m, own := scripted(t, bus.Reply(func(ctx context.Context, q api.SendMessage) (api.Accepted, error) {
		run := "run-" + string(q.Mode)
		end := map[api.Mode]api.LoopEnd{
			api.ModeQueue:     {Outcome: api.OutcomeExpired},
			api.ModeInterrupt: {Success: true, Outcome: api.OutcomeConsumed, Response: "Read."},
			api.ModeSteer:     {Success: true, Outcome: api.OutcomeMerged, Into: "run-before"},
			api.ModeCollect:   {Outcome: api.OutcomeDropped},
		}[q.Mode]
		return api.Accepted{Run: run, Session: "lucky-main", Agent: "lucky", At: at}, say(ctx, run, end)
	}), bus.Reply(func(context.Context, api.GetAgent) (api.Agent, error) {
		return api.Agent{ID: "lucky", Session: "lucky-main"}, nil
	}))
	b = own
	if err := say(t.Context(), "run-before", api.LoopEnd{Success: true, Response: "Both done."}); err != nil {
		t.Fatal(err)
	}
	if out := m.cli("session", "send", "lucky", "hi", "--mode", "steer"); !strings.Contains(out, "(joins run run-before)\nBoth done.") {
		t.Errorf("steer says\n%s", out)
	}
	if end := asked[api.LoopEnd](m, "session", "send", "lucky", "hi", "--mode", "interrupt"); end.Response != "Read." {
		t.Errorf("interrupt ends as %+v", end)
	}
	m.fails(exitDenied, "", []string{"session", "send", "lucky", "hi"}, "the message was expired and not run", "anima run get run-queue")
	m.fails(exitDenied, "", []string{"session", "send", "lucky", "hi", "--mode", "collect"}, "the message was dropped and not run")
}

// TestLifeOnRealServices checks the same on the real services: a message is merged into a
// run in progress, a waiting message is cancelled, a message interrupts a run, and the
// agent's state is explained.
func TestLifeOnRealServices(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.up()
	slow := asked[api.Accepted](m, "session", "send", "lucky", "long thought", "--no-wait")
	waits := asked[api.Accepted](m, "session", "send", "lucky", "hello", "--no-wait")
	if st := asked[api.RunState](m, "run", "get", waits.Run, "--session", waits.Session); st.Status != api.RunQueued {
		t.Errorf("behind a slow run it is %+v, want queued", st)
	}
	if st := asked[api.RunState](m, "session", "cancel", waits.Run, "--session", waits.Session, "--reason", "never mind"); !st.Cancelled {
		t.Errorf("cancelled: %+v", st)
	}
	m.fails(exitNotFound, "", []string{"session", "cancel", "ghost"})
	end := asked[api.LoopEnd](m, "session", "send", "lucky", "hello", "--mode", "interrupt")
	if !end.Success || end.Outcome != api.OutcomeConsumed {
		t.Errorf("the interrupting message ends as %+v", end)
	}
	for _, tt := range []struct {
		run  api.Accepted
		fate api.RunOutcome
	}{{slow, api.OutcomeConsumed}, {waits, api.OutcomeDropped}} {
		st := asked[api.RunState](m, "run", "get", tt.run.Run)
		if st.Status != api.RunEnded || st.Success || st.Outcome != tt.fate || !st.Cancelled {
			t.Errorf("the run is %+v, want ended, cancelled and %s", st, tt.fate)
		}
	}
	if out := m.cli("run", "get", waits.Run); !strings.Contains(out, "fate") || !strings.Contains(out, "never mind") {
		t.Errorf("run get says\n%s", out)
	}

	own := asked[api.LoopEnd](m, "session", "send", "lucky", "hello", "--session", "new")
	if v := asked[api.Session](m, "session", "terminate", own.Session); v.Terminated == 0 {
		t.Errorf("terminated: %+v", v)
	}
	m.fails(exitConflict, "", []string{"session", "send", "lucky", "hello", "--session", own.Session}, "is terminated", "session new")

	if g := asked[api.Agent](m, "agent", "sleep", "lucky", "--for", "1h", "--reason", "hush"); g.State != api.StateSleeping || g.SleepUntil == 0 || g.Reason != "hush" {
		t.Errorf("put to sleep: %+v", g)
	}
	out := m.cli("agent", "explain", "lucky")
	for _, want := range []string{"lucky is sleeping: hush", "wakes at 20", "turns that change nothing", "running", "setup"} {
		if !strings.Contains(out, want) {
			t.Errorf("explain says\n%s\nwant %q in it", out, want)
		}
	}
	m.fails(exitUsage, "", []string{"agent", "sleep", "lucky", "--for", "25h"}, "24 hours")
	m.fails(exitNotFound, "", []string{"agent", "explain", "ghost"}, "no such agent")
}
