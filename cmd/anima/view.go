package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

// viewer shows a session's events and the live pieces of what the model writes. The
// events of a turn's answer are stored when the answer is complete, after its pieces; a
// piece says which stored entry it follows, and is shown when the events up to that one
// were. Pieces can be lost; what a turn said is known when the turn is stored, and the
// viewer then adds what is missing. It is safe for concurrent use.
type viewer struct {
	json   bool
	echo   bool // show also what begins a run
	turn   func(id string) (api.Turn, error)
	input  func(run string) string
	mu     sync.Mutex
	out    io.Writer
	live   bool // out is a terminal: a line may be taken back
	hint   bool // such a line is shown
	middle bool // of a line

	shown  uint64          // the events up to this sequence were shown
	from   uint64          // the entry that the present turn follows, or one after that
	now    string          // the turn whose model is writing
	said   strings.Builder // the pieces of it that were shown
	latest time.Time       // when the last piece came
	closed bool            // its text is complete, or tools follow it
	stale  bool            // the connection broke: pieces may come again from the first
	before spoken          // the turn before, until it is stored
	early  []live          // what follows events that were not shown yet
	last   string          // the text of the last turn
	done   string          // the last turn that was shown whole; of event alone
}

// spoken is what was shown of a turn's text.
type spoken struct{ turn, said string }

// live is a message that comes beside the events: a piece of an answer, or that the
// model is asked for one.
type live struct {
	event // without a sequence

	turn, content, note string
	discard             bool
	after               uint64 // the entry that it follows; 0: of a release before, after its turn's loop_execute
}

// liveDelta and liveThinking make a live message of its data.
func liveDelta(data []byte) (l live, err error) {
	var d api.StreamDelta
	err = json.Unmarshal(data, &d)
	l = live{turn: d.Turn, content: d.Content, note: d.Note, discard: d.Discard, after: d.After}
	l.event = event{name: d.Subject().Name, run: d.Run, data: data}
	return l, err
}

func liveThinking(data []byte) (l live, err error) {
	var d api.Thinking
	err = json.Unmarshal(data, &d)
	l = live{turn: d.Turn, after: d.After}
	l.event = event{name: d.Subject().Name, run: d.Run, data: data}
	return l, err
}

func newViewer(out io.Writer, asJSON bool) *viewer {
	f, ok := out.(*os.File)
	return &viewer{out: out, json: asJSON, live: ok && isTerminal(f)}
}

// maxEarly bounds the pieces that are kept; the rest comes with the whole text.
const maxEarly = 4096

// piece takes a live message.
func (v *viewer) piece(l live) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case v.json:
		_ = l.writeJSON(v.out) // the next event says that it cannot be written
	case v.ready(l):
		v.speak(l)
	case len(v.early) < maxEarly:
		v.early = append(v.early, l)
	}
}

// reached says that the events up to a sequence were shown.
func (v *viewer) reached(seq uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.shown = max(v.shown, seq)
	v.release()
}

// release shows the pieces that nothing has to come before any more.
func (v *viewer) release() {
	all := v.early
	v.early = nil
	for _, l := range all {
		if v.ready(l) {
			v.speak(l)
		} else {
			v.early = append(v.early, l)
		}
	}
}

// ready says whether the events that a live message follows were shown.
func (v *viewer) ready(l live) bool {
	if l.after == 0 {
		return l.turn == v.now
	}
	return l.after <= v.shown
}

// speak shows a live message of the present turn, or of the one that begins with it.
func (v *viewer) speak(l live) {
	switch {
	case l.after > v.from && l.turn != v.now:
		v.begin(l.turn, l.after)
		l.discard = false
	case l.turn != v.now:
		return // a turn that is over
	case l.after > v.from && !v.closed: // another owner has it
		v.from, v.stale = l.after, v.said.Len() > 0
	case l.after != 0: // its owner goes on
		v.stale = false
	}
	if l.content != "" || l.discard || l.note != "" {
		v.say(l)
	}
}

// say shows a piece of the present turn. A call that is made again begins anew.
func (v *viewer) say(l live) {
	if v.closed {
		return
	}
	if l.discard || v.stale {
		v.stale = false
		if v.said.Len() > 0 {
			v.said.Reset()
			v.remark(join("the answer begins anew, the words above do not count", l.note))
		} else if l.note != "" {
			v.remark(l.note)
		}
	} else if l.note != "" {
		v.remark(l.note)
	}
	v.latest = time.Now()
	v.said.WriteString(l.content)
	v.write(l.content)
}

// begin begins a turn. What was shown of the one before is remembered until that is
// stored.
func (v *viewer) begin(turn string, from uint64) {
	v.before = spoken{}
	if v.now != "" && v.now != v.done {
		v.before = spoken{v.now, v.said.String()}
	}
	v.newLine()
	v.now, v.from, v.closed, v.stale, v.latest = turn, from, false, false, time.Now()
	v.said.Reset()
	v.waiting("thinking")
}

// settle waits for pieces that are on their way while the event that follows them is
// here: they come on another path.
func (v *viewer) settle(turn string) {
	const grace = 50 * time.Millisecond
	for range 4 {
		v.mu.Lock()
		quiet, wait := time.Since(v.latest), v.now == turn && !v.closed
		v.mu.Unlock()
		if !wait || quiet >= grace {
			return
		}
		<-time.After(grace - quiet)
	}
}

func join(what, why string) string {
	if why == "" {
		return what
	}
	return what + ": " + why
}

// write writes text of a model.
func (v *viewer) write(text string) {
	if text == "" {
		return
	}
	v.clear()
	text = plain(text)
	_, _ = io.WriteString(v.out, text) // a closed output ends the command with a signal
	v.middle = !strings.HasSuffix(text, "\n")
}

