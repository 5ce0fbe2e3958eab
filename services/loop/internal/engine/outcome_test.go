package engine_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/engine/enginetest"
)

// TestUnfinishedAnswers tests that a run whose last answer has an abnormal finish
// reason fails with that reason and keeps the answer.
func TestUnfinishedAnswers(t *testing.T) {
	t.Parallel()
	for _, finish := range []string{api.FinishLength, api.FinishFilter, api.FinishRefusal, api.FinishEmpty, api.FinishRepetition, api.FinishTimeout} {
		t.Run(finish, func(t *testing.T) {
			t.Parallel()
			c := says("as far as it got")
			c.Finish, c.Partial = finish, finish == api.FinishTimeout
			w := world(c)
			turns, end := run(t, w, command)
			if end.Success || end.Code == "" || end.Reason != finish || end.Error == "" || end.Next == "" || end.Response != "as far as it got" || end.Cost != c.Cost {
				t.Errorf("end: %+v", end)
			}
			if len(turns) != 1 || turns[0].Thinking != "as far as it got" || turns[0].Finish != finish {
				t.Errorf("turns: %+v", turns)
			}
			for _, id := range []string{"loop_error/run1", "loop_end/run1"} {
				if m := w.Stream.Kept()[id]; m["reason"] != finish || m["next"] == nil {
					t.Errorf("%s: %v", id, m)
				}
			}
		})
	}
}

// TestEmptyAnswerToAWake tests that an empty answer to a wake is a success.
func TestEmptyAnswerToAWake(t *testing.T) {
	t.Parallel()
	c := says("")
	c.Finish = api.FinishEmpty
	cmd := command
	cmd.Kind, cmd.Content = api.RunWake, "it is morning"
	if _, end := run(t, world(c), cmd); !end.Success {
		t.Errorf("end: %+v", end)
	}
}

// TestCutCalls tests that the last call of an answer that reached its output limit is
// not executed, which is reported to the model, and that no call of a withheld answer
// is executed.
func TestCutCalls(t *testing.T) {
	t.Parallel()
	c := asks("I pay twice.", "pay", "pay")
	c.Finish = api.FinishLength
	w := world(c, says("done"))
	turns, end := run(t, w, command)
	if got := w.Effects.Of("pay"); len(got) != 1 || !end.Success {
		t.Errorf("pay was made %d times, end %+v", len(got), end)
	}
	if call := turns[0].Calls[1]; call.Outcome != api.OutcomeError || !strings.Contains(call.Error, "output limit") || !strings.Contains(told(w)[1], "output limit") {
		t.Errorf("the cut call ended with %+v, the model was told %q", call, told(w))
	}
	for _, finish := range []string{api.FinishFilter, api.FinishTimeout} {
		c.Finish = finish
		w := world(c)
		_, end := run(t, w, command)
		if got := w.Effects.Of("pay"); len(got) != 0 || end.Reason != finish {
			t.Errorf("%s: pay was made %d times, end %+v", finish, len(got), end)
		}
	}
}

// TestLastingProviderFaults tests that an error that a retry cannot correct ends the
// run at its first occurrence, with the suggested action.
func TestLastingProviderFaults(t *testing.T) {
	t.Parallel()
	for _, reason := range []string{api.ReasonAuth, api.ReasonQuota, api.ReasonEndpoint, api.ReasonAttempts, api.ReasonTimeout, api.ReasonNoModel} {
		w := world()
		w.Router.Script = func(api.Complete) (api.Completion, error) {
			return api.Completion{}, &api.Error{Code: api.Unavailable, Reason: reason, Message: "no key", Next: "check it"}
		}
		_, end := run(t, w, command)
		if end.Reason != reason || end.Error != "no key" || end.Next != "check it" || len(w.Router.Requests()) != 1 {
			t.Errorf("%s: %+v after %d questions", reason, end, len(w.Router.Requests()))
		}
	}
}

// TestPauseOfAProvider tests that a run is retried after the delay that a provider
// requests, unless the run's deadline is earlier.
func TestPauseOfAProvider(t *testing.T) {
	t.Parallel()
	for wait, comes := range map[time.Duration]bool{30 * time.Second: true, time.Hour: false} {
		w := world()
		w.Router.Script = func(api.Complete) (api.Completion, error) {
			return api.Completion{}, &api.Error{Code: api.Unavailable, Reason: api.ReasonProvider, Message: "slow down", RetryAfter: wait.Milliseconds()}
		}
		err := w.Run(t.Context(), enginetest.Open, command)
		if comes {
			if api.Wire(err).Retry() != wait || !strings.Contains(fmt.Sprint(enginetest.Live[api.StreamDelta](w.Stream)), "retrying in 30s") {
				t.Errorf("%s: %v, deltas %+v; want the run to come back, and a note", wait, err, enginetest.Live[api.StreamDelta](w.Stream))
			}
			continue
		}
		if o := outcomeOf(t, w, command); err != nil || o.Known.Ended == nil || o.Known.Ended.Error != "slow down" {
			t.Errorf("%s: %v, %+v; want the run ended", wait, err, o.Known.Ended)
		}
	}
}

// TestPauseOfATool tests that a run ends if the service behind a tool requests a delay
// beyond the run's deadline, and that the turn can be replayed.
func TestPauseOfATool(t *testing.T) {
	t.Parallel()
	w := world(asks("", "pay"), says("done"))
	pay := w.Tools["pay"]
	pay.Run = func(context.Context, engine.Call) (engine.Output, error) {
		return engine.Output{}, &api.Error{Code: api.Unavailable, Message: "closed until tomorrow", RetryAfter: (12 * time.Hour).Milliseconds()}
	}
	w.Tools["pay"] = pay
	turns, end := run(t, w, command) // replays the turn
	if end.Success || end.Error != "closed until tomorrow" || len(turns) != 1 || turns[0].Calls[0].Outcome != api.OutcomeUnknown {
		t.Errorf("ended %+v after %+v", end, turns)
	}
}

// TestDeadlineIsKept tests that an owner that resumes a run applies the original
// deadline, and that the router receives a deadline for the answer.
func TestDeadlineIsKept(t *testing.T) {
	t.Parallel()
	for after, ends := range map[time.Duration]bool{2 * time.Minute: false, 11 * time.Minute: true} {
		w := world(says("done"))
		crash := errors.New("crash")
		err := w.Run(t.Context(), func(ctx context.Context, port string, do func() error) error {
			if port == "complete" {
				return crash
			}
			return enginetest.Open(ctx, port, do)
		}, command)
		if !errors.Is(err, crash) {
			t.Fatal(err)
		}
		w.Pass(after)
		if err := w.Run(t.Context(), enginetest.Open, command); err != nil {
			t.Fatal(err)
		}
		end := outcomeOf(t, w, command).Known.Ended
		asked := w.Router.Requests()
		if ends {
			if end == nil || end.Reason != api.ReasonTimeout || len(asked) != 0 {
				t.Errorf("after %s: %+v, asked %d times; want the run over", after, end, len(asked))
			}
			continue
		}
		limit := time.Duration(ada.RunTimeoutS) * time.Second
		if end == nil || !end.Success || len(asked) != 1 || asked[0].Run != command.Run {
			t.Fatalf("after %s: %+v, asked %+v", after, end, asked)
		}
		if by := time.UnixMicro(asked[0].Deadline).Sub(time.UnixMicro(enginetest.Start)); by > limit || by < limit-3*time.Second {
			t.Errorf("the answer is wanted within %s of the start; want a little less than %s", by, limit)
		}
	}
}
