package rules

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/anima-run/anima/tools/trace/query"
)

// recorded holds traces of a real Jaeger by id.
type recorded map[string]query.Trace

func (r recorded) Trace(_ context.Context, id string) (query.Trace, error) {
	t, ok := r[id]
	if !ok {
		return t, query.ErrNotFound
	}
	return t, nil
}

const (
	turnTrace   = "c2919316119ccb61f25f82e535225b9d"
	senderTrace = "035d9846ba8f2f60fde3f1a637f00382"
)

// load returns the recording. Each call returns new traces, which the test may change.
func load(t *testing.T) recorded {
	t.Helper()
	all := recorded{}
	for _, id := range []string{turnTrace, senderTrace} {
		f, err := os.Open("../query/testdata/trace-" + id + ".json")
		if err != nil {
			t.Fatal(err)
		}
		got, err := query.Decode(f)
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		all[id] = got[0]
	}
	return all
}

func strict() Options { return Options{Services: All(), Skew: 2 * time.Millisecond} }

func TestRealTurnKeepsEveryRule(t *testing.T) {
	t.Parallel()
	all := load(t)
	r, err := Check(t.Context(), all[turnTrace], all, strict())
	if err != nil {
		t.Fatal(err)
	}
	if !r.OK() || len(r.Verdicts) != 9 {
		t.Errorf("%+v, want nine rules kept", r.Verdicts)
	}
	if r.Turn != "01a1fd49-c4e6-736c-8300-1359c19a514f.1" || !slices.Equal(r.Linked, []string{senderTrace}) || !slices.Equal(r.Services, All()) {
		t.Errorf("turn %s, linked %v, services %v", r.Turn, r.Linked, r.Services)
	}
}

// find returns the first span of a name, by a pointer through which the trace can be
// changed.
func find(t *testing.T, tr query.Trace, name string) *query.Span {
	t.Helper()
	i := slices.IndexFunc(tr.Spans, func(s query.Span) bool { return strings.HasPrefix(s.Name, name) })
	if i < 0 {
		t.Fatalf("no span %s", name)
	}
	return &tr.Spans[i]
}

func TestEachRuleCanBeBroken(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		do   func(t *testing.T, all recorded, tr *query.Trace)
		rule string
		says string
	}{
		{"a second root", func(t *testing.T, _ recorded, tr *query.Trace) { find(t, *tr, "chat").Parent = "" }, OneRoot, "2 roots"},
		{"the root is the consumer", func(t *testing.T, _ recorded, tr *query.Trace) {
			root := find(t, *tr, "invoke_agent")
			above := query.Span{TraceID: tr.ID, ID: "0000000000000001", Service: "loop", Name: "process", Start: root.Start, End: root.End}
			root.Parent = above.ID
			tr.Spans = append(tr.Spans, above)
		}, OneRoot, "want invoke_agent"},
		{"the parent was lost", func(t *testing.T, _ recorded, tr *query.Trace) {
			parent := find(t, *tr, "call anima.inference").ID
			tr.Spans = slices.DeleteFunc(tr.Spans, func(s query.Span) bool { return s.ID == parent })
		}, NoOrphans, "inference-router: process"},
		{"a span was sent twice, not the same", func(t *testing.T, _ recorded, tr *query.Trace) {
			other := *find(t, *tr, "chat")
			other.End = other.End.Add(time.Second)
			tr.Spans = append(tr.Spans, other)
		}, UniqueIDs, "chat"},
		{"another turn's span", func(t *testing.T, _ recorded, tr *query.Trace) {
			find(t, *tr, "chat").Attributes["automaton.turn.id"] = "other.1"
		}, OneTurn, "other.1"},
		{"a turn in a trace of chance", func(t *testing.T, _ recorded, tr *query.Trace) {
			find(t, *tr, "invoke_agent").Attributes["automaton.turn.id"] = "other.1"
		}, OneTurn, query.TurnTrace("other.1")},
		{"a service is silent", func(_ *testing.T, _ recorded, tr *query.Trace) {
			tr.Spans = slices.DeleteFunc(tr.Spans, func(s query.Span) bool { return s.Service == "heartbeat" })
		}, Services, "heartbeat"},
		{"the linked trace was dropped", func(_ *testing.T, all recorded, _ *query.Trace) { delete(all, senderTrace) }, Links, "not there"},
		{"the linked span was dropped", func(t *testing.T, all recorded, _ *query.Trace) {
			find(t, all[senderTrace], "publish").ID = "0000000000000002"
		}, Links, "no such span"},
		{"a child before its parent", func(t *testing.T, _ recorded, tr *query.Trace) {
			s := find(t, *tr, "chat")
			s.Start = s.Start.Add(-time.Second)
		}, Order, "before its parent"},
		{"an agent's address in a name", func(t *testing.T, _ recorded, tr *query.Trace) {
			find(t, *tr, "chat").Name = "pay 0xe89bcDfac5F1d5Fe4D3EAB74E5E31Bafa2Dc10f0"
		}, Names, "0xe89b"},
		{"a turn's id in a name", func(t *testing.T, _ recorded, tr *query.Trace) {
			find(t, *tr, "chat").Name = "publish anima.loop.evt.01a1fd49-c4e6-736c-8300-1359c19a514f"
		}, Names, "01a1fd49"},
		{"a number in a name", func(t *testing.T, _ recorded, tr *query.Trace) { find(t, *tr, "chat").Name = "GET /pay/12345" }, Names, "12345"},
		{"a consumer that links nothing", func(t *testing.T, _ recorded, tr *query.Trace) { find(t, *tr, "chat").Kind = query.Consumer }, Consumers, "links nothing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			all := load(t)
			tr := all[turnTrace]
			c.do(t, all, &tr)
			r, err := Check(t.Context(), tr, all, strict())
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range r.Verdicts {
				if v.Rule == c.rule && (v.Pass || !strings.Contains(strings.Join(v.Faults, "\n"), c.says)) {
					t.Errorf("%+v, want a fault that says %q", v, c.says)
				}
			}
			if r.OK() {
				t.Errorf("every rule is kept, want %s broken", c.rule)
			}
		})
	}
}