// print writes whole lines of our own.
func (v *viewer) print(format string, args ...any) {
	v.newLine()
	fmt.Fprintf(v.out, format+"\n", args...)
}

// newLine ends the line that is begun.
func (v *viewer) newLine() {
	v.clear()
	if v.middle {
		fmt.Fprintln(v.out)
		v.middle = false
	}
}

func (v *viewer) remark(s string) { v.print("  (%s)", line(s, 300)) }

// clear takes the hint back.
func (v *viewer) clear() {
	if v.hint {
		_, _ = io.WriteString(v.out, "\r\x1b[K")
		v.hint = false
	}
}

// waiting says on a terminal what is waited for.
func (v *viewer) waiting(what string) {
	if v.live && !v.middle {
		v.clear()
		_, _ = io.WriteString(v.out, "  … "+what)
		v.hint = true
	}
}

// note shows a remark between what comes.
func (v *viewer) note(s string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.remark(s)
}

// interrupted says that pieces may have been lost, and may come again.
func (v *viewer) interrupted() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.json {
		return
	}
	v.stale = v.stale || v.said.Len() > 0
	v.newLine()
}

// joins says that another run took the watched one in, whose events come from the first.
func (v *viewer) joins(run string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.shown, v.from, v.early = 0, 0, nil
	if !v.json {
		v.remark("joins run " + run)
	}
}

// lost shows an end whose event did not come.
func (v *viewer) lost(end api.LoopEnd) {
	if data, err := api.Encode(end); err == nil {
		_ = v.event(event{name: "loop_end", run: end.Run, data: data})
	}
}

// event shows an event.
func (v *viewer) event(e event) error {
	if v.json {
		v.mu.Lock()
		defer v.mu.Unlock()
		return e.writeJSON(v.out)
	}
	var t api.Turn
	var asked string
	switch e.name { // what has to be asked for is asked for before the lock
	case "loop_execute", "loop_persist", "tool_start":
		var p api.LoopPersist // all of them have the turn
		if json.Unmarshal(e.data, &p) != nil || p.Turn == v.done {
			break
		}
		v.settle(p.Turn)
		if e.name != "tool_start" {
			t, _ = v.turn(p.Turn) // without it the end of the run has the last words
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
		if !v.echo { // the command ends with it
			return nil
		}
		return showAs(e, func(m api.LoopError) { v.print("  ✗ %s: %s", m.Code, line(m.Error, 1000)) })
	case "loop_end":
		return showAs(e, v.finish)
	}
	return nil
}

// showAs decodes an event for the function that shows it.
func showAs[T any](e event, show func(T)) error {
	var m T
	if err := json.Unmarshal(e.data, &m); err != nil {
		return fmt.Errorf("event %d: %w", e.seq, err)
	}
	show(m)
	return nil
}

// start shows what begins a run, where that is wanted.
func (v *viewer) start(m api.LoopStart, asked string) {
	v.now, v.last, v.closed, v.before = "", "", true, spoken{}
	v.said.Reset()
	if !v.echo {
		return
	}
	v.print("── %s  %s of %s, run %s", when(m.At), m.Kind, plain(m.Agent), plain(m.Run))
	for l := range strings.Lines(strings.TrimSpace(asked)) {
		v.print("> %s", plain(strings.TrimRight(l, "\n")))
	}
}

// execute says that a turn has its answer, or, of a release before, that its model is
// asked. A turn that is stored already, as of a session's past, is shown at once.
func (v *viewer) execute(turn string, seq uint64, stored api.Turn) {
	if turn != v.now {
		v.begin(turn, max(seq, 1)-1)
	}
	v.early = slices.DeleteFunc(v.early, func(l live) bool { return l.after == 0 && l.turn != turn })
	if stored.ID != "" {
		v.complete(stored)
		return
	}
	v.release()
}

// shownLines is how much of a tool's result is shown.
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
		v.print("      … %d more lines: anima turn output %s %d", more, plain(m.Turn), m.Index)
	}
}

// complete shows what is missing of a turn, now that it is stored. The next turn may have
// begun.
func (v *viewer) complete(t api.Turn) {
	switch t.ID {
	case v.now:
		v.rest(t.Thinking)
	case v.before.turn:
		v.late(t.Thinking)
	}
	v.done = t.ID
}

// late shows the text of the turn before where words of it were lost.
func (v *viewer) late(text string) {
	whole := strings.TrimSpace(text)
	if whole != strings.TrimSpace(v.before.said) {
		v.remark("words of the turn before were lost on the way; its whole text is")
		v.write(whole)
		v.newLine()
	}
	v.before = spoken{}
}

// rest shows what is missing of the present turn's text.
func (v *viewer) rest(text string) {
	whole, have := strings.TrimSpace(text), strings.TrimLeft(v.said.String(), " \n\t")
	switch {
	case whole == strings.TrimSpace(have):
	case strings.HasPrefix(whole, have) && !v.closed:
		v.write(whole[len(have):])
	default:
		v.remark("words were lost on the way; the whole text is")
		v.write(whole)
	}
	v.newLine()
	v.said.Reset()
	v.closed, v.last = true, whole
}

func (v *viewer) finish(m api.LoopEnd) {
	v.clear()
	if m.Fate == api.FateMerged {
		return // another's end says more
	}
	if r := strings.TrimSpace(m.Response); r != "" && r != v.last {
		v.rest(r)
	}
	v.print("  (%d turns, %s, %s)", m.Turns, m.Cost, time.Duration(m.Duration)*time.Millisecond)
}
