package bus_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
)

func TestAnnounced(t *testing.T) {
	t.Parallel()
	one, two := changed("ada", 1), changed("ada", 2)
	entry := func(e any) api.Journal {
		data, err := api.Encode(e)
		if err != nil {
			t.Fatal(err)
		}
		return api.Journal{Session: "s", Run: "r", Agent: "ada", Kind: api.EntryBegin, Form: api.JournalForm, Entry: data}
	}
	stored := func(m api.Message) bus.Stored {
		data, err := api.Encode(m)
		if err != nil {
			t.Fatal(err)
		}
		return bus.Stored{Subject: m.Subject().String(), Data: data, Sequence: 7}
	}
	both := map[string]any{"changed": []api.AgentChanged{one, two}, "begin": map[string]any{"kind": "message", "at": 5}}
	before := entry(both)
	before.Form = 0
	started := api.LoopStart{Run: "r", Session: "s", Agent: "ada", Kind: api.RunMessage, At: 5}
	for name, c := range map[string]struct {
		m    bus.Stored
		want []api.AgentChanged
	}{
		"by itself":                   {stored(one), []api.AgentChanged{one}},
		"in an entry":                 {stored(entry(both)), []api.AgentChanged{one, two}},
		"of a release before":         {stored(before), nil},
		"an entry without":            {stored(entry(map[string]any{"begin": map[string]any{"at": 5}})), nil},
		"an entry that speaks of it":  {stored(entry(map[string]any{"result": map[string]any{"text": `{"changed":[]}`}})), nil},
		"another event":               {stored(started), nil},
		"no entry, and not looked at": {bus.Stored{Subject: stored(entry(both)).Subject, Data: []byte("{")}, nil},
	} {
		got, err := bus.Announced[api.AgentChanged](c.m)
		if d := cmp.Diff(c.want, got); err != nil || d != "" {
			t.Errorf("%s: %v, -want +got\n%s", name, err, d)
		}
	}
	if got, err := bus.Announced[api.LoopStart](stored(entry(both))); err != nil || len(got) != 1 || got[0] != started {
		t.Errorf("another kind in an entry: %+v, %v", got, err)
	}
	for name, m := range map[string]bus.Stored{
		"an entry":   {Subject: stored(entry(both)).Subject, Data: json.RawMessage(`{"form":1,"entry":{"changed":[7]}}`)},
		"an event":   {Subject: stored(one).Subject, Data: []byte("{")},
		"no subject": {Subject: "anima", Data: []byte("{}")},
	} {
		if got, err := bus.Announced[api.AgentChanged](m); err == nil {
			t.Errorf("%s: got %+v, want an error", name, got)
		}
	}
}
