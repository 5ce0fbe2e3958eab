package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

// viewer prints a session's events and the live pieces of completions. The events of a
// completion are stored when it is complete, after its pieces were published. A piece
// names the stored entry that it follows, and is printed after the events up to that
// entry. Pieces may be lost: when the turn is stored, the viewer prints what is missing
// of its text. It is safe for concurrent use.
type viewer struct {
	json  bool
	echo  bool                // print the input of each run, too
	named func(string) string // [app.named]
	turn  func(id string) (api.Turn, error)
	input func(run string) string

	mu sync.Mutex // guards the fields below
	progress
	midLine bool // the current line is not complete

	passed   uint64          // sequence up to which the events were printed
	from     uint64          // sequence of the entry that the current turn follows, or a later one
	current  string          // id of the turn whose completion is in progress
	printed  strings.Builder // pieces of it that were printed
	latest   time.Time       // time of the last piece
	closed   bool            // its text is complete, or its tools have begun
	stale    bool            // the connection broke: pieces may be repeated from the first
	previous printedText     // previous turn, until it is stored
	pending  []live          // pieces that follow events not printed yet
	last     string          // text of the last turn
	done     string          // id of the last turn that was printed completely; used by event only
}

// printedText is the part of a turn's text that was printed.
type printedText struct{ turn, said string }

// live is a message that is published beside the stored events: a piece of a completion,
// or the announcement that a model call begins.
type live struct {
	event // without a sequence

	turn, content, note string
	discard             bool
	after               uint64 // sequence of the entry that it follows; 0: of the previous release, follows the loop_execute of its turn
}

// liveDelta and liveThinking decode a live message. A Thinking has a part of the fields of
// a StreamDelta.
func liveDelta(data []byte) (live, error)    { return decodeLive(api.StreamDelta{}, data) }
func liveThinking(data []byte) (live, error) { return decodeLive(api.Thinking{}, data) }

func decodeLive(of api.Message, data []byte) (live, error) {
	var d api.StreamDelta
	err := json.Unmarshal(data, &d)
	e := event{name: of.Subject().Name, run: d.Run, data: data}
	return live{event: e, turn: d.Turn, content: d.Content, note: d.Note, discard: d.Discard, after: d.After}, err
}

func (a *app) viewer(out io.Writer) *viewer {
	return &viewer{progress: progress{w: out, live: isTerminal(out)}, json: a.json(), named: a.named}
}

// maxEarly is the maximum number of pieces that are kept. Further ones are printed with
// the whole text of the turn.
const maxEarly = 4096

// piece processes a live message.
func (v *viewer) piece(l live) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case v.json:
		_ = l.writeJSON(v.w) // the write of the next event returns the error
	case v.ready(l):
		v.printLive(l)
	case len(v.pending) < maxEarly:
		v.pending = append(v.pending, l)
	}
}

// eventsShown records that the events up to a sequence were printed, and prints the pieces
// that waited for them.
func (v *viewer) eventsShown(seq uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.passed = max(v.passed, seq)
	v.release()
}

// release prints the kept pieces that are ready.
func (v *viewer) release() {
	v.pending = slices.DeleteFunc(v.pending, func(l live) bool {
		ready := v.ready(l)
		if ready {
			v.printLive(l)
		}
		return ready
	})
}

// ready reports whether the events that a live message follows were printed.
func (v *viewer) ready(l live) bool {
	if l.after == 0 {
		return l.turn == v.current
	}
	return l.after <= v.passed
}

// printLive prints a live message of the current turn, or of the turn that begins with it.
func (v *viewer) printLive(l live) {
	switch {
	case l.after > v.from && l.turn != v.current:
		v.begin(l.turn, l.after)
		l.discard = false
	case l.turn != v.current:
		return // a turn that has ended
	case l.after > v.from && !v.closed: // another owner has resumed the turn
		v.from, v.stale = l.after, v.printed.Len() > 0
	case l.after != 0: // the same owner continues
		v.stale = false
	}
	if l.content != "" || l.discard || l.note != "" {
		v.printPiece(l)
	}
}

// printPiece prints a piece of the current turn. If the model call is repeated, the text
// begins again.
func (v *viewer) printPiece(l live) {
	if v.closed {
		return
	}
	note := l.note
	if l.discard || v.stale {
		v.stale = false
		if v.printed.Len() > 0 {
			v.printed.Reset()
			note = strings.TrimSuffix("the model call is repeated, the text above is void: "+note, ": ")
		}
	}
	if note != "" {
		v.remark(note)
	}
	v.latest = time.Now()
	v.printed.WriteString(l.content)
	v.write(l.content)
}

// begin begins a turn. It keeps the printed text of the previous turn until that is
// stored.
func (v *viewer) begin(turn string, from uint64) {
	v.previous = printedText{}
	if v.current != "" && v.current != v.done {
		v.previous = printedText{v.current, v.printed.String()}
	}
	v.newLine()
	v.current, v.from, v.closed, v.stale, v.latest = turn, from, false, false, time.Now()
	v.printed.Reset()
	v.waiting("thinking")
}

// awaitPieces waits for pieces that are still in transit when the event after them arrives,
// because pieces and events use different subscriptions. It returns 50 ms after the last
// piece, and waits four times at most.
func (v *viewer) awaitPieces(turn string) {
	const grace = 50 * time.Millisecond
	for range 4 {
		v.mu.Lock()
		quiet, wait := time.Since(v.latest), v.current == turn && !v.closed
		v.mu.Unlock()
		if !wait || quiet >= grace {
			return
		}
		<-time.After(grace - quiet)
	}
}

// write prints text of a model.
func (v *viewer) write(text string) {
	if text == "" {
		return
	}
	v.clear()
	text = plain(text)
	_, _ = io.WriteString(v.w, text) // a closed output ends the command with SIGPIPE
	v.midLine = !strings.HasSuffix(text, "\n")
}

// print prints complete lines of the program itself.
func (v *viewer) print(format string, args ...any) {
	v.newLine()
	fmt.Fprintf(v.w, format+"\n", args...)
}

// newLine ends the current line.
func (v *viewer) newLine() {
	v.clear()
	if v.midLine {
		fmt.Fprintln(v.w)
		v.midLine = false
	}
}

func (v *viewer) remark(s string) { v.print("  (%s)", line(s, 300)) }

// waiting shows on a terminal what the viewer waits for.
func (v *viewer) waiting(what string) {
	if !v.midLine {
		v.progress.waiting(what)
	}
}

// note prints a remark between other output.
func (v *viewer) note(s string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.remark(s)
}

// interrupted records that pieces may have been lost and may be repeated.
func (v *viewer) interrupted() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.json {
		return
	}
	v.stale = v.stale || v.printed.Len() > 0
	v.newLine()
}

// mergedInto records that the watched run was merged into another, whose events are read from
// the first.
func (v *viewer) mergedInto(run string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.passed, v.from, v.pending = 0, 0, nil
	if !v.json {
		v.remark("joins run " + run)
	}
}

// endWithoutEvent prints the end of a run whose event was not received.
func (v *viewer) endWithoutEvent(end api.LoopEnd) {
	if data, err := api.Encode(end); err == nil {
		_ = v.event(event{name: "loop_end", run: end.Run, data: data})
	}
}
