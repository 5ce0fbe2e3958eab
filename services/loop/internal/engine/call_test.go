package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/engine/enginetest"
)

// does replaces the implementation of a tool of a world.
func does(w *enginetest.World, name string, run func(context.Context, engine.Call) (engine.Output, error)) {
	t := w.Tools[name]
	t.Run = run
	w.Tools[name] = t
}

// TestNoArguments tests calls with an empty text as arguments, which some models send
// for tools without parameters.
func TestNoArguments(t *testing.T) {
	t.Parallel()
	for _, nothing := range []string{"", " \n"} {
		c := asks("", "look")
		c.ToolCalls[0].Arguments = nothing
		w := world(c, says("done"))
		turns, _ := run(t, w, command)
		if got := turns[0].Calls[0]; got.Outcome != api.OutcomeOK {
			t.Errorf("%q: the call ended with %+v", nothing, got)
		}
		if asked := w.Policy.Asked(); len(asked) != 1 || string(asked[0].Args) != "{}" {
			t.Errorf("%q: policy was asked %+v, want about {}", nothing, asked)
		}
	}
}

// TestSideBySide tests that adjacent pure calls run concurrently, that other calls do
// not, and that the journal has all of them in order.
func TestSideBySide(t *testing.T) {
	t.Parallel()
	w := world(asks("", "look", "look", "look", "pay", "look", "look"), says("done"))
	var mu sync.Mutex
	running, most, paid := 0, 0, false
	groups := []*sync.WaitGroup{{}, {}} // all calls of a group must have started before one returns
	groups[0].Add(3)
	groups[1].Add(2)
	does(w, "look", func(_ context.Context, c engine.Call) (engine.Output, error) {
		mu.Lock()
		running++
		most = max(most, running)
		group := groups[0]
		if c.Index > 3 {
			group = groups[1]
			if !paid {
				t.Errorf("call %d ran before pay, which stood before it", c.Index)
			}
		}
		mu.Unlock()
		group.Done()
		group.Wait()
		mu.Lock()
		defer mu.Unlock()
		running--
		return engine.Output{Text: fmt.Sprintf("look %d", c.Index)}, nil
	})
	does(w, "pay", func(context.Context, engine.Call) (engine.Output, error) {
		mu.Lock()
		defer mu.Unlock()
		if paid = true; running != 0 {
			t.Errorf("pay ran beside %d others", running)
		}
		return engine.Output{Text: "paid"}, nil
	})
	turns, end := run(t, w, command)
	if most != 3 || !end.Success {
		t.Errorf("%d ran at a time, want 3; ended %+v", most, end)
	}
	var got []string
	for _, c := range turns[0].Calls {
		got = append(got, c.Result)
	}
	if diff := cmp.Diff([]string{"look 0", "look 1", "look 2", "paid", "look 4", "look 5"}, got); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
	steps := []string{
		"1 begin", "1 thought", "1 intent", "1 intent", "1 intent", "1 result", "1 result", "1 result", "1 intent", "1 result",
		"1 intent", "1 intent", "1 result", "1 result", "2 thought", "2 end",
	}
	if diff := cmp.Diff(steps, w.Journal.Steps("ada-main")); diff != "" {
		t.Errorf("journal (-want +got):\n%s", diff)
	}
}

// TestCrashSideBySide tests a crash at each port call of an owner that executes calls
// concurrently.
func TestCrashSideBySide(t *testing.T) {
	t.Parallel()
	beside := func() *enginetest.World {
		w := enginetest.New(newStore(ada), enginetest.Say(asks("", "look", "teleport", "look", "look", "pay", "look", "look"), says("done")))
		w.Policy.Deny = func(e api.Evaluate) string {
			if e.Index == 2 {
				return "NO"
			}
			return ""
		}
		does(w, "look", func(_ context.Context, c engine.Call) (engine.Output, error) {
			return engine.Output{Text: strings.Repeat("much ", 1000+500*c.Index)}, nil
		})
		return w
	}
	calm := beside()
	var ports enginetest.Crash
	if err := calm.Run(t.Context(), ports.Gate, command); err != nil {
		t.Fatal(err)
	}
	want := outcomeOf(t, calm, command)
	if len(calm.Outputs.All()) == 0 {
		t.Fatal("no output was long: the test proves nothing of those")
	}
	for at := 1; at <= len(ports.Ports); at++ {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d %s after=%t", at, ports.Ports[at-1], after), func(t *testing.T) {
				t.Parallel()
				w := beside()
				crash := enginetest.Crash{At: ports.Point(at), After: after}
				if err := w.Run(t.Context(), crash.Gate, command); err == nil || !crash.Dead() {
					t.Fatalf("the owner ended with %v, dead: %t", err, crash.Dead())
				}
				untilOver(t, w, command)
				sound(t, w, command)
				prompted(t, w)
				if diff := cmp.Diff(want, outcomeOf(t, w, command), timeless); diff != "" {
					t.Errorf("another outcome than without the crash (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(calm.Outputs.All(), w.Outputs.All()); diff != "" {
					t.Errorf("other outputs than without the crash (-want +got):\n%.300s", diff)
				}
			})
		}
	}
}

