package bus_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
)

// seen formats an event for comparison: "name key sequence", with + if another event of
// the same entry follows.
func seen(m bus.Stored) string {
	parts := strings.Split(m.Subject, ".")
	s := fmt.Sprintf("%s %s %d", parts[3], parts[5], m.Sequence)
	if m.More {
		s += "+"
	}
	return s
}

// entries stores the journals of two sessions and one event that is published by itself,
// and returns the last sequence:
//
//	1 s begin, which changes lucky · 2 s thought · 3 t begin · 4 lucky's state, published
//	5 s end · 6 s release · 7 s thought of the previous release
func entries(t *testing.T, b *bus.Bus) uint64 {
	t.Helper()
	last := map[string]uint64{}
	var seq uint64
	entry := func(session, kind string, form int, data string) {
		t.Helper()
		m := api.Journal{Session: session, Run: "r-" + session, Agent: "lucky", Turn: 1, Kind: kind, Form: form, Entry: []byte(data)}
		var err error
		if seq, err = b.Append(testContext(t), fmt.Sprint(session, "/", last[session]), m, last[session]); err != nil {
			t.Fatal(err)
		}
		last[session] = seq
	}
	entry("s", api.EntryBegin, api.JournalForm, `{"begin":{"kind":"message","at":1},"changed":[{"agent":"lucky","seq":3}]}`)
	entry("s", api.EntryThought, api.JournalForm, `{"thought":{}}`)
	entry("t", api.EntryBegin, api.JournalForm, `{"begin":{"kind":"wake","at":1}}`)
	publish(t, b, changed("lucky", 4))
	entry("s", api.EntryEnd, api.JournalForm, `{"end":{"runId":"r-s","sessionId":"s","success":true,"turns":1}}`)
	entry("s", api.EntryRelease, api.JournalForm, `{"release":true}`)
	entry("s", api.EntryThought, 0, `{"thought":{}}`)
	return seq
}

