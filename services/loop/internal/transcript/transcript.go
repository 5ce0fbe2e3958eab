// Package transcript reads transcripts in seed 004's JSONL that come from
// elsewhere, and repairs them: what could mislead a model, or could not be
// written back, is cut out and handed over with the reason. It judges the lines
// alone; it stores nothing and believes nobody's ids but as names of calls.
package transcript

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

// MaxCalls is how many calls one answer of the assistant may have. A turn of ours
// has at most ten; the store leaves room for a thousand lines.
const MaxCalls = 100

// Turn is an input, what was answered, and the calls that were made. Input, or
// Text and Calls, may be empty, not all of them.
type Turn struct {
	Input     string
	Text      string
	Calls     []Call
	StartedAt int64 // Unix microseconds
	EndedAt   int64
}

// Call is a tool call with its result.
type Call struct {
	ID, Name  string
	Arguments json.RawMessage
	Result    string
}

// Cut is a line that is not in the turns, or a call that was taken out of one.
type Cut struct {
	Line   int // as the caller counts
	Reason string
	Text   string // the line, whole
}

// Repaired is what is left of lines.
type Repaired struct {
	Turns []Turn
	Kept  int // lines that are in the turns, whole or in part
	Users int // of them, the user's
	Cuts  []Cut
}

// line is a line as it is read. Fields of others are ignored.
type line struct {
	Role       string         `json:"role"`
	Content    string         `json:"content"`
	ToolCalls  []api.ToolCall `json:"tool_calls"`
	ToolCallID string         `json:"tool_call_id"`
	Timestamp  string         `json:"timestamp"`
}

// Repair makes turns of lines. The first line has the number first; none of them
// may be older than after, in Unix microseconds. Empty lines are passed over.
// Lines made of the turns again are all kept.
func Repair(lines []string, first int, after int64) Repaired {
	r := repair{last: max(after, 0)}
	for i, text := range lines {
		r.number, r.text = first+i, text
		if strings.TrimSpace(text) == "" {
			continue
		}
		if reason := r.line(); reason != "" {
			r.cut(reason)
		}
	}
	r.close()
	slices.SortStableFunc(r.out.Cuts, func(a, b Cut) int { return a.Line - b.Line })
	return r.out
}

type repair struct {
	out    Repaired
	number int    // of the line at hand
	text   string // the line
	last   int64  // time of the last line that was kept
	open   *open
}

// open is a turn that may go on.
type open struct {
	Turn
	users    int
	tools    int
	answered []bool // for each call: it has a result
	number   int    // of the assistant's line; 0: there is none yet
	text     string
}

func (r *repair) cut(reason string) {
	r.out.Cuts = append(r.out.Cuts, Cut{Line: r.number, Reason: reason, Text: r.text})
}

// line takes the line at hand, or says why it cannot be used.
func (r *repair) line() string {
	var l line
	if !json.Valid([]byte(r.text)) {
		return "not JSON"
	}
	if err := json.Unmarshal([]byte(r.text), &l); err != nil {
		return "not a message: " + err.Error()
	}
	if !slices.Contains([]string{"user", "assistant", "tool"}, l.Role) {
		return fmt.Sprintf("unknown role %.40q; known are user, assistant and tool", l.Role)
	}
	t, err := time.Parse(time.RFC3339Nano, l.Timestamp)
	if err != nil {
		return fmt.Sprintf("its timestamp %.40q is not one of ISO 8601", l.Timestamp)
	}
	at := t.UnixMilli() * 1000 // a transcript has no more
	if at < r.last {
		return "it is older than the line before it"
	}
	reason := ""
	switch l.Role {
	case "user":
		reason = r.user(l, at)
	case "assistant":
		reason = r.assistant(l, at)
	case "tool":
		reason = r.tool(l, at)
	}
	if reason == "" {
		r.last = at
	}
	return reason
}

func (r *repair) user(l line, at int64) string {
	if strings.TrimSpace(l.Content) == "" {
		return "it says nothing"
	}
	r.close()
	r.open = &open{Turn: Turn{Input: l.Content, StartedAt: at, EndedAt: at}, users: 1}
	return ""
}

func (r *repair) assistant(l line, at int64) string {
	var calls []Call
	for i, c := range l.ToolCalls {
		switch {
		case i >= MaxCalls:
			r.cut(fmt.Sprintf("call %.40q is one more than the %d that an answer may have", c.ID, MaxCalls))
		case c.ID == "":
			r.cut(fmt.Sprintf("call %d has no id", i))
		case c.Name == "":
			r.cut(fmt.Sprintf("call %.40q names no tool", c.ID))
		case !json.Valid([]byte(c.Arguments)):
			r.cut(fmt.Sprintf("the arguments of call %.40q are not JSON", c.ID))
		default:
			calls = append(calls, Call{ID: c.ID, Name: c.Name, Arguments: json.RawMessage(c.Arguments)})
		}
	}
	if l.Content == "" && len(calls) == 0 {
		return "it says nothing and calls nothing"
	}
	if r.open == nil || r.open.number != 0 {
		r.close()
		r.open = &open{Turn: Turn{StartedAt: at}}
	}
	o := r.open
	o.Text, o.Calls, o.EndedAt = l.Content, calls, at
	o.answered, o.number, o.text = make([]bool, len(calls)), r.number, r.text
	return ""
}

// tool gives a result to the first call of its id that has none: some providers
// number the calls of each answer alike.
func (r *repair) tool(l line, at int64) string {
	known := false
	if r.open != nil {
		for i, c := range r.open.Calls {
			if c.ID != l.ToolCallID {
				continue
			}
			known = true
			if r.open.answered[i] {
				continue
			}
			r.open.Calls[i].Result, r.open.answered[i] = l.Content, true
			r.open.EndedAt = at
			r.open.tools++
			return ""
		}
	}
	if known {
		return fmt.Sprintf("call %.40q has a result already", l.ToolCallID)
	}
	return fmt.Sprintf("a result without a call: nothing before it calls %.40q", l.ToolCallID)
}

// close ends the turn that is open. A call without a result would make a model
// wait for it, or make it up; it goes.
func (r *repair) close() {
	o := r.open
	r.open = nil
	if o == nil {
		return
	}
	var calls []Call
	for i, c := range o.Calls {
		if o.answered[i] {
			calls = append(calls, c)
			continue
		}
		r.out.Cuts = append(r.out.Cuts, Cut{Line: o.number, Reason: fmt.Sprintf("call %.40q of %.40s has no result", c.ID, c.Name), Text: o.text})
	}
	o.Calls = calls
	answer := 0
	if o.Text != "" || len(calls) > 0 {
		answer = 1
	}
	if o.users+answer == 0 {
		return
	}
	r.out.Turns = append(r.out.Turns, o.Turn)
	r.out.Kept += o.users + answer + o.tools
	r.out.Users += o.users
}