// TestOneOfManyAway tests that an unavailable service delays only its own call, and
// that the results of concurrent calls are kept.
func TestOneOfManyAway(t *testing.T) {
	t.Parallel()
	w := world(asks("", "look", "look", "look"), says("done"))
	var mu sync.Mutex
	made := map[int]int{}
	does(w, "look", func(_ context.Context, c engine.Call) (engine.Output, error) {
		mu.Lock()
		defer mu.Unlock()
		if made[c.Index]++; c.Index == 1 && made[1] == 1 {
			return engine.Output{}, api.Errorf(api.Unavailable, "away")
		}
		return engine.Output{Text: "seen"}, nil
	})
	if err := w.Run(t.Context(), enginetest.Open, command); api.CodeOf(err) != api.Unavailable {
		t.Fatalf("got %v, want unavailable", err)
	}
	run(t, w, command)
	if diff := cmp.Diff(map[int]int{0: 1, 1: 2, 2: 1}, made); diff != "" {
		t.Errorf("how often each was made (-want +got):\n%s", diff)
	}
}

// TestToolTimeout tests that a tool has a timeout of 30 s unless it sets another, and
// that a timeout ends only its call.
func TestToolTimeout(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		limit, want time.Duration
		text        string
	}{
		"the usual limit":    {0, 30 * time.Second, "longer than 30s"},
		"a limit of its own": {2 * time.Minute, 2 * time.Minute, "longer than 2m0s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := world(asks("", "fire", "look"), says("done"))
				hang := w.Tools["fire"]
				hang.Timeout = c.limit
				var took time.Duration
				hang.Run = func(ctx context.Context, _ engine.Call) (engine.Output, error) {
					began := time.Now()
					<-ctx.Done()
					took = time.Since(began)
					return engine.Output{Text: "half"}, ctx.Err()
				}
				w.Tools["fire"] = hang
				turns, end := run(t, w, command)
				got := turns[0].Calls[0]
				if got.Outcome != api.OutcomeTimeout || !strings.Contains(got.Error, c.text) || got.Result != "half" || took != c.want {
					t.Errorf("after %s the call ended with %+v", took, got)
				}
				if turns[0].Calls[1].Outcome != api.OutcomeOK || !end.Success {
					t.Errorf("the call beside it ended with %+v, the run with %+v", turns[0].Calls[1], end)
				}
			})
		})
	}
}

// TestPanic tests that a panic of a tool is an error of its call, whose text is not
// sent to the model.
func TestPanic(t *testing.T) {
	t.Parallel()
	w := world(asks("", "fire", "look", "look", "pay"), says("done"))
	for _, name := range []string{"fire", "look"} {
		does(w, name, func(context.Context, engine.Call) (engine.Output, error) {
			panic("secret")
		})
	}
	broken := w.Tools["pay"]
	broken.Check = func(json.RawMessage) error { panic("secret") }
	w.Tools["pay"] = broken
	turns, end := run(t, w, command)
	for i, c := range turns[0].Calls {
		if c.Outcome != api.OutcomeError || c.Error == "" || strings.Contains(c.Error, "secret") || strings.Contains(c.Error, "goroutine") {
			t.Errorf("call %d ended with %+v", i, c)
		}
	}
	if !end.Success {
		t.Errorf("the run ended %+v", end)
	}
}