func TestPastEvents(t *testing.T) {
	t.Parallel()
	b, _ := one(t)
	all := func(after uint64, subjects ...api.Subject) (got []string) {
		t.Helper()
		if err := b.PastEvents(testContext(t), after, func(m bus.Stored) error { got = append(got, seen(m)); return nil }, subjects...); err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := all(0, bus.SessionEvents("s")...); got != nil {
		t.Errorf("before the first: %v", got)
	}
	if n, err := b.LastEvents(testContext(t), bus.SessionEvents("s")...); n != 0 || err != nil {
		t.Errorf("before the first the last is %d, %v", n, err)
	}
	last := entries(t, b)
	of := func(m api.Message) api.Subject { return m.Subject() }
	for name, c := range map[string]struct {
		after    uint64
		subjects []api.Subject
		want     []string
	}{
		"a session's":            {0, bus.SessionEvents("s"), []string{"loop_start s 1", "loop_context s 2+", "loop_execute s 2", "loop_persist s 5+", "loop_end s 5"}},
		"after an entry":         {2, bus.SessionEvents("s"), []string{"loop_persist s 5+", "loop_end s 5"}},
		"after the last":         {last, bus.SessionEvents("s"), nil},
		"of entries that say no": {5, bus.SessionEvents("s"), nil},
		"one kind of a session":  {0, []api.Subject{of(api.LoopExecute{Session: "s"})}, []string{"loop_execute s 2"}},
		"one kind of all":        {0, []api.Subject{of(api.LoopStart{})}, []string{"loop_start s 1", "loop_start t 3"}},
		"an agent's":             {0, []api.Subject{of(api.AgentChanged{Agent: "lucky"})}, []string{"agent_state lucky 1", "agent_state lucky 4"}},
		"another agent's":        {0, []api.Subject{of(api.AgentChanged{Agent: "nova"})}, nil},
		"all agents' and starts": {0, []api.Subject{of(api.AgentChanged{}), of(api.LoopStart{})}, []string{"loop_start s 1+", "agent_state lucky 1", "loop_start t 3", "agent_state lucky 4"}},
		"every session's":        {2, bus.SessionEvents("*"), []string{"loop_start t 3", "loop_persist s 5+", "loop_end s 5"}},
	} {
		if diff := cmp.Diff(c.want, all(c.after, c.subjects...)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if n, err := b.LastEvents(testContext(t), bus.SessionEvents("s")...); n != last || err != nil {
		t.Errorf("the last is %d, %v, want %d", n, err, last)
	}
	want := errors.New("enough")
	if err := b.PastEvents(testContext(t), 0, func(bus.Stored) error { return want }, bus.SessionEvents("s")...); !errors.Is(err, want) {
		t.Errorf("got %v, want %v", err, want)
	}
}

func TestCheckAfter(t *testing.T) {
	t.Parallel()
	b, _ := one(t)
	last := entries(t, b)
	for after, want := range map[uint64]api.Code{0: "", 1: "", last: "", last + 1: api.Invalid, math.MaxUint64: api.Invalid} {
		if err := b.CheckAfter(testContext(t), after, bus.SessionEvents("s")...); err == nil && want != "" || err != nil && api.CodeOf(err) != want {
			t.Errorf("after %d of %d: got %v, want code %q", after, last, err, want)
		}
	}
}

// TestEvents checks that Events returns the events of stored entries and of new ones.
func TestEvents(t *testing.T) {
	t.Parallel()
	b, _ := one(t)
	ctx, cancel := context.WithCancel(t.Context())
	got, done := make(chan string, 100), make(chan error, 1)
	go func() {
		done <- b.Events(ctx, 0, func(m bus.Stored) error {
			var head struct {
				Run string `json:"runId"`
			}
			if err := api.Decode(m.Data, &head); err != nil {
				return err
			}
			got <- seen(m) + " " + head.Run
			return nil
		}, bus.SessionEvents("s")...)
	}()
	entries(t, b)
	for _, want := range []string{"loop_start s 1 r-s", "loop_context s 2+ r-s", "loop_execute s 2 r-s", "loop_persist s 5+ r-s", "loop_end s 5 r-s"} {
		if e := wait(t, got, "an event"); e != want {
			t.Errorf("got %s, want %s", e, want)
		}
	}
	cancel()
	if err := wait(t, done, "the end of Events"); !errors.Is(err, context.Canceled) {
		t.Errorf("Events: %v", err)
	}
}

func TestExpand(t *testing.T) {
	t.Parallel()
	entry := func(form int, data string) bus.Stored {
		m := api.Journal{Session: "s", Run: "r", Turn: 1, Kind: api.EntryThought, Form: form, Entry: []byte(data)}
		raw, err := api.Encode(m)
		if err != nil {
			t.Fatal(err)
		}
		return bus.Stored{Subject: m.Subject().String(), Sequence: 7, Data: raw}
	}
	start := bus.Stored{Subject: api.LoopStart{Session: "s"}.Subject().String(), Sequence: 8, Data: []byte(`{}`)}
	for name, c := range map[string]struct {
		m    bus.Stored
		of   []api.Subject
		want []string
	}{
		"an entry":                     {entry(api.JournalForm, `{"thought":{}}`), bus.SessionEvents("s"), []string{"loop_context s 7+", "loop_execute s 7"}},
		"the last one is not asked":    {entry(api.JournalForm, `{"thought":{}}`), []api.Subject{api.LoopContext{}.Subject()}, []string{"loop_context s 7"}},
		"of another session":           {entry(api.JournalForm, `{"thought":{}}`), bus.SessionEvents("t"), nil},
		"an entry of a release before": {entry(0, `{"thought":{}}`), bus.SessionEvents("s"), nil},
		"a message":                    {start, bus.SessionEvents("s"), []string{"loop_start s 8"}},
		"another message":              {start, []api.Subject{api.LoopEnd{}.Subject()}, nil},
	} {
		all, err := bus.Expand(c.m, c.of...)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		var got []string
		for _, m := range all {
			got = append(got, seen(m))
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if _, err := bus.Expand(entry(api.JournalForm, `[]`), bus.SessionEvents("s")...); api.CodeOf(err) != api.Invalid {
		t.Errorf("an entry that is none: %v, want %s", err, api.Invalid)
	}
	if _, err := bus.Expand(bus.Stored{Subject: "nobody.knows"}, bus.SessionEvents("s")...); err == nil {
		t.Error("a subject that is none of ours: no error")
	}
}
