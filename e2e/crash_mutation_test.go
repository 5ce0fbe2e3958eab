package e2e

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/failpoint"
)

// TestCrashMutations removes one safety measure at a time from the running code and plays
// the crash that it protects against: the oracle must then find the expected fault. With
// the measure in place the oracle must find none, which shows that it does not report the
// crash itself.
func TestCrashMutations(t *testing.T) {
	t.Parallel()
	onlyWhenAsked(t)
	death := func(point failpoint.Point, service string, mode failpoint.Mode, pass int, scene string) func(*crashWorld, testing.TB, context.Context) []string {
		return func(w *crashWorld, t testing.TB, _ context.Context) []string {
			return w.crash(t, crashCase{point.Info(), service, mode, pass, scene}, "Mutant").faults
		}
	}
	for _, c := range []struct {
		name  string
		leave failpoint.Mutation
		play  func(*crashWorld, testing.TB, context.Context) []string
		finds string // expression for a fault that the oracle must report
	}{
		{
			"the expected last sequence of an append", failpoint.NoExpectedSequence,
			func(w *crashWorld, t testing.TB, ctx context.Context) []string {
				w.second(t)
				return w.takeOver(ctx, failpoint.LoopThought, "Mutant")
			},
			"was not written on top of",
		},
		{
			"the id by which a stream recognises a message", failpoint.NoMessageID,
			death(failpoint.LoopFlush, "loop", failpoint.After, 1, talk), `\b([2-9]|\d\d+) ends\b`,
		},
		{
			// A missing fsync has an effect only when the machine fails, because the
			// kernel keeps written data when the process crashes. The crash of a process
			// can lose a commit that was answered before it was written, which breaks the
			// same guarantee for the caller.
			"the commit before the answer", failpoint.AnswerBeforeCommit,
			func(w *crashWorld, t testing.TB, ctx context.Context) []string {
				return w.loseCommit(t, ctx)
			},
			"held",
		},
	} {
		t.Run(c.leave.String(), func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
			defer cancel()
			if faults := c.play(newCrashWorld(t, ""), t, ctx); len(faults) > 0 {
				t.Errorf("with %s in place the oracle finds:\n  %s", c.name, strings.Join(faults, "\n  "))
			}
			finds := regexp.MustCompile(c.finds)
			faults := c.play(newCrashWorld(t, c.leave.String()), t, ctx)
			if !slices.ContainsFunc(faults, func(f string) bool { return finds.MatchString(f) }) {
				t.Errorf("without %s the oracle finds %q, want %q among it", c.name, faults, c.finds)
			}
			for _, f := range faults {
				t.Logf("without %s: %s", c.name, f)
			}
		})
	}
}

// loseCommit crashes treasury during the second group that it writes for an agent, which
// pays for its model call. An answer that was sent too early has then ended the run.
func (w *crashWorld) loseCommit(t testing.TB, ctx context.Context) []string {
	t.Helper()
	a, err := w.bear(ctx, "Mutant")
	if err != nil {
		t.Fatal(err)
	}
	p := w.proc("treasury")
	p.arm(t, failpoint.TreasuryWrite.String()+":before:2:4m")
	if _, err := asked[api.Accepted](ctx, w.world, api.SendMessage{Agent: a.ID, ID: "mutant", Content: "hello"}); err != nil {
		t.Fatal(err)
	}
	if !until(ctx, time.Minute, p.fired) {
		t.Fatal("treasury did not write a second group")
	}
	if w.mutant != "" && !until(ctx, time.Minute, func() bool {
		ends, err := w.named(ctx, a.Session, "loop_end")
		return err == nil && len(ends) > 0
	}) {
		t.Fatal("the run did not end after the early answer")
	}
	p.end()
	w.again(t, "treasury")
	patience, cancel := context.WithTimeout(ctx, 45*time.Second)
	defer cancel()
	_ = w.rest(patience, map[string]int{a.ID: 1}, a) // without the commit, work remains in progress
	o := &oracle{w: w, ctx: ctx}
	o.judge(o.look(a, crashMoney))
	return o.faults
}
