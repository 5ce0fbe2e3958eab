package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/failpoint"
)

// crashStops is the variable of make takeovers for the number of takeovers from stopped
// processes.
const crashStops = "ANIMA_CRASH_STOPS"

// TestTakeoverStopped runs two replicas of loop. The owner of a run is stopped, as by
// SIGSTOP, in the middle of a step. The other replica resumes the run when the lease
// expires, and completes it. Then the stopped process continues. The journal must have no
// entry of it after that (docs/reference/platform.md, Takeover).
func TestTakeoverStopped(t *testing.T) {
	t.Parallel()
	onlyWhenAsked(t)
	stops := number(t, crashStops, 8)
	points := []failpoint.Point{
		failpoint.LoopThought, failpoint.LoopIntent, failpoint.LoopTool, failpoint.LoopResult,
		failpoint.LoopPersist, failpoint.LoopEnd, failpoint.LoopBegin,
	}
	var done atomic.Int64
	var spread sync.WaitGroup
	for i := range min(4, (stops+7)/8) {
		w := newCrashWorld(t, "")
		w.second(t)
		spread.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
			defer cancel()
			for n := 0; int(done.Add(1)) <= stops; n++ {
				p := points[(n+2*i)%len(points)]
				if faults := w.takeOver(ctx, p, fmt.Sprintf("Stop%dx%d", i, n)); len(faults) > 0 {
					t.Errorf("stopped at %s:\n  %s", p, strings.Join(faults, "\n  "))
				}
			}
		})
	}
	spread.Wait()
	t.Logf("%d owners were stopped, taken over and continued", stops)
}

// onlyWhenAsked skips a test outside of make crash.
func onlyWhenAsked(t *testing.T) {
	t.Helper()
	if os.Getenv(crashForm) == "" && os.Getenv(crashStops) == "" {
		t.Skip("part of make crash")
	}
}

// second starts another replica of loop.
func (w *crashWorld) second(t testing.TB) {
	t.Helper()
	if w.start("loop2", "loop", w.proc("loop").cmd.Path) == nil {
		t.FailNow()
	}
}

// takeOver plays a run whose owner is stopped at a point, and returns the faults that the
// oracle finds.
func (w *crashWorld) takeOver(ctx context.Context, point failpoint.Point, name string) []string {
	a, err := w.bear(ctx, name)
	if err != nil {
		return []string{err.Error()}
	}
	both := []*mortal{w.proc("loop"), w.proc("loop2")}
	both[0].arm(w.t, point.String()+":stop:1")
	acc, err := asked[api.Accepted](ctx, w.world, api.SendMessage{Agent: a.ID, ID: name, Content: "one command"})
	if err != nil {
		return []string{err.Error()}
	}
	var owner *mortal
	stood := until(ctx, 30*time.Second, func() bool {
		for _, p := range both {
			if p.fired() && p.stopped() {
				owner = p
			}
		}
		return owner != nil
	})
	both[0].disarm()
	if !stood {
		return []string{"no owner was stopped"}
	}
	// No request goes to loop now: half of the requests would reach the stopped process.
	over := until(ctx, 60*time.Second, func() bool {
		ends, err := w.named(ctx, a.Session, "loop_end")
		return err == nil && len(ends) > 0
	})
	if err := owner.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		return []string{err.Error()}
	}
	if !over {
		return []string{"no replica took the run over"}
	}
	if why := w.rest(ctx, map[string]int{a.ID: 1}, a); why != "" {
		return []string{"no rest: " + why}
	}
	o := &oracle{w: w, ctx: ctx}
	l := o.look(a, crashMoney)
	o.judge(l)
	if !slices.ContainsFunc(l.turns, func(t api.Turn) bool { return t.Run == acc.Run }) {
		o.fault("the run has no turn")
	}
	if o.owners(l, acc.Run) < 2 && point != failpoint.LoopBegin {
		o.fault("one owner did it all")
	}
	return o.faults
}