// TestSpansHaveNoContent tests that the spans of a run that fails contain neither the value
// of a panic nor the text of an error, which may quote arguments or a prompt.
func TestSpansHaveNoContent(t *testing.T) {
	t.Parallel()
	w := world(asks("", "fire", "look"))
	for _, name := range []string{"fire", "look"} {
		does(w, name, func(context.Context, engine.Call) (engine.Output, error) { panic("secret") })
	}
	script := w.Router.Script
	w.Router.Script = func(req api.Complete) (api.Completion, error) {
		if req.ID != "run1.1" {
			return api.Completion{}, &api.Error{Code: api.Denied, Reason: api.ReasonAuth, Message: "secret"}
		}
		return script(req)
	}
	spans := tracetest.NewInMemoryExporter()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)).Tracer("")
	e, ev := w.Engine()
	e.Tracer = tracer
	e.Root = func(ctx context.Context, _ api.Run, _ engine.Agent, _ string, _ *engine.Past) (context.Context, trace.Span) {
		return tracer.Start(ctx, "invoke_agent") //nolint:spancheck // the engine ends it
	}
	if err := e.Run(enginetest.With(t.Context(), enginetest.Open), command, ev); err != nil {
		t.Fatal(err)
	}
	failed := map[string]codes.Code{}
	for _, s := range spans.GetSpans() {
		failed[s.Name] = s.Status.Code
		if strings.Contains(fmt.Sprint(s.Status, s.Attributes, s.Events), "secret") {
			t.Errorf("the span %s contains the text: %+v %v", s.Name, s.Status, s.Events)
		}
	}
	want := map[string]codes.Code{"invoke_agent": codes.Error, "execute_tool fire": codes.Error, "execute_tool look": codes.Error}
	if d := cmp.Diff(want, failed); d != "" {
		t.Errorf("spans (-want +got):\n%s", d)
	}
}

// TestProgress tests that a long call publishes progress at most every 500 ms.
func TestProgress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := world(asks("", "look", "fire"), says("done"))
		does(w, "fire", func(_ context.Context, c engine.Call) (engine.Output, error) {
			for i := range 13 {
				c.Report(fmt.Sprintf("step %d", i))
				time.Sleep(100 * time.Millisecond) //nolint:forbidigo // in a synctest bubble
			}
			return engine.Output{Text: "done"}, nil
		})
		run(t, w, command)
		got := enginetest.Live[api.ToolProgress](w.Stream)
		if len(got) != 2 {
			t.Fatalf("%d signs of life in 1.3 s: %+v, want 2", len(got), got)
		}
		for i, p := range got {
			if p.Index != 1 || p.ToolName != "fire" || p.Turn != "run1.1" || p.Run != "run1" || p.Session != "ada-main" || !strings.HasPrefix(p.Text, "step ") {
				t.Errorf("sign %d is %+v", i, p)
			}
		}
	})
}

// TestLongOutput tests that a turn has at most 10,000 bytes of a tool's output, and
// that the complete output is stored before the result.
func TestLongOutput(t *testing.T) {
	t.Parallel()
	long := "x" + strings.Repeat("é", 10_000)
	w := world(asks("", "fire", "look"), says("done"))
	does(w, "fire", func(context.Context, engine.Call) (engine.Output, error) { return engine.Output{Text: long}, nil })
	turns, _ := run(t, w, command)
	got := turns[0].Calls[0].Result
	if !strings.HasPrefix(got, "x"+strings.Repeat("é", 4_999)+"\n[10002 more bytes were cut: the whole is kept for 7 days as output 0 of turn run1.1") {
		t.Errorf("the turn has …%q", last(got))
	}
	if diff := cmp.Diff(map[string]string{"run1.1.0": long}, w.Outputs.All()); diff != "" {
		t.Errorf("kept (-want +got):\n%.300s", diff)
	}
	ports := enginetest.Crash{}
	again := world(asks("", "fire"), says("done"))
	does(again, "fire", func(context.Context, engine.Call) (engine.Output, error) { return engine.Output{Text: long}, nil })
	if err := again.Run(t.Context(), ports.Gate, command); err != nil {
		t.Fatal(err)
	}
	if nth(ports.Ports, "keep", 1) > nth(ports.Ports, "append result", 1) {
		t.Errorf("the result was journaled before the whole was kept: %v", ports.Ports)
	}

	w = world(asks("", "fire"), says("done"))
	does(w, "fire", func(context.Context, engine.Call) (engine.Output, error) {
		return engine.Output{Text: long}, errors.New("exit")
	})
	w.Outputs.Err = api.Errorf(api.Unavailable, "away")
	turns, end := run(t, w, command)
	if got := turns[0].Calls[0]; !strings.Contains(got.Result, "could not be kept") || got.Error != "exit" || !end.Success {
		t.Errorf("where nothing can be kept the call came to …%q, %q", last(got.Result), got.Error)
	}

	w = world(asks("", "fire"), says("done"))
	does(w, "fire", func(context.Context, engine.Call) (engine.Output, error) {
		return engine.Output{Text: strings.Repeat("y", api.MaxOutput+5)}, nil
	})
	turns, _ = run(t, w, command)
	if n := len(w.Outputs.All()["run1.1.0"]); n != api.MaxOutput || !strings.Contains(turns[0].Calls[0].Result, "of its first 16 MiB") {
		t.Errorf("of more than can be kept %d bytes are, the turn says …%q", n, last(turns[0].Calls[0].Result))
	}
}