func TestSmallSkewIsForgiven(t *testing.T) {
	t.Parallel()
	all := load(t)
	s := find(t, all[turnTrace], "call anima.social")
	s.Start = s.Start.Add(-time.Millisecond)
	for skew, want := range map[time.Duration]bool{2 * time.Millisecond: true, time.Microsecond: false} {
		r, err := Check(t.Context(), all[turnTrace], all, Options{Skew: skew})
		if err != nil || r.OK() != want {
			t.Errorf("skew %s: %v, %v, want %v", skew, r.OK(), err, want)
		}
	}
}

func TestManyTraces(t *testing.T) {
	t.Parallel()
	all := load(t)
	both := []query.Trace{all[turnTrace], all[senderTrace]}
	sum, err := CheckAll(t.Context(), both, recorded{}, strict())
	if err != nil || !sum.OK() || sum.Turns != 1 || sum.Traces != 2 || sum.Spans != 27 {
		t.Fatalf("%+v, %v, want one turn in order", sum, err)
	}

	// A second trace with the same turn, as of an owner that started a new trace after a
	// crash.
	split := query.Trace{ID: strings.Repeat("a", 32)}
	root := *find(t, all[turnTrace], "invoke_agent")
	root.TraceID, root.Links = split.ID, nil
	split.Spans = []query.Span{root}
	sum, err = CheckAll(t.Context(), append(both, split), recorded{}, strict())
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range sum.Verdicts {
		if v.Rule == NotSplit && (v.Pass || !strings.Contains(v.Faults[0], split.ID)) {
			t.Errorf("%+v, want the turn in two traces", v)
		}
	}
	if sum.OK() || !slices.Contains(sum.Failed, split.ID) {
		t.Errorf("failed %v, want %s among them", sum.Failed, split.ID)
	}

	if sum, err = CheckAll(t.Context(), both[1:], recorded{}, strict()); err != nil || sum.OK() {
		t.Errorf("no turn at all: %v, %v, want it to fail", sum.OK(), err)
	}
}

// TestCopiesAreOne checks that a span that OTLP has exported twice counts as one.
func TestCopiesAreOne(t *testing.T) {
	t.Parallel()
	all := load(t)
	tr := all[turnTrace]
	tr.Spans = append(slices.Clone(tr.Spans), tr.Spans[0], tr.Spans[3])
	r, err := Check(t.Context(), tr, all, strict())
	if err != nil || !r.OK() {
		t.Errorf("%+v, %v, want two copies forgiven", r, err)
	}
	sum, err := CheckAll(t.Context(), []query.Trace{tr, all[senderTrace]}, all, strict())
	if err != nil || !sum.OK() || sum.Copies != 2 {
		t.Errorf("%+v, %v, want two copies counted", sum, err)
	}
}

// TestStraySpan checks that a span of a turn in another trace is a fault, unless it
// consumes a message of the turn.
func TestStraySpan(t *testing.T) {
	t.Parallel()
	all := load(t)
	stray := *find(t, all[turnTrace], "chat")
	stray.TraceID, stray.Parent, stray.Links = strings.Repeat("b", 32), "", nil
	stray.Attributes = map[string]string{"automaton.turn.id": "other.1"}
	for kind, want := range map[query.Kind]bool{query.ClientKind: false, query.Consumer: true} {
		stray.Kind = kind
		if got := len(strays(query.Trace{ID: stray.TraceID, Spans: []query.Span{stray}})) == 0; got != want {
			t.Errorf("kind %d: in order is %v, want %v", kind, got, want)
		}
	}
}

func TestCompare(t *testing.T) {
	t.Parallel()
	all := load(t)
	turn := TurnOf(all[turnTrace])
	both := []query.Trace{all[turnTrace], all[senderTrace]}
	good := Expected{Turns: map[string]string{turn: turnTrace}, Records: map[string]string{"posting 1": turnTrace}}
	rootless := all[turnTrace]
	rootless.Spans = slices.DeleteFunc(slices.Clone(rootless.Spans), func(s query.Span) bool { return s.Parent == "" })
	gone := strings.Repeat("c", 32)
	for _, c := range []struct {
		name   string
		traces []query.Trace
		want   Expected
		broken string // rule
	}{
		{"in order", both, good, ""},
		{"no trace", nil, Expected{Turns: good.Turns}, Turns},
		{"no root", []query.Trace{rootless}, Expected{Turns: good.Turns}, Turns},
		{"another trace in the row", both, Expected{Turns: map[string]string{turn: senderTrace}}, Turns},
		{"a posting's trace is not there", both, Expected{Records: map[string]string{"posting 1": gone}}, Records},
	} {
		got, err := Compare(t.Context(), c.traces, recorded{}, c.want)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range got {
			if v.Pass == (v.Rule == c.broken) {
				t.Errorf("%s: %+v, want %q broken", c.name, v, c.broken)
			}
		}
	}
}

type broken struct{}

func (broken) Trace(context.Context, string) (query.Trace, error) {
	return query.Trace{}, errors.New("down")
}

func TestSourceThatFailsIsNoVerdict(t *testing.T) {
	t.Parallel()
	if _, err := Check(t.Context(), load(t)[turnTrace], broken{}, strict()); err == nil || !strings.Contains(err.Error(), "down") {
		t.Errorf("%v, want the error of the source", err)
	}
}