// TestOwnerDies kills the process that owns a run while another replica is running. That
// replica resumes the run when the lease expires, not before, and completes it
// (docs/reference/platform.md, Takeover).
func TestOwnerDies(t *testing.T) {
	t.Parallel()
	w := newCrashWorld(t, "")
	w.second(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	a, err := w.bear(ctx, "Widow")
	if err != nil {
		t.Fatal(err)
	}
	both := []*mortal{w.proc("loop"), w.proc("loop2")}
	both[0].arm(t, failpoint.LoopTool.String()+":before:1")
	if _, err := asked[api.Accepted](ctx, w.world, api.SendMessage{Agent: a.ID, ID: "widow", Content: "one command"}); err != nil {
		t.Fatal(err)
	}
	var died time.Time
	select {
	case <-both[0].done:
		died = time.Now()
	case <-both[1].done:
		died = time.Now()
	case <-ctx.Done():
		t.Fatal("no process crashed")
	}
	entries, _, err := w.told(ctx, a.Session)
	if err != nil || len(entries) == 0 {
		t.Fatalf("the journal of the crashed owner: %d entries, %v", len(entries), err)
	}
	var lease api.Journal
	if err := api.Decode(entries[len(entries)-1].data, &lease); err != nil {
		t.Fatal(err)
	}
	if why := w.rest(ctx, map[string]int{a.ID: 1}, a); why != "" {
		t.Fatalf("no rest: %s", why)
	}
	o := &oracle{w: w, ctx: ctx}
	l := o.look(a, crashMoney)
	o.judge(l)
	for _, f := range o.faults {
		t.Error(f)
	}
	var begins []int64
	for _, m := range l.journal() {
		var j api.Journal
		o.decode(m, &j)
		var entry struct{ Begin *struct{ At int64 } }
		if err := api.Decode(j.Entry, &entry); err == nil && entry.Begin != nil {
			begins = append(begins, entry.Begin.At)
		}
	}
	if len(begins) != 2 {
		t.Fatalf("%d owners began, want 2", len(begins))
	}
	// A renewal may have extended the lease beyond the expiry in the entry that was read.
	took := time.UnixMicro(begins[1]).Sub(died)
	t.Logf("taken over %s after the owner's crash; its lease expired %s after the crash", took.Round(time.Millisecond), time.UnixMicro(lease.Expires).Sub(died).Round(time.Millisecond))
	if begins[1] < lease.Expires-int64(50*time.Millisecond/time.Microsecond) {
		t.Errorf("the next owner began %s before the lease was over", time.UnixMicro(lease.Expires).Sub(time.UnixMicro(begins[1])))
	}
}

// TestHeartbeatRestarts stops heartbeat over a scheduled minute: no entry fires before
// its time, and a missed entry fires once (docs/reference/platform.md, Takeover). It takes
// up to two minutes, so only the long form runs it; the tests of package beat check the
// same with a simulated clock.
func TestHeartbeatRestarts(t *testing.T) {
	t.Parallel()
	if os.Getenv(crashForm) != "long" {
		t.Skip("only in the long form: make crash-long")
	}
	w := newCrashWorld(t, "")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	applied := time.Now()
	a, err := asked[api.Agent](ctx, w.world, api.ApplyAgent{
		Source: "---\nname: Metronome\nschedule:\n  - name: minute\n    cron: \"* * * * *\"\n---\nBe useful.\n",
	})
	if err == nil {
		_, err = asked[api.Posted](ctx, w.world, api.Deposit{ID: "clock", Agent: a.ID, Amount: crashMoney, Source: "faucet"})
	}
	if err != nil {
		t.Fatal(err)
	}
	ticks := func() []api.Ticked {
		v, err := asked[api.Ticks](ctx, w.world, api.ListTicks{Agent: a.ID})
		if err != nil {
			t.Fatal(err)
		}
		return v.Ticks
	}
	for range 3 { // a restart alone fires nothing
		w.proc("heartbeat").kill()
		w.again(t, "heartbeat")
	}
	for _, tick := range ticks() {
		if tick.Due < applied.UnixMicro() || tick.At < tick.Due {
			t.Errorf("fired at %d, due at %d, applied at %d", tick.At, tick.Due, applied.UnixMicro())
		}
	}
	// heartbeat is down over two scheduled minutes.
	w.proc("heartbeat").kill()
	seen := time.Now()
	mark := seen.Truncate(time.Minute).Add(2 * time.Minute)
	until(ctx, 3*time.Minute, func() bool { return time.Now().After(mark.Add(100 * time.Millisecond)) })
	w.again(t, "heartbeat")
	missed := func() (n int) {
		for _, tick := range ticks() {
			if due := time.UnixMicro(tick.Due); due.After(seen) && !due.After(mark) {
				n++
			}
		}
		return n
	}
	if !until(ctx, time.Minute, func() bool { return missed() > 0 }) {
		t.Fatal("what was missed does not fire")
	}
	if why := w.rest(ctx, map[string]int{a.ID: 1}, a); why != "" {
		t.Fatalf("no rest: %s", why)
	}
	if n := missed(); n != 1 {
		t.Errorf("two missed minutes fired %d times, want once", n)
	}
	for _, tick := range ticks() {
		if tick.At < tick.Due {
			t.Errorf("fired %d µs before its time", tick.Due-tick.At)
		}
	}
	o := &oracle{w: w, ctx: ctx}
	o.judge(o.look(a, crashMoney))
	for _, f := range o.faults {
		t.Error(f)
	}
}