func last(s string) string { return s[max(0, len(s)-200):] }

// TestNotOffered tests that the prompt does not have tools that are not offered.
func TestNotOffered(t *testing.T) {
	t.Parallel()
	w := world(says("hello"))
	for name, offered := range map[string]bool{"look": true, "pay": false} {
		tool := w.Tools[name]
		tool.Offered = func(a engine.Agent) bool { return offered && a.ID == "ada" }
		w.Tools[name] = tool
	}
	run(t, w, command)
	var got []string
	for _, tool := range w.Router.Requests()[0].Tools {
		got = append(got, tool.Name)
	}
	if diff := cmp.Diff([]string{"look", "put", "fire"}, got); diff != "" {
		t.Errorf("offered (-want +got):\n%s", diff)
	}
}

// TestOverlap tests that the owner requests the balance concurrently with the append of
// the begin, and the decision on the first call concurrently with the append of the
// thought. The call is executed only after both have returned.
func TestOverlap(t *testing.T) {
	t.Parallel()
	w := three(false)
	beside := map[string]string{"append begin": "balance", "append thought": "evaluate"}
	began := map[string]chan struct{}{}
	for _, port := range beside {
		began[port] = make(chan struct{}, 8)
	}
	acted := make(chan string, 8)
	gate := func(ctx context.Context, port string, do func() error) error {
		if tool, ok := strings.CutPrefix(port, "tool "); ok {
			acted <- tool
		}
		if c := began[port]; c != nil {
			c <- struct{}{}
		}
		if other := beside[port]; other != "" && len(w.Journal.Steps(command.Session)) < 2 { // in the turn that has calls
			select {
			case <-began[other]:
			case <-time.After(10 * time.Second):
				t.Errorf("%s did not begin before the end of %s", other, port)
			}
			if len(acted) > 0 {
				t.Errorf("%s acted before %s", <-acted, port)
			}
		}
		return do()
	}
	if err := w.Run(t.Context(), gate, command); err != nil {
		t.Fatal(err)
	}
	sound(t, w, command)
	if got := outcomeOf(t, w, command); !got.Known.Ended.Success || len(got.Turns) != 2 {
		t.Errorf("the run ended with %+v", got)
	}
}

// TestJudgedTwice tests a crash after the first call was evaluated and before the
// thought is in the journal. The next owner gets the same completion and the same
// decision, and executes each call once.
func TestJudgedTwice(t *testing.T) {
	t.Parallel()
	w := three(false)
	judged := make(chan struct{})
	gate := func(_ context.Context, port string, do func() error) error {
		switch port {
		case "evaluate":
			err := do()
			close(judged)
			return err
		case "append thought":
			<-judged
			return enginetest.ErrCrash
		}
		return do()
	}
	if err := w.Run(t.Context(), gate, command); !errors.Is(err, enginetest.ErrCrash) {
		t.Fatalf("the owner ended with %v, want a crash", err)
	}
	untilOver(t, w, command)
	sound(t, w, command)
	first := w.Policy.Asked()
	if len(first) < 2 || first[0].Turn != first[1].Turn || first[0].Index != 0 || first[1].Index != 0 || string(first[0].Args) != string(first[1].Args) {
		t.Errorf("policy was asked %+v, want twice about the first call", first)
	}
	for _, tool := range []string{"look", "pay", "fire"} {
		if got := w.Effects.Of(tool); len(got) != 1 {
			t.Errorf("%s had the effects %v, want one", tool, got)
		}
	}
}
