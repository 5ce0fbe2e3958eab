package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

// event prints an event.
func (v *viewer) event(e event) error {
	if v.json {
		v.mu.Lock()
		defer v.mu.Unlock()
		return e.writeJSON(v.w)
	}
	var t api.Turn
	var asked string
	switch e.name { // requests to services must not be made under the lock
	case "loop_execute", "loop_persist", "tool_start":
		var p api.LoopPersist // all three events have this field
		if json.Unmarshal(e.data, &p) != nil || p.Turn == v.done {
			break
		}
		v.awaitPieces(p.Turn)
		if e.name != "tool_start" {
			t, _ = v.turn(p.Turn) // if the request fails, the end of the run prints the text
		}
	case "loop_start":
		if v.echo {
			asked = v.input(e.run)
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.show(e, t, asked)
}

func (v *viewer) show(e event, t api.Turn, asked string) error {
	switch e.name {
	case "loop_start":
		return showAs(e, func(m api.LoopStart) { v.start(m, asked) })
	case "loop_execute":
		return showAs(e, func(m api.LoopExecute) { v.execute(m.Turn, e.seq, t) })
	case "tool_start":
		return showAs(e, func(m api.ToolStart) {
			v.closed = true
			v.print("  → %s %s", plain(m.ToolName), line(string(m.Arguments), 400))
			v.waiting(plain(m.ToolName))
		})
	case "tool_end":
		return showAs(e, v.result)
	case "loop_persist":
		if t.ID != "" {
			v.complete(t)
		}
	case "loop_error":
		if !v.echo { // the command ends with the same error
			return nil
		}
		return showAs(e, func(m api.LoopError) { v.print("  ✗ %s: %s", m.Code, line(m.Error, 1000)) })
	case "loop_end":
		return showAs(e, v.finish)
	}
	return nil
}

// showAs decodes an event and passes it to the function that prints it.
func showAs[T any](e event, show func(T)) error {
	var m T
	if err := json.Unmarshal(e.data, &m); err != nil {
		return fmt.Errorf("event %d: %w", e.seq, err)
	}
	show(m)
	return nil
}

// start begins a run and, with echo, prints its input.
func (v *viewer) start(m api.LoopStart, asked string) {
	v.current, v.last, v.closed, v.previous = "", "", true, printedText{}
	v.printed.Reset()
	if !v.echo {
		return
	}
	v.print("── %s  %s of %s, run %s", when(m.At), m.Kind, plain(m.Agent), plain(m.Run))
	for l := range strings.Lines(strings.TrimSpace(asked)) {
		v.print("> %s", plain(strings.TrimRight(l, "\n")))
	}
}

// execute processes the event that a completion was stored or, in the previous release,
// that a model call begins. A turn that is already stored, as in the history of a
// session, is printed at once.
func (v *viewer) execute(turn string, seq uint64, stored api.Turn) {
	if turn != v.current {
		v.begin(turn, max(seq, 1)-1)
	}
	v.pending = slices.DeleteFunc(v.pending, func(l live) bool { return l.after == 0 && l.turn != turn })
	if stored.ID != "" {
		v.complete(stored)
		return
	}
	v.release()
}

// shownLines is the maximum number of printed lines of a tool's result.
const shownLines = 8

func (v *viewer) result(m api.ToolEnd) {
	v.closed = true
	all := strings.Split(strings.TrimSpace(m.Result), "\n")
	took := time.Duration(m.Duration) * time.Millisecond
	if len(all) == 1 {
		v.print("  ← %s %s: %s (%s)", plain(m.ToolName), m.Outcome, line(all[0], 400), took)
		return
	}
	v.print("  ← %s %s (%s)", plain(m.ToolName), m.Outcome, took)
	for _, l := range all[:min(len(all), shownLines)] {
		v.print("      %s", line(l, 200))
	}
	if more := len(all) - shownLines; more > 0 {
		v.print("      … %d more lines: %s", more, v.named(fmt.Sprintf("anima turn output %s %d", plain(m.Turn), m.Index)))
	}
}

// complete prints what is missing of a turn after it was stored. The next turn may have
// begun.
func (v *viewer) complete(t api.Turn) {
	switch t.ID {
	case v.current:
		v.printRest(t.Thinking)
	case v.previous.turn:
		if whole := strings.TrimSpace(t.Thinking); whole != strings.TrimSpace(v.previous.said) {
			v.remark("pieces of the previous turn's text were lost; its whole text is")
			v.write(whole)
			v.newLine()
		}
		v.previous = printedText{}
	}
	v.done = t.ID
}

// printRest prints what is missing of the current turn's text.
func (v *viewer) printRest(text string) {
	whole, have := strings.TrimSpace(text), strings.TrimLeft(v.printed.String(), " \n\t")
	switch {
	case whole == strings.TrimSpace(have):
	case strings.HasPrefix(whole, have) && !v.closed:
		v.write(whole[len(have):])
	default:
		v.remark("pieces of the text were lost; the whole text is")
		v.write(whole)
	}
	v.newLine()
	v.printed.Reset()
	v.closed, v.last = true, whole
}

func (v *viewer) finish(m api.LoopEnd) {
	v.clear()
	if m.Outcome == api.OutcomeMerged {
		return // the end event of the other run has the details
	}
	if r := strings.TrimSpace(m.Response); r != "" && r != v.last {
		v.printRest(r)
	}
	v.print("  (%d turns, %s, %s)", m.Turns, m.Cost, time.Duration(m.Duration)*time.Millisecond)
}
