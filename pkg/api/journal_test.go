package api_test

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
)

func TestJournalEvents(t *testing.T) {
	t.Parallel()
	changed := api.AgentChanged{Agent: "a", State: api.StateRunning, Previous: api.StateSleeping, Seq: 4, At: 3}
	asleep := api.AgentChanged{Agent: "a", State: api.StateSleeping, Previous: api.StateRunning, Seq: 5, At: 9}
	good := api.LoopEnd{Run: "r", Session: "s", Agent: "a", Success: true, Outcome: api.OutcomeConsumed, Response: "done", Turns: 2, At: 9}
	bad := api.LoopEnd{Run: "r", Session: "s", Agent: "a", Outcome: api.OutcomeConsumed, Turns: 2, Code: api.Denied, Reason: api.ReasonInsufficient, Error: "cannot pay", Next: "fund it", At: 9}
	persisted := api.LoopPersist{Run: "r", Session: "s", Turn: "r.1", At: 8}
	args := json.RawMessage(`{"n":1}`)
	for name, c := range map[string]struct {
		kind, entry string
		want        []api.Message
	}{
		"the first begin": {
			api.EntryBegin, `{"begin":{"kind":"message","at":1,"attempt":1}}`,
			[]api.Message{api.LoopStart{Run: "r", Session: "s", Agent: "a", Kind: api.RunMessage, At: 1}},
		},
		"another owner's begin": {api.EntryBegin, `{"begin":{"at":1,"attempt":2}}`, nil},
		"a begin with changes of the previous owner": {
			api.EntryBegin, `{"persisted":8,"changed":[{"agent":"a","name":"","address":"","state":"running","previous":"sleeping","seq":4,"at":3}],"begin":{"at":1}}`,
			[]api.Message{persisted, changed},
		},
		"joined": {api.EntryJoined, `{"joined":{"text":"more"}}`, nil},
		"a thought": {
			api.EntryThought, `{"persisted":8,"changed":[{"agent":"a","name":"","address":"","state":"running","previous":"sleeping","seq":4,"at":3}],"thought":{"tokens":400,"offered":2,"startedAt":5,"at":6}}`,
			[]api.Message{
				persisted, changed,
				api.LoopContext{Run: "r", Session: "s", Turn: "r.2", TokenEstimate: 400, At: 5},
				api.LoopExecute{Run: "r", Session: "s", Turn: "r.2", ToolCount: 2, At: 5},
			},
		},
		"an intent": {
			api.EntryIntent, `{"intent":{"index":1,"decision":"d","token":"t","tool":"exec","callId":"c","arguments":{"n":1},"at":6}}`,
			[]api.Message{api.ToolStart{Run: "r", Session: "s", Turn: "r.2", Index: 1, ToolName: "exec", ToolCallID: "c", Arguments: args, At: 6}},
		},
		"a result": {
			api.EntryResult, `{"result":{"index":1,"tool":"exec","callId":"c","outcome":"ok","text":"3","durationMs":4,"at":7}}`,
			[]api.Message{api.ToolEnd{Run: "r", Session: "s", Turn: "r.2", Index: 1, ToolName: "exec", ToolCallID: "c", Outcome: api.OutcomeOK, Result: "3", Duration: 4, At: 7}},
		},
		"a result that is an error": {
			api.EntryResult, `{"result":{"index":0,"tool":"exec","callId":"c","outcome":"denied","error":"no","at":7}}`,
			[]api.Message{api.ToolEnd{Run: "r", Session: "s", Turn: "r.2", ToolName: "exec", ToolCallID: "c", Outcome: api.OutcomeDenied, Result: "no", At: 7}},
		},
		"an end": {
			api.EntryEnd, entryOf(t, map[string]any{"end": good, "changed": []api.AgentChanged{asleep}}),
			[]api.Message{api.LoopPersist{Run: "r", Session: "s", Turn: "r.2", At: 9}, asleep, good},
		},
		"a failure": {
			api.EntryEnd, entryOf(t, map[string]any{"end": bad}),
			[]api.Message{api.LoopError{Run: "r", Session: "s", Code: api.Denied, Reason: api.ReasonInsufficient, Error: "cannot pay", Next: "fund it", At: 9}, bad},
		},
		"a release": {api.EntryRelease, `{"release":true}`, nil},
	} {
		m := api.Journal{Session: "s", Run: "r", Agent: "a", Turn: 2, Kind: c.kind, Form: api.JournalForm, Entry: json.RawMessage(c.entry)}
		got, err := m.Events()
		if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
		for _, e := range got {
			if !slices.ContainsFunc(api.Views(), func(v api.Message) bool { return v.Subject().Template() == e.Subject().Template() }) {
				t.Errorf("%s: %T is not among the views", name, e)
			}
		}
		m.Form = 0
		if got, err := m.Events(); got != nil || err != nil {
			t.Errorf("%s, of a release before: got %v, %v, want none", name, got, err)
		}
	}
	if _, err := (api.Journal{Form: api.JournalForm, Entry: []byte(`{`)}).Events(); api.CodeOf(err) != api.Invalid {
		t.Errorf("an entry that is none: %v, want %s", err, api.Invalid)
	}
}

func entryOf(t *testing.T, v any) string {
	t.Helper()
	data, err := api.Encode(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestJournalHeld(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		m          api.Journal
		held, open bool
	}{
		"another owner's":          {api.Journal{Kind: api.EntryBegin, Owner: "x/1", Expires: 11}, true, true},
		"another owner's, expired": {api.Journal{Kind: api.EntryBegin, Owner: "x/1", Expires: 10}, false, true},
		"its own":                  {api.Journal{Kind: api.EntryBegin, Owner: "i/2", Expires: 11}, false, false},
		"of an earlier instance":   {api.Journal{Kind: api.EntryBegin, Owner: "i/1", Expires: 11}, false, false},
		"of an end":                {api.Journal{Kind: api.EntryEnd, Owner: "x/1", Expires: 11}, false, false},
		"of a release":             {api.Journal{Kind: api.EntryRelease, Owner: "x/1", Expires: 11}, false, false},
		"of an earlier release":    {api.Journal{Kind: api.EntryThought}, false, true},
		"no entry":                 {api.Journal{}, false, true},
	} {
		if held, open := c.m.Held("i/2", 10); held != c.held || open != c.open {
			t.Errorf("%s: held %t, open %t, want %t, %t", name, held, open, c.held, c.open)
		}
	}
}
