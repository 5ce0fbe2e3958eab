// Package transcript repairs transcripts of other systems in the format of exported ones
// (docs/reference/context.md, Transcript format). Lines that could mislead a model, or
// could not be exported again, are cut out and returned with the reason. The package must
// not store anything, and must not use the ids in a transcript except to match results to
// calls.
package transcript

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

// MaxCalls is the largest number of calls in one line of the assistant, as many as the
// router accepts in an answer: a turn also has those of its calls that were not executed.
// The store has room for a thousand lines.
const MaxCalls = 256

// Cut is a line that is in no turn, or that has a call which is in no turn.
type Cut struct {
	Line   int // number of the line
	Reason string
	Text   string // the whole line
}

// Repaired is the result of [Repair].
type Repaired struct {
	// Turns have Input, Thinking, Calls, StartedAt and EndedAt only. Input may be empty, or
	// Thinking and Calls, but not all of them. Calls have ID, Tool, Arguments and Result.
	Turns []api.Turn
	Kept  int // number of lines in the turns, whole or in part
	Users int // number of them with role user
	Cuts  []Cut
}

// line is a decoded line. Unknown fields are ignored.
type line struct {
	Role       string         `json:"role"`
	Content    string         `json:"content"`
	ToolCalls  []api.ToolCall `json:"tool_calls"`
	ToolCallID string         `json:"tool_call_id"`
	Timestamp  string         `json:"timestamp"`
}

// Repair makes turns of lines. first is the number of the first line. A line that is
// older than the previous one, or than after (Unix microseconds), is cut. Empty lines are
// ignored. Repair of the exported turns cuts no line.
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
	number int    // of the current line
	text   string // the current line
	last   int64  // time of the last line that was kept
	open   *open
}

// open is a turn to which lines may be added.
type open struct {
	api.Turn
	users    int
	tools    int
	answered []bool // for each call whether it has a result
	number   int    // of the assistant's line; 0: there is none yet
	text     string
}

func (r *repair) cut(reason string) {
	r.out.Cuts = append(r.out.Cuts, Cut{Line: r.number, Reason: reason, Text: r.text})
}

// line processes the current line, or returns the reason to cut it.
func (r *repair) line() string {
	var l line
	if !json.Valid([]byte(r.text)) {
		return "not JSON"
	}
	if err := json.Unmarshal([]byte(r.text), &l); err != nil {
		return "not a message: " + err.Error()
	}
	add, known := roles[l.Role]
	if !known {
		return fmt.Sprintf("unknown role %.40q; known are user, assistant and tool", l.Role)
	}
	t, err := time.Parse(time.RFC3339Nano, l.Timestamp)
	if err != nil {
		return fmt.Sprintf("its timestamp %.40q is not in the format of ISO 8601", l.Timestamp)
	}
	at := t.UnixMilli() * 1000 // a transcript has milliseconds
	if at < r.last {
		return "it is older than the line before it"
	}
	reason := add(r, l, at)
	if reason == "" {
		r.last = at
	}
	return reason
}

// roles are the functions that add a line of a role, or return the reason to cut it.
var roles = map[string]func(*repair, line, int64) string{"user": (*repair).user, "assistant": (*repair).assistant, "tool": (*repair).tool}

func (r *repair) user(l line, at int64) string {
	if strings.TrimSpace(l.Content) == "" {
		return "the message is empty"
	}
	r.close()
	r.open = &open{Turn: api.Turn{Input: l.Content, StartedAt: at, EndedAt: at}, users: 1}
	return ""
}

func (r *repair) assistant(l line, at int64) string {
	var calls []api.CallState
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
			calls = append(calls, api.CallState{ID: c.ID, Tool: c.Name, Arguments: json.RawMessage(c.Arguments)})
		}
	}
	if l.Content == "" && len(calls) == 0 {
		return "the message has no text and no call"
	}
	if r.open == nil || r.open.number != 0 {
		r.close()
		r.open = &open{Turn: api.Turn{StartedAt: at}}
	}
	o := r.open
	o.Thinking, o.Calls, o.EndedAt = l.Content, calls, at
	o.answered, o.number, o.text = make([]bool, len(calls)), r.number, r.text
	return ""
}

// tool adds a result to the first call with its id that has none, because some providers
// use the same ids in each answer.
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
	return fmt.Sprintf("a result without a call: no earlier line has call %.40q", l.ToolCallID)
}

// close ends the open turn. It cuts calls without a result, because a model would wait
// for the result or invent it.
func (r *repair) close() {
	o := r.open
	r.open = nil
	if o == nil {
		return
	}
	var calls []api.CallState
	for i, c := range o.Calls {
		if o.answered[i] {
			calls = append(calls, c)
			continue
		}
		r.out.Cuts = append(r.out.Cuts, Cut{Line: o.number, Reason: fmt.Sprintf("call %.40q of %.40s has no result", c.ID, c.Tool), Text: o.text})
	}
	o.Calls = calls
	answer := 0
	if o.Thinking != "" || len(calls) > 0 {
		answer = 1
	}
	if o.users+answer == 0 {
		return
	}
	r.out.Turns = append(r.out.Turns, o.Turn)
	r.out.Kept += o.users + answer + o.tools
	r.out.Users += o.users
}
