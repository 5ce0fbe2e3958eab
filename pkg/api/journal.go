package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
)

// Journal is one entry of a session's journal, appended with the expected last
// sequence. Loop resumes runs from the journal, and the journal is the lock of the
// session and the source of its events: [Journal.Events] expands an entry into them
// (docs/reference/platform.md, Events).
//
// The first entry of an owner has the kind begin. Its Epoch is one more than the
// sequence of the entry before it, and all entries of the owner have that Epoch. The
// session belongs to Owner until Expires, or until an entry of kind end or release.
type Journal struct {
	Session string `json:"sessionId"`
	Run     string `json:"runId"`
	Agent   string `json:"agent,omitempty"`
	Turn    int    `json:"turn"`
	Epoch   uint64 `json:"epoch"`
	Last    uint64 `json:"last,omitempty"` // sequence of the previous entry; 0: none
	Kind    string `json:"kind"`           // one of the Entry constants
	// Owner is the process that wrote the entry (see [OwnerName]). The session belongs
	// to it until Expires, Unix time in microseconds. "" and 0 are of an earlier
	// release, in which owners held a key of the coordination bucket.
	Owner   string `json:"owner,omitempty"`
	Expires int64  `json:"expires,omitempty"`
	// Form is [JournalForm]. 0 is of an earlier release, which published each event as a
	// separate message.
	Form  int             `json:"form,omitempty"`
	Entry json.RawMessage `json:"entry"` // private to loop, except for the fields of the type entry
}

// Subject returns the subject of the message.
func (m Journal) Subject() Subject { return event(Loop, "journal", m.Session) }

// JournalForm is the form of the entries that this release writes.
const JournalForm = 1

// The kinds of journal entries.
const (
	EntryBegin   = "begin"   // an owner starts or resumes the run
	EntryJoined  = "joined"  // a message was added to the run
	EntryThought = "thought" // a completion
	EntryIntent  = "intent"  // a tool call is allowed and about to be executed
	EntryResult  = "result"  // the outcome of a tool call
	EntryEnd     = "end"     // the run has ended; the session is free
	EntryRelease = "release" // the owner has returned the run to the queue; the session is free
)

// Held reports by the journal's last entry m whether the session belongs to another
// process than self. held is true if m has another owner that is no [Predecessor] of
// self, and Expires is after now, in Unix microseconds. open is true if a key of the
// coordination bucket may extend the owner's claim beyond m: m is of an earlier
// release, or its owner is neither self nor a [Predecessor] of self. Both are false
// after an end or a release.
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

// entry holds the fields of an entry that [Journal.Events] reads.
type entry struct {
	// Persisted is when the previous turn was persisted, Unix time in microseconds; 0 if
	// an earlier entry has it. Changed holds the changes of the agent that no message
	// has announced.
	Persisted int64          `json:"persisted"`
	Changed   []AgentChanged `json:"changed"`

	Begin *struct {
		Kind RunKind `json:"kind"` // of the run; only in its first begin
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

// Events returns the events that the entry announces, in order. An entry of an earlier
// release announces none. The same entry always returns the same events. An error has
// the code [Invalid].
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
		end := *e.End
		if end.Success {
			all = append(all, LoopPersist{Run: end.Run, Session: end.Session, Turn: m.turn(end.Turns), At: end.At})
		} else {
			all = append(all, LoopError{
				Run: end.Run, Session: end.Session, Code: end.Code, Reason: end.Reason, Error: end.Error, Next: end.Next, At: end.At,
			})
		}
		all = append(append(all, changes(e.Changed)...), end)
	}
	return all, nil
}

// MayChange reports whether an entry, as [Encode] wrote it into a [Journal], may
// announce an [AgentChanged]. If it returns false, the entry announces none. It does
// not decode the entry and so is a cheap filter, because most entries announce none.
func MayChange(journal []byte) bool { return bytes.Contains(journal, []byte(`"changed":[`)) }

func (m Journal) turn(number int) string { return m.Run + "." + strconv.Itoa(number) }

func changes(all []AgentChanged) (out []Message) {
	for _, c := range all {
		out = append(out, c)
	}
	return out
}

// Views returns the messages that a journal announces. They are also published on their
// own subjects: by earlier releases, for changes that are not made by a run, and for
// the end of a run that has no turn.
func Views() []Message {
	return []Message{LoopStart{}, LoopContext{}, LoopExecute{}, ToolStart{}, ToolEnd{}, LoopPersist{}, LoopError{}, LoopEnd{}, AgentChanged{}}
}
