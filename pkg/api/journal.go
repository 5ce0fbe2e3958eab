package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
)

// Journal is one step of a run, appended to its session's journal under the
// expected last sequence. A journal is what loop recovers a run from, its session's
// lock, and its events: [Journal.Events] expands an entry into the events of seed 004.
//
// The first entry of an owner is a begin; Epoch, one more than the sequence that it
// was written on top of, is the owner's from then on. Until Expires, or until an entry
// of kind end or release, the session is Owner's.
type Journal struct {
	Session string `json:"sessionId"`
	Run     string `json:"runId"`
	Agent   string `json:"agent,omitempty"`
	Turn    int    `json:"turn"`
	Epoch   uint64 `json:"epoch"`
	Last    uint64 `json:"last,omitempty"` // sequence of the entry before; 0: there is none
	Kind    string `json:"kind"`           // one of the Entry constants
	// Owner is the process that wrote the entry (see [OwnerName]), and Expires until
	// when the session is its own, in Unix µs. "" and 0: of a release before, whose
	// owners held a key of the coordination bucket.
	Owner   string `json:"owner,omitempty"`
	Expires int64  `json:"expires,omitempty"`
	// Form is [JournalForm]; 0: of a release before, which announced each event by a
	// message of its own.
	Form  int             `json:"form,omitempty"`
	Entry json.RawMessage `json:"entry"` // loop's own, but for what [Journal.Events] reads
}

// Subject of the message.
func (m Journal) Subject() Subject { return event(Loop, "journal", m.Session) }

// JournalForm is the form of the entries of this release.
const JournalForm = 1

// The kinds of journal entries.
const (
	EntryBegin   = "begin"   // an owner takes the run up
	EntryJoined  = "joined"  // a message came into the run
	EntryThought = "thought" // the model's answer
	EntryIntent  = "intent"  // a call is allowed and will be made now
	EntryResult  = "result"  // a call's end
	EntryEnd     = "end"     // the run is over; the session is free
	EntryRelease = "release" // the owner hands the run back; the session is free
)

// Held says whether the session may belong to another process than self at a time, in
// Unix µs. Where the entry is older than [JournalForm], or has expired, a key of the
// coordination bucket may prolong it: open is true then.
func (m Journal) Held(self string, now int64) (held, open bool) {
	if m.Kind == EntryEnd || m.Kind == EntryRelease {
		return false, false
	}
	if m.Owner == "" {
		return false, true
	}
	l := Lock{Owner: m.Owner, Expires: m.Expires}
	return m.Owner != self && !l.Free(self, now), m.Owner != self && !Predecessor(self, m.Owner)
}

// entry is what [Journal.Events] reads of an entry.
type entry struct {
	// Persisted is when the turn before was persisted, in Unix µs, if no entry has said
	// so yet, and Changed are changes of the agent that no message has announced.
	Persisted int64          `json:"persisted"`
	Changed   []AgentChanged `json:"changed"`

	Begin *struct {
		Kind RunKind `json:"kind"` // of the run, with the first begin
		At   int64   `json:"at"`
	} `json:"begin"`
	Thought *struct {
		Tokens    int64 `json:"tokens"`
		Offered   int   `json:"offered"`
		StartedAt int64 `json:"startedAt"`
	} `json:"thought"`
	Intent *struct {
		Index     int             `json:"index"`
		Tool      string          `json:"tool"`
		CallID    string          `json:"callId"`
		Arguments json.RawMessage `json:"arguments"`
		At        int64           `json:"at"`
	} `json:"intent"`
	Result *struct {
		Index      int     `json:"index"`
		Tool       string  `json:"tool"`
		CallID     string  `json:"callId"`
		Outcome    Outcome `json:"outcome"`
		Text       string  `json:"text"`
		Error      string  `json:"error"`
		DurationMS int64   `json:"durationMs"`
		At         int64   `json:"at"`
	} `json:"result"`
	End *LoopEnd `json:"end"`
}

// Events are the events that the entry announces, in their order: of none for an entry
// of a release before. An entry that is read again gives the same events. A failure
// is an [Invalid] error.
func (m Journal) Events() ([]Message, error) {
	if m.Form == 0 {
		return nil, nil
	}
	var e entry
	if err := json.Unmarshal(m.Entry, &e); err != nil {
		return nil, &Error{Code: Invalid, Message: fmt.Sprintf("entry of kind %s of run %s: %v", m.Kind, m.Run, err)}
	}
	var all []Message
	turn := m.turn(m.Turn)
	if e.Persisted != 0 {
		all = append(all, LoopPersist{Run: m.Run, Session: m.Session, Turn: m.turn(m.Turn - 1), At: e.Persisted})
	}
	if b := e.Begin; b != nil && b.Kind != "" {
		all = append(all, LoopStart{Run: m.Run, Session: m.Session, Agent: m.Agent, Kind: b.Kind, At: b.At})
	}
	if e.End == nil {
		all = append(all, changes(e.Changed)...)
	}
	switch {
	case e.Thought != nil:
		all = append(all,
			LoopContext{Run: m.Run, Session: m.Session, Turn: turn, TokenEstimate: e.Thought.Tokens, At: e.Thought.StartedAt},
			LoopExecute{Run: m.Run, Session: m.Session, Turn: turn, ToolCount: e.Thought.Offered, At: e.Thought.StartedAt})
	case e.Intent != nil:
		i := e.Intent
		all = append(all, ToolStart{
			Run: m.Run, Session: m.Session, Turn: turn, Index: i.Index, ToolName: i.Tool, ToolCallID: i.CallID, Arguments: i.Arguments, At: i.At,
		})
	case e.Result != nil:
		r := e.Result
		text := r.Text
		if text == "" {
			text = r.Error
		}
		all = append(all, ToolEnd{
			Run: m.Run, Session: m.Session, Turn: turn, Index: r.Index, ToolName: r.Tool, ToolCallID: r.CallID,
			Outcome: r.Outcome, Result: text, Duration: r.DurationMS, At: r.At,
		})
	case e.End != nil:
		all = append(all, ending(*e.End, m.turn(e.End.Turns))...)
		all = slices.Insert(all, len(all)-1, changes(e.Changed)...)
	}
	return all, nil
}

// MayChange says whether an entry, as [Encode] wrote it into a [Journal], may announce
// an [AgentChanged]. False is certain, and costs no decoding: most entries announce none.
func MayChange(journal []byte) bool { return bytes.Contains(journal, []byte(`"changed":[`)) }

func (m Journal) turn(number int) string { return m.Run + "." + strconv.Itoa(number) }

func changes(all []AgentChanged) (out []Message) {
	for _, c := range all {
		out = append(out, c)
	}
	return out
}

// ending are the events of a run's end.
func ending(end LoopEnd, turn string) []Message {
	if end.Success {
		return []Message{LoopPersist{Run: end.Run, Session: end.Session, Turn: turn, At: end.At}, end}
	}
	return []Message{LoopError{
		Run: end.Run, Session: end.Session, Code: end.Code, Reason: end.Reason, Error: end.Error, Next: end.Next, At: end.At,
	}, end}
}

// Views are the messages that a journal announces. They are also published on subjects
// of their own: by releases before, of changes that no run made, and of the end of a run
// that had no turn.
func Views() []Message {
	return []Message{LoopStart{}, LoopContext{}, LoopExecute{}, ToolStart{}, ToolEnd{}, LoopPersist{}, LoopError{}, LoopEnd{}, AgentChanged{}}
}
